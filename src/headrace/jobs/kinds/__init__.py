"""The contract of job kinds (`infer`, `transform`, `stream`): attempts, runners, models, outcomes."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from typing_extensions import override

from headrace.core.errors import CancelledRequestError, ConfigError, HeadraceError
from headrace.core.predictor import Predictor, PredictorStatistics, RequestTimes
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.jobs.job import (
    Cancelled,
    Completed,
    Expired,
    Failed,
    Job,
    JobFailure,
    JobProgress,
    Kind,
    Outcome,
    Released,
    ResultRef,
)
from headrace.jobs.state import Cause, GiveUp, cause_of, decide
from headrace.jobs.tracing import AttemptSpan

T = TypeVar("T")

MESSAGE_CHARS_MAX: Final = 2000
_CRASHES: Final = frozenset({Cause.CRASH, Cause.OOM})
_DEFECT_RETRY_MS: Final = 10_000

_log = logging.getLogger("headrace.jobs")


class StopReason(StrEnum):
    """The reason why an attempt is stopped."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """The job's deadline has passed."""
    TIME_LIMIT = "time_limit"
    LOST = "lost"
    """The lease is no longer valid: the attempt does not count any more."""
    DRAIN = "drain"
    """The worker is stopping: the job is released and continues elsewhere."""


class AttemptStoppedError(Exception):
    """The attempt was stopped. Workers never let this error escape, so it is not a HeadraceError."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(f"the attempt was stopped: {reason.value}")
        self.reason: Final = reason


class Attempt:
    """One attempt at a job.

    Its kind works in one thread; other threads call `stop` and read its state.

    Code with long waits calls `raise_if_stopped` or `wait_for`, or registers with
    `add_stop_callback`. A stopped attempt soon raises AttemptStoppedError; its output no longer
    counts.
    """

    def __init__(self, job: Job, span: AttemptSpan | None = None) -> None:
        self.job: Final = job
        self.span: Final = span
        """The span of the attempt; None without a tracer."""
        self.cursor: Mapping[str, Any] | None = job.cursor
        self._lock = threading.Lock()
        self.stopped: StopReason | None = None
        """The reason why the attempt was stopped; None while it may continue. Only `stop` sets it."""
        self._stop_callbacks: list[Callable[[], None]] = []
        self._changed = threading.Event()
        self._read_progress: Callable[[], JobProgress | None] | None = None

    def set_progress_source(self, read: Callable[[], JobProgress | None]) -> None:
        """Set the function that returns the current progress.

        Any thread may call it; it must be fast.
        """
        self._read_progress = read

    @property
    def progress(self) -> JobProgress | None:
        """The current progress for heartbeats and the settlement; None if reading it failed."""
        try:
            return self._read_progress() if self._read_progress else None
        except Exception:  # noqa: BLE001 - one failure must not stop the heartbeats of others
            _log.exception("the progress of an attempt could not be read", extra={"job": self.job.id})
            return None

    def stop(self, reason: StopReason) -> None:
        """Stop the attempt. The first reason stays, except that LOST replaces every other."""
        with self._lock:
            if self.stopped is not None:
                if reason is StopReason.LOST:
                    self.stopped = reason
                return
            self.stopped = reason
            callbacks, self._stop_callbacks = self._stop_callbacks, []
        self._changed.set()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - the other callbacks must run
                _log.exception("a stop callback of an attempt failed", extra={"job": self.job.id})

    def raise_if_stopped(self) -> None:
        """Raise AttemptStoppedError if the attempt was stopped."""
        if self.stopped is not None:
            raise AttemptStoppedError(self.stopped)

    def add_stop_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the attempt is stopped, or at once if it is stopped already.

        The stopping thread makes the call.
        """
        with self._lock:
            if self.stopped is None:
                self._stop_callbacks.append(callback)
                return
        callback()

    def wait_for(self, future: "Future[T]", abandon: Callable[["Future[T]"], None]) -> T:
        """Return the future's result.

        If the attempt stops first, abandon the future and raise AttemptStoppedError.
        """
        self._changed.clear()
        future.add_done_callback(lambda _: self._changed.set())
        while not future.done():
            if self.stopped is not None:
                abandon(future)
                raise AttemptStoppedError(self.stopped)
            self._changed.wait()
            self._changed.clear()
        self.raise_if_stopped()
        return future.result()


class KindRunner(Protocol):
    """A runner of the jobs of one kind.

    Many threads call `run`, once for each attempt. `run` returns when the result is durable, and
    raises the error that prevented it: AttemptStoppedError if the attempt was stopped. Two runs of
    a job, even on two workers at once, are harmless: output is written under the lease number, or
    with equal bytes to the same URI.
    """

    def run(self, attempt: Attempt) -> ResultRef:
        """Run one attempt of a job, and return the reference to its result."""
        ...

    def discard(self, attempt: Attempt) -> None:
        """Delete the output of an attempt that does not count.

        Best effort; the sweeper removes the rest.
        """
        ...


class JobPredictor(Predictor, Protocol):
    """A predictor whose running requests can be abandoned."""

    @override
    def submit(
        self,
        request: InferRequest,
        *,
        alone: bool = False,
        strict: bool = False,
        times: RequestTimes | None = None,
    ) -> "Future[InferResponse]":
        """Submit a request as `Predictor.submit` does. Requests of several jobs share model calls.

        A request with `alone` does not share its call. `times` are filled in, if given.
        """
        ...

    def abandon(self, future: "Future[InferResponse]") -> None:
        """Abandon a request.

        A call without remaining requests is stopped, if necessary with its process.

        The future fails with CancelledRequestError, or completes if the response came first.
        """
        ...


class Models(Protocol):
    """The models of a worker. Their creator starts and stops them."""

    def predictor(self, model: str) -> JobPredictor:
        """Return the model ``name`` or ``name@version``.

        Raise ModelNotFoundError or ModelNotReadyError.
        """
        ...

    def identity(self, model: str) -> str:
        """Return a string that changes with the model's file or code.

        A resumed run needs the same identity.
        """
        ...


@dataclass(slots=True)
class AttemptPredictor(Predictor):
    """A predictor for one attempt, with all its requests abandoned at once when the attempt stops.

    It serves code that submits from its own threads, such as a transform. Starting and stopping it
    does not affect the model. The sequences of its requests belong to the job of this id.
    """

    predictor: JobPredictor
    job_id: str
    in_flight_max: int = 3  # pyright: ignore[reportIncompatibleMethodOverride] - a field implements it
    """Enough to keep a model busy. The model accepts more, for all jobs of the worker together."""
    _pending: set["Future[InferResponse]"] = field(default_factory=set["Future[InferResponse]"])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: bool = False

    def stop_with(self, attempt: Attempt, drain: Callable[[], None]) -> None:
        """Arrange that a stop of the attempt calls `drain` and abandons the requests that cannot count."""

        def end() -> None:
            drain()
            # A draining worker's calls may still count for the next attempt; other calls are
            # useless.
            if attempt.stopped is not StopReason.DRAIN:
                self.abandon_all()

        attempt.add_stop_callback(end)

    def abandon_all(self) -> None:
        """Abandon all requests, and refuse new ones."""
        with self._lock:
            self._over = True
            pending: Iterable[Future[InferResponse]] = tuple(self._pending)
        for future in pending:
            self.predictor.abandon(future)

    @property
    @override
    def metadata(self) -> ModelMetadata:
        return self.predictor.metadata

    @override
    def submit(self, request: InferRequest, *, strict: bool = False) -> "Future[InferResponse]":
        if self._over:
            raise CancelledRequestError("the attempt was stopped")
        # The predictions must not depend on other running jobs, because a resumed attempt writes
        # them again, byte for byte.
        future = self.predictor.submit(request.within(self.job_id), alone=True, strict=strict)
        with self._lock:
            self._pending.add(future)
        future.add_done_callback(self._forget)
        if self._over:
            self.predictor.abandon(future)
        return future

    def _forget(self, future: "Future[InferResponse]") -> None:
        with self._lock:
            self._pending.discard(future)

    @override
    def statistics(self) -> PredictorStatistics:
        return self.predictor.statistics()

    @override
    def start(self) -> None:
        """Do nothing: the model is already running."""

    @override
    def stop(self, *, drain: bool = True) -> None:
        """Do nothing: the model keeps running for other attempts."""


class AttemptRunner:
    """A runner of attempts by their kinds, which turns every error into an outcome.

    Args:
        kinds: The runners by kind.
        hide: A URI prefix to hide in messages; see `outcome_of_error`.
        share: Draws the jitter of a retry's delay, 0 to 1.
    """

    def __init__(self, kinds: Mapping[Kind, KindRunner], *, hide: str, share: Callable[[], float]) -> None:
        self._kinds = kinds
        self._hide = hide
        self._share = share

    def run(self, attempt: Attempt) -> Outcome | None:
        """Run the attempt. Return its outcome; None if it does not count."""
        try:
            attempt.raise_if_stopped()
            result = self._runner(attempt.job.spec.kind).run(attempt)
        except BaseException as error:  # noqa: BLE001 - every job needs an outcome
            if not isinstance(error, HeadraceError | AttemptStoppedError):
                _log.exception("a job failed in headrace itself", extra={"job": attempt.job.id})
            return self.outcome_of(attempt, error)
        return None if attempt.stopped is StopReason.LOST else Completed(result)

    def outcome_of(self, attempt: Attempt, error: BaseException) -> Outcome | None:
        """Return the outcome of an attempt that raised; None if it does not count. Never raise."""
        try:
            if isinstance(error, HeadraceError) and error.public_message != str(error):
                _log.warning("an attempt failed: %s", error, extra={"job": attempt.job.id})
            return outcome_of_error(attempt, error, share=self._share(), hide=self._hide)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("the outcome of an error could not be determined", extra={"job": attempt.job.id})
            failure = JobFailure(Cause.DEFECT, "headrace itself failed; see its log for this job's id")
            return Failed(failure, _DEFECT_RETRY_MS)

    def discard(self, attempt: Attempt) -> None:
        """Delete the output of an attempt that does not count."""
        runner = self._kinds.get(attempt.job.spec.kind)
        if runner is not None:
            runner.discard(attempt)

    def _runner(self, kind: Kind) -> KindRunner:
        runner = self._kinds.get(kind)
        if runner is None:
            raise ConfigError(f"this worker runs no jobs of kind {kind!r} (it runs {', '.join(self._kinds)})")
        return runner


def outcome_of_error(
    attempt: Attempt, error: BaseException, *, share: float, hide: str = ""
) -> Outcome | None:
    """Return the outcome of an attempt that raised; None if its lease is lost.

    Args:
        attempt: The attempt.
        error: The raised error.
        share: The position of a retry's delay in the jitter's range, 0 to 1.
        hide: A URI prefix to hide in messages: the server's own store.
    """
    match attempt.stopped:
        case StopReason.LOST:
            return None
        case StopReason.CANCELLED:
            return Cancelled()
        case StopReason.EXPIRED:
            return Expired()
        case StopReason.DRAIN:
            return Released(attempt.cursor)
        case StopReason.TIME_LIMIT:
            limit_s = attempt.job.spec.time_limit_s
            why = f"the attempt took longer than its time limit of {limit_s:g} s, and was stopped"
            return _failed(attempt, JobFailure(Cause.TIMEOUT, why, "DeadlineError"), share, None)
        case None:
            pass
    cause = cause_of(error)
    if cause is Cause.CANCELLED:
        # A request was abandoned, but the job was not cancelled.
        cause = Cause.DEFECT
    earlier = attempt.job.failure
    times = earlier.times + 1 if earlier is not None and earlier.cause is cause else 1
    failure = JobFailure(cause, client_message(error, hide), type(error).__name__, times=times)
    return _failed(attempt, failure, share, getattr(error, "retry_after_s", None))


def _failed(attempt: Attempt, failure: JobFailure, share: float, retry_after_s: float | None) -> Failed:
    job = attempt.job
    crashed = failure.cause in _CRASHES
    decision = decide(
        failure.cause, job.attempt, job.spec.attempts_max, share, retry_after_s, times=failure.times
    )
    if isinstance(decision, GiveUp):
        if failure.times > 1:
            failure = replace(failure, message=f"{failure.message}; {decision.reason}")
        return Failed(failure, None, crashed)
    return Failed(failure, decision.delay_ms, crashed, decision.counts)


def client_message(error: BaseException, hide: str) -> str:
    """Return a message for the client: headrace's own errors verbatim, others as an internal error."""
    if not isinstance(error, HeadraceError):
        return "headrace itself failed; see its log for this job's id"
    text = error.public_message
    if hide:
        text = text.replace(hide, "store:")
    return text if len(text) <= MESSAGE_CHARS_MAX else text[: MESSAGE_CHARS_MAX - 1] + "…"
