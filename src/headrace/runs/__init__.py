"""Offline runs over a Predictor: source, prefetch, mapping, flow and the two sinks; bounded at every step."""
