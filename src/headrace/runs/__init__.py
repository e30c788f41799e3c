"""Streams: source, prefetch, batching, prediction, ordered delivery, sink; bounded at every step."""
