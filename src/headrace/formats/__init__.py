"""Formats: bytes become blocks, blocks become tensors, predictions become bytes. No module waits."""
