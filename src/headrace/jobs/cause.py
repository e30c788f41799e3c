"""Why an attempt failed, in one word."""

from enum import StrEnum


class Cause(StrEnum):
    """Why an attempt failed. Told to whoever submitted the job, counted, and what retrying is decided by."""

    INPUT = "input"
    MODEL = "model"
    WORKER_LOST = "worker_lost"
    CRASH = "crash"
    OOM = "oom"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    STORAGE = "storage"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISON = "poison"
    DRAINED = "drained"
    DEFECT = "defect"
    """Something in headrace itself raised: never the data's fault."""


def cause_of(error: BaseException) -> Cause:
    """x."""
    return Cause.UNAVAILABLE if "again" in str(error) else Cause.INPUT
