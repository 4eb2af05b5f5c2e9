"""What differs between the model servers: names and dialects, no behaviour."""
