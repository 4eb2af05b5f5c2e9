"""HTTP/2 towards clients (RFC 9113)."""
