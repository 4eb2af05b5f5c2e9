"""How much callers may use: token buckets that are reserved from, and settled or abandoned."""
