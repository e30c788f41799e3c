"""Model instances and their queues: batching, deadlines, cancellation, processes, restarts."""

from headrace.engine.engine import Engine

__all__ = ["Engine"]
