"""The causes of failed attempts."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from headrace.core import errors as e


class Cause(StrEnum):
    """The cause of a failed attempt.

    It is reported to the client and counted, and it selects the retry rule.
    """

    INPUT = "input"
    """The submission is invalid: its payload, its settings, or a URI that it names."""
    MODEL = "model"
    """The model raised, did not load, or returned an invalid output."""
    WORKER_LOST = "worker_lost"
    """The lease expired: the worker died or was unreachable."""
    CRASH = "crash"
    """The model's process died."""
    OOM = "oom"
    """The memory was exhausted."""
    TIMEOUT = "timeout"
    """The attempt, or a call of the model, exceeded its time limit."""
    UNAVAILABLE = "unavailable"
    """A required store, endpoint or loading model is unavailable."""
    OVERLOADED = "overloaded"
    """A required service is overloaded."""
    STORAGE = "storage"
    """A store failed otherwise, or an object changed while it was read."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISON = "poison"
    """The job crashed too many processes, also while it ran alone."""
    DRAINED = "drained"
    """The worker is stopping."""
    DEFECT = "defect"
    """headrace itself failed, or lacks a dependency; the data is not the reason."""


_CAUSES: Final[Mapping[type[BaseException], Cause]] = {
    e.HeadraceError: Cause.DEFECT,
    e.ConfigError: Cause.INPUT,
    e.MissingExtraError: Cause.DEFECT,
    e.OutputExistsError: Cause.INPUT,
    e.RefusedAddressError: Cause.INPUT,
    e.DataError: Cause.INPUT,
    e.EmptySourceError: Cause.INPUT,
    e.TooManyFailuresError: Cause.INPUT,
    e.CorruptError: Cause.INPUT,
    e.TruncatedError: Cause.INPUT,
    e.StorageError: Cause.STORAGE,
    e.NotFoundError: Cause.INPUT,
    e.AccessDeniedError: Cause.INPUT,
    e.AlreadyExistsError: Cause.STORAGE,
    e.ChangedError: Cause.STORAGE,
    e.UnavailableError: Cause.UNAVAILABLE,
    e.LimitError: Cause.INPUT,
    e.UnsupportedError: Cause.INPUT,
    e.AccessError: Cause.INPUT,
    e.UnauthenticatedError: Cause.INPUT,
    e.ForbiddenError: Cause.INPUT,
    e.ModelError: Cause.MODEL,
    e.ModelNotFoundError: Cause.INPUT,
    e.ModelNotReadyError: Cause.UNAVAILABLE,
    e.InstanceLostError: Cause.CRASH,
    e.ModelLoadError: Cause.MODEL,
    e.ModelInputError: Cause.INPUT,
    e.RefusedRowsError: Cause.INPUT,
    e.ModelContractError: Cause.MODEL,
    e.PredictError: Cause.MODEL,
    e.PredictorError: Cause.UNAVAILABLE,
    e.DeadlineError: Cause.TIMEOUT,
    e.OverloadedError: Cause.OVERLOADED,
    e.CancelledRequestError: Cause.CANCELLED,
    e.StoppedError: Cause.DRAINED,
    e.SequenceError: Cause.MODEL,
    e.SequenceGoneError: Cause.INPUT,
    e.SequenceLostError: Cause.CRASH,
    e.SequenceFullError: Cause.OVERLOADED,
    e.TooManySequencesError: Cause.OVERLOADED,
    e.EndpointError: Cause.UNAVAILABLE,
    e.EndpointRefusedError: Cause.INPUT,
    e.EndpointUnavailableError: Cause.UNAVAILABLE,
    e.RunnerError: Cause.UNAVAILABLE,
    e.LedgerError: Cause.DEFECT,
    e.ResumeRefusedError: Cause.INPUT,
    e.CountMismatchError: Cause.DEFECT,
    e.JobError: Cause.DEFECT,
    e.JobNotFoundError: Cause.DEFECT,
    e.JobStateError: Cause.DEFECT,
    e.ResultGoneError: Cause.INPUT,
    e.IdempotencyError: Cause.INPUT,
    e.QueueFullError: Cause.OVERLOADED,
    e.QueueClosedError: Cause.UNAVAILABLE,
    e.JobLedgerUnavailableError: Cause.UNAVAILABLE,
    MemoryError: Cause.OOM,
}


_DEATHS: Final[Mapping[str, Cause]] = {"oom": Cause.OOM, "timeout": Cause.TIMEOUT}
"""The causes of a model process's death other than a crash."""


def cause_of(error: BaseException) -> Cause:
    """Return the cause for an error; `Cause.DEFECT` for errors outside headrace's hierarchy.

    A ModelError chained to a MemoryError has the cause `Cause.OOM`.
    """
    if isinstance(error, e.InstanceLostError):
        return _DEATHS.get(getattr(error, "cause", None) or "", Cause.CRASH)
    cause = next((_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES), Cause.DEFECT)
    if cause is Cause.MODEL and any(isinstance(link, MemoryError) for link in _chain(error)):
        return Cause.OOM
    return cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the chain of `__cause__`s, each error once, because a chain may be circular."""
    seen: set[int] = set()
    link = error.__cause__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
