"""What the gateway costs: CPU per request and per streamed token, and added time to first token."""
