"""Requests to a Model and back: instances in threads, admission, deadlines, cancellation, bisection, drain."""

from headrace.engine.engine import Engine

__all__ = ["Engine"]
