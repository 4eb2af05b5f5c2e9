"""TLS towards clients: certificates, session tickets, client certificates."""
