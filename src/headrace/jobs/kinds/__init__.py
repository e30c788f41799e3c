"""The contract of job kinds (`infer`, `transform`, `stream`) and of the models that they use."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from typing_extensions import override

from headrace.core.errors import CancelledRequestError
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.jobs.attempt import Attempt, StopReason
from headrace.jobs.job import ResultRef

"""The job kinds: `infer` (one payload), `transform` (a batch transform), `stream` (parts)."""


class JobPredictor(Predictor, Protocol):
    """A predictor whose running requests can be abandoned."""

    @override
    def submit(
        self, request: InferRequest, *, alone: bool = False, strict: bool = False
    ) -> "Future[InferResponse]":
        """Submit a request as `Predictor.submit` does. Requests of several jobs share model calls.

        A request with `alone` does not share its call. A `strict` request succeeds or fails as a
        whole: it raises RefusedRowsError for rows that the model refused, and PredictError for an
        error of the model.
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


@dataclass(slots=True)
class AttemptPredictor(Predictor):
    """A predictor for one attempt, with all its requests abandoned at once when the attempt stops.

    It serves code that submits from its own threads, such as a transform. Starting and stopping it
    does not affect the model.
    """

    predictor: JobPredictor
    in_flight_max: int = 3  # pyright: ignore[reportIncompatibleMethodOverride] - a field implements it
    """Enough to keep a model busy. The model accepts more, for all jobs of the worker together."""
    _pending: set["Future[InferResponse]"] = field(default_factory=set["Future[InferResponse]"])
    _lock: Lock = field(default_factory=Lock)
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
    def submit(self, request: InferRequest) -> "Future[InferResponse]":
        if self._over:
            raise CancelledRequestError("the attempt was stopped")
        # The predictions must not depend on other running jobs, because a resumed attempt writes
        # them again, byte for byte.
        future = self.predictor.submit(request, alone=True)
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
