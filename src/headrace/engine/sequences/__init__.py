"""Sequences: requests of a model with a `step`, run step by step."""
