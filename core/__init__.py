"""The vocabulary that every other package shares. Imports nothing of ours and does no I/O."""
