"""The engine: a Predictor around a Model, with instances in threads.

A request goes to an idle instance at once; while all are busy it waits in one queue. Nothing is ever dropped
without an answer: a request ends with a response, an error, or its own cancellation.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import DeadlineError, HeadraceError, ModelInputError, StoppedError
from headrace.core.model import Model
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.engine.instance import Instance, predict_error

LOAD_TIMEOUT_S = 600.0
"""How long an instance may take to load."""


@dataclass(slots=True)
class InstanceStatistics:
    """One instance's figures so far; written by its own thread."""

    calls: int = 0
    rows: int = 0
    failed_rows: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0


_Waiting = tuple[InferRequest, "Future[InferResponse]"]


class Engine:
    """Implements `headrace.core.Predictor`; see there for what is guaranteed.

    `make_model` is called once per instance, in the instance's own thread. A request whose deadline has passed is
    never begun, and one that passes its deadline while it runs fails when its call returns. Batches that the
    model refuses are bisected.
    """

    def __init__(
        self,
        make_model: Callable[[], Model],
        *,
        name: str,
        instances: int = 1,
        in_flight_max: int | None = None,
        fingerprint: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._make_model = make_model
        self._instances = instances
        # One running and one waiting for each instance: then no instance waits for the next.
        self._in_flight_max = in_flight_max or 2 * instances + 1
        self._fingerprint = fingerprint
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._in_flight = 0
        self._state = "new"
        self._threads: list[threading.Thread] = []
        self._statistics: list[InstanceStatistics] = []
        self._metadata: ModelMetadata | None = None
        self._loaded = 0
        self._load_error: BaseException | None = None

    @property
    def metadata(self) -> ModelMetadata:
        """The model's; StoppedError before `start`."""
        if self._metadata is None:
            raise StoppedError(f"model {self.name} is not loaded: start the engine first")
        return self._metadata

    @property
    def in_flight_max(self) -> int:
        """The most requests unanswered at once; `submit` blocks beyond."""
        return self._in_flight_max

    def start(self) -> None:
        """Make, load and warm up all instances; ModelLoadError when one fails, and then none is left."""
        with self._changed:
            if self._state == "running":
                return
            self._state, self._loaded, self._load_error = "running", 0, None
            self._statistics = [InstanceStatistics() for _ in range(self._instances)]
            self._threads = [
                threading.Thread(
                    target=self._serve, args=(s,), name=f"headrace-{self.name}-{i}", daemon=True
                )
                for i, s in enumerate(self._statistics)
            ]
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._loaded == self._instances, LOAD_TIMEOUT_S)
            error = self._load_error
            if error is None and self._loaded < self._instances:
                error = TimeoutError(f"model {self.name} did not load within {LOAD_TIMEOUT_S:.0f} s")
        if error is not None:
            self.stop(drain=False)
            raise error

    def stop(self, *, drain: bool = True) -> None:
        """Finish what was accepted, or fail it with StoppedError; then close the instances."""
        with self._changed:
            if self._state != "running":
                return
            self._state = "stopped"
            dropped = [] if drain else list(self._queue)
            if not drain:
                self._queue.clear()
            self._changed.notify_all()
        for _, future in dropped:
            self._fail(future, StoppedError(f"model {self.name} was stopped before this request began"))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def submit(self, request: InferRequest) -> "Future[InferResponse]":
        """Ask; blocks while `in_flight_max` requests are unanswered. Raises StoppedError, ModelInputError."""
        self._check(request)
        future: Future[InferResponse] = Future()
        with self._changed:
            while self._in_flight >= self._in_flight_max and self._state == "running":
                self._changed.wait()
            if self._state != "running":
                raise StoppedError(f"model {self.name} is not running")
            self._in_flight += 1
            self._queue.append((request, future))
            self._changed.notify_all()
        return future

    def _check(self, request: InferRequest) -> None:
        """Names, types and shapes must be those that the model declares, where it declares any."""
        _ = request.rows
        specs = self._metadata.inputs if self._metadata else ()
        by_name = {t.name: t for t in request.inputs}
        for spec in specs:
            tensor = by_name.get(spec.name)
            if tensor is None:
                given = ", ".join(by_name)
                raise ModelInputError(self.name, f"input {spec.name!r} is missing (given: {given})")
            if spec.shape is None:
                continue
            shape = tensor.data.shape
            fits = len(shape) == len(spec.shape) and all(
                want in (-1, have) for have, want in zip(shape[1:], spec.shape[1:], strict=True)
            )
            if not fits or tensor.datatype != spec.datatype:
                raise ModelInputError(
                    self.name,
                    f"input {spec.name!r} takes {spec.datatype} {list(spec.shape)}, but was given "
                    f"{tensor.datatype} {list(shape)}",
                )

    def statistics(self) -> PredictorStatistics:
        """Sums over the instances."""
        every = self._statistics
        return PredictorStatistics(
            instances=len(every),
            calls=sum(s.calls for s in every),
            rows=sum(s.rows for s in every),
            failed_rows=sum(s.failed_rows for s in every),
            busy_s=sum(s.busy_s for s in every),
            starved_s=sum(s.starved_s for s in every),
        )

    def instance_statistics(self) -> tuple[InstanceStatistics, ...]:
        """Each instance's own figures."""
        return tuple(self._statistics)

    def _serve(self, statistics: InstanceStatistics) -> None:
        """An instance's thread: load, then answer until stopped."""
        try:
            instance = Instance(self._make_model, self.name)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts
            self._report_loaded(None, error)
            return
        self._report_loaded(instance.metadata(self._fingerprint), None)
        try:
            while (waiting := self._take(statistics)) is not None:
                self._answer(instance, waiting, statistics)
        finally:
            instance.close()

    def _report_loaded(self, metadata: ModelMetadata | None, error: BaseException | None) -> None:
        with self._changed:
            self._metadata = metadata or self._metadata
            self._load_error = self._load_error or error
            self._loaded += 1
            self._changed.notify_all()

    def _take(self, statistics: InstanceStatistics) -> _Waiting | None:
        """The next request; None when stopped and the queue is empty. Waiting is starving, once there was work."""
        with self._changed:
            if not self._queue and self._state == "running":
                idle_from = self._clock.now()
                while not self._queue and self._state == "running":
                    self._changed.wait()
                if statistics.calls and self._queue:
                    statistics.starved_s += self._clock.now() - idle_from
            return self._queue.popleft() if self._queue else None

    def _answer(self, instance: Instance, waiting: _Waiting, statistics: InstanceStatistics) -> None:
        request, future = waiting
        if not future.set_running_or_notify_cancel():
            self._leave()
            return
        began = self._clock.now()
        if request.deadline is not None and began >= request.deadline:
            self._fail(future, DeadlineError(f"request {request.id} waited past its deadline for {self.name}"))
            return
        try:
            response = instance.answer(request)
        except HeadraceError as error:
            self._fail(future, error)
            return
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            self._fail(future, predict_error(self.name, error))
            return
        finally:
            ended = self._clock.now()
            statistics.busy_s += ended - began
            statistics.calls += 1
        statistics.rows += request.rows - len(response.failures)
        statistics.failed_rows += len(response.failures)
        if request.deadline is not None and ended >= request.deadline:
            self._fail(future, DeadlineError(f"{self.name} answered request {request.id} past its deadline"))
            return
        self._leave()
        future.set_result(response)

    def _fail(self, future: "Future[InferResponse]", error: BaseException) -> None:
        self._leave()
        if not future.cancelled():
            future.set_exception(error)

    def _leave(self) -> None:
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()
