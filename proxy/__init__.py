"""The edge: sockets, TLS, HTTP, the life of one request, and how it is all put together."""
