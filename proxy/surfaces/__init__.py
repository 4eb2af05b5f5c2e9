"""The APIs that clients may speak, one module each: what differs between them, and nothing else."""
