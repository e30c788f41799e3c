"""Batching decisions: when a batch closes, and which rows of a failed batch are at fault.

Every class here is pure: it takes the current time as `now`, never waits, and returns a decision.
"""

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, AdaptiveReason, WaitCondition
from headrace.batching.bisect import Bisection
from headrace.batching.dynamic import ClosedBatch, CloseReason, DynamicBatcher, RowSlice

__all__ = [
    "AdaptiveBatch",
    "AdaptiveBatcher",
    "AdaptiveReason",
    "Bisection",
    "CloseReason",
    "ClosedBatch",
    "DynamicBatcher",
    "RowSlice",
    "WaitCondition",
]
