"""Why an attempt failed, in one word."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from headrace.core import errors as e


class Cause(StrEnum):
    """Why an attempt failed. Told to whoever submitted the job, counted, and what retrying is decided by."""

    INPUT = "input"
    """What was submitted cannot be done: its payload, its settings, or a place that it names."""
    MODEL = "model"
    """The model raised, did not load, or gave what fits nothing."""
    WORKER_LOST = "worker_lost"
    """The lease ran out: the worker died, or could not be heard."""
    CRASH = "crash"
    """The model's process died."""
    OOM = "oom"
    """Memory ran out."""
    TIMEOUT = "timeout"
    """The attempt, or the model's call, took longer than it may."""
    UNAVAILABLE = "unavailable"
    """Something that it needs does not answer now: a store, an endpoint, a model that is being loaded."""
    OVERLOADED = "overloaded"
    """Something that it needs has too much to do."""
    STORAGE = "storage"
    """A store failed in another way, or the object changed while it was read."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISON = "poison"
    """It has cost too many processes, also by itself."""
    DRAINED = "drained"
    """The worker leaves."""
    DEFECT = "defect"
    """Something in headrace itself raised, or is missing where it runs: never the data's fault."""


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
"""What the death of a model's process stands for, where it is not a crash."""


def cause_of(error: BaseException) -> Cause:
    """The cause that an error stands for; of one that is not headrace's own, `Cause.DEFECT`.

    A model that raised for want of memory (MemoryError chained to a ModelError) ran out of memory.
    """
    if isinstance(error, e.InstanceLostError):
        return _DEATHS.get(getattr(error, "cause", None) or "", Cause.CRASH)
    cause = next((_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES), Cause.DEFECT)
    if cause is Cause.MODEL and any(isinstance(link, MemoryError) for link in _chain(error)):
        return Cause.OOM
    return cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """What it was raised from, and so on; each once, since chains can be made to bite their tails."""
    seen: set[int] = set()
    link = error.__cause__
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
