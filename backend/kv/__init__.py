"""KV events: what vLLM and SGLang tell of their prefix caches over ZeroMQ."""
