"""When a batch closes, and which row of a failing one is guilty. Pure: `now` is an argument."""

from headrace.batching.bisect import Bisection
from headrace.batching.dynamic import Closed, CloseReason, DynamicBatcher, Slice

__all__ = ["Bisection", "CloseReason", "Closed", "DynamicBatcher", "Slice"]
