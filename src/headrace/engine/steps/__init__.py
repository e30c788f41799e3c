"""Requests that belong to sequences, answered step by step: what stands between callers and a model with a `step`."""
