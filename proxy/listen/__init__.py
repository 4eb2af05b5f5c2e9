"""Where connections come from: sockets, accepting, who the client is."""
