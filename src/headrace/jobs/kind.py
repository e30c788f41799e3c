"""What a kind of job is: the contract of `infer`, `transform` and `stream`, and what they are handed."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

from headrace.core.errors import CancelledRequestError
from headrace.core.predictor import Predictor, PredictorStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.jobs.attempt import Attempt, StopReason
from headrace.jobs.job import ResultRef


class JobPredictor(Predictor, Protocol):
    """A predictor whose requests can be given up also when they are under way."""

    def submit(
        self, request: InferRequest, *, alone: bool = False, strict: bool = False
    ) -> "Future[InferResponse]":
        """Ask; see `Predictor.submit`. Requests of many jobs share a call of the model, but not those that are `alone`.

        A `strict` one takes all or nothing: RefusedRowsError for rows that the model refused, PredictError for what it raised.
        """
        ...

    def abandon(self, future: "Future[InferResponse]") -> None:
        """Nobody wants the answer any more. A call that nobody wants is ended, if need be with its process.

        The future ends with CancelledRequestError, or with its answer where that was faster.
        """
        ...


class Models(Protocol):
    """The models that a worker has. They are loaded, and let go of, by whoever made them."""

    def predictor(self, model: str) -> JobPredictor:
        """The model of a name, or ``name@version``. ModelNotFoundError, ModelNotReadyError."""
        ...

    def identity(self, model: str) -> str:
        """What changes with the model's file or code: a run that is resumed must have the same."""
        ...


class KindRunner(Protocol):
    """Does the jobs of one kind.

    `run` is called from many threads, once for each attempt. It returns when the result is written for good, and raises what
    kept it from that: AttemptStoppedError when the attempt was told to stop. Done twice, also by two workers at once, it
    does no harm: it writes under the lease's number, or the same bytes to the same place.
    """

    def run(self, attempt: Attempt) -> ResultRef:
        """Do the job."""
        ...

    def discard(self, attempt: Attempt) -> None:
        """Remove what an attempt has written that does not count. Best effort; what it leaves is swept later."""
        ...


@dataclass(slots=True)
class AttemptPredictor:
    """A model as one attempt sees it, all of whose requests can be given up at once.

    For what asks a `Predictor` in threads of its own, such as a transform. Its life is the model's own: starting and
    stopping it does nothing.
    """

    predictor: JobPredictor
    in_flight_max: int = 3
    """What keeps a model busy. Not all that the model takes, which is for as many jobs as the worker has room for."""
    _asked: set["Future[InferResponse]"] = field(default_factory=set["Future[InferResponse]"])
    _lock: Lock = field(default_factory=Lock)
    _over: bool = False

    def end_with(self, attempt: Attempt, drain: Callable[[], None]) -> None:
        """When the attempt is told to stop: `drain` whatever asks, and give up what is asked, unless that may still count."""

        def end() -> None:
            drain()
            # Of a worker that leaves, what the model is doing is for whoever goes on; else nobody wants it.
            if attempt.stopped is not StopReason.DRAIN:
                self.give_up()

        attempt.on_stop(end)

    def give_up(self) -> None:
        """Abandon all that is asked, and refuse what would be."""
        with self._lock:
            self._over = True
            asked: Iterable[Future[InferResponse]] = tuple(self._asked)
        for future in asked:
            self.predictor.abandon(future)

    @property
    def metadata(self) -> ModelMetadata:
        """The model's."""
        return self.predictor.metadata

    def submit(self, request: InferRequest) -> "Future[InferResponse]":
        """Ask, as a batch of its own. CancelledRequestError once all was given up."""
        if self._over:
            raise CancelledRequestError("the attempt was told to stop")
        # What is predicted must not depend on which other jobs run: it is written again, byte for byte, when this is resumed.
        future = self.predictor.submit(request, alone=True)
        with self._lock:
            self._asked.add(future)
        future.add_done_callback(self._forget)
        if self._over:
            self.predictor.abandon(future)
        return future

    def _forget(self, future: "Future[InferResponse]") -> None:
        with self._lock:
            self._asked.discard(future)

    def statistics(self) -> PredictorStatistics:
        """The model's, over all that asked it."""
        return self.predictor.statistics()

    def start(self) -> None:
        """Nothing: the model runs already."""

    def stop(self, *, drain: bool = True) -> None:
        """Nothing: the model goes on for others."""
