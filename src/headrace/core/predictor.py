"""The contracts of running components: a service, and the predictor, a service that answers requests.

A predictor is an engine in this process, or a remote endpoint.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata


class Service(Protocol):
    """A component with threads, processes or connections of its own.

    Every implementation guarantees (`headrace.testing.check_service` verifies this):

    - A second `start` does nothing.
    - `stop` before `start`, and a second `stop`, do nothing.
    - After `stop` returns, no thread of the service runs.

    Ordinary threads call these methods; they may block.
    """

    def start(self) -> None:
        """Start, and return when ready. On an error, raise it and leave nothing running."""
        ...

    def stop(self, *, drain: bool = True) -> None:
        """Stop.

        With `drain`, finish accepted work first; without, accepted work fails with `StoppedError`.
        """
        ...


@dataclass(frozen=True, slots=True)
class PredictorStatistics:
    """Cumulative counters of a predictor. Times are sums over its instances (or connections)."""

    instances: int = 0
    calls: int = 0
    rows: int = 0
    failed_rows: int = 0
    retries: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    """Time for which an instance was idle without waiting requests, since its first call."""

    @property
    def busy_share(self) -> float:
        """Busy time divided by busy plus starved time, 0 to 1; 0 before the first call."""
        total = self.busy_s + self.starved_s
        return self.busy_s / total if total else 0.0


class RequestTimes:
    """The arrival, begin and end of a request, in seconds of the engine's clock; None until known.

    Recorded only if the client passes one. After the death of an instance, the last attempt counts.
    """

    __slots__ = ("arrived_s", "began_s", "ended_s")

    def __init__(self) -> None:
        self.arrived_s: float | None = None
        self.began_s: float | None = None
        self.ended_s: float | None = None


def complete_future(future: "Future[Any]", result: object) -> BaseException | None:
    """Complete a future. Return an exception that one of its callbacks raised, else None.

    Futures log exceptions of callbacks but let SystemExit and the like through. Those must not end
    a thread that has other futures to complete.
    """
    try:
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
    except BaseException as error:  # noqa: BLE001 - see above
        return error
    return None


class Predictor(Service, Protocol):
    """A service that answers inference requests.

    Its users do not know which implementation they have.

    `submit` returns a future at once. It blocks only while `in_flight_max` requests are open
    (back-pressure). Futures complete in any order. A future fails with a `PredictorError` or
    `ModelError` if the whole request failed; `InferResponse.failures` has rows that failed alone.
    Cancelling the future of a waiting request removes the request; a running request finishes
    unseen. Async code uses `asyncio.wrap_future`.
    """

    @property
    def metadata(self) -> ModelMetadata:
        """Metadata of the model, known after `start`."""
        ...

    @property
    def in_flight_max(self) -> int:
        """Number of open requests that keeps the predictor busy; the limit of open requests."""
        ...

    def submit(self, request: InferRequest, *, strict: bool = False) -> "Future[InferResponse]":
        """Submit a request. Raise StoppedError if the predictor is not running.

        A `strict` request succeeds or fails as a whole, and reaches a model of whole requests
        (`ModelMetadata.whole_requests`) unchanged. Its future fails with RefusedRowsError if the model
        refuses a row, and with PredictError if the model raises.
        """
        ...

    def statistics(self) -> PredictorStatistics:
        """Return a snapshot of the counters. Safe from any thread."""
        ...
