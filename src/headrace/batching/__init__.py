"""When a batch closes, and which row of a failing one is guilty. Pure: `now` is an argument."""

from headrace.batching.adaptive import AdaptiveBatch, AdaptiveBatcher, AdaptiveReason, LookAgain
from headrace.batching.bisect import Bisection
from headrace.batching.dynamic import Closed, CloseReason, DynamicBatcher, Slice

__all__ = [
    "AdaptiveBatch",
    "AdaptiveBatcher",
    "AdaptiveReason",
    "Bisection",
    "CloseReason",
    "Closed",
    "DynamicBatcher",
    "LookAgain",
    "Slice",
]
