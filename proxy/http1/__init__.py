"""HTTP/1.1 towards clients (RFC 9112)."""
