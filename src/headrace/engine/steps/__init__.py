"""Requests of sequences, run step by step by a model with a `step`."""
