"""What anything that answers requests looks like: an engine in this process, or an endpoint elsewhere."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from headrace.core.service import Service
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata


@dataclass(frozen=True, slots=True)
class PredictorStatistics:
    """How a predictor has fared so far. Times are sums over its instances (or connections)."""

    instances: int = 0
    calls: int = 0
    rows: int = 0
    failed_rows: int = 0
    retries: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    """Time in which an instance stood idle, with nothing waiting, since its first call."""

    @property
    def busy_share(self) -> float:
        """Busy time over busy + starved time, 0 to 1; 0 before the first call."""
        total = self.busy_s + self.starved_s
        return self.busy_s / total if total else 0.0


def settle(future: "Future[InferResponse]", answer: InferResponse | BaseException) -> BaseException | None:
    """Hand an answer to its future; what a callback raised, which must not end the thread that has others to answer.

    Futures themselves log what callbacks raise, but let SystemExit and the like through.
    """
    try:
        if isinstance(answer, InferResponse):
            future.set_result(answer)
        else:
            future.set_exception(answer)
    except BaseException as error:  # noqa: BLE001 - see above
        return error
    return None


class Predictor(Service, Protocol):
    """Answers requests. Stages and modes are handed one and never know which.

    `submit` returns at once with a future, and blocks only while `in_flight_max` requests are unanswered
    (back-pressure). Futures complete in any order. A future fails with a `PredictorError` or `ModelError`
    when the whole request failed; rows that failed alone are in `InferResponse.failures`. Cancelling a
    future that has not begun takes its request out; one that has begun finishes unseen. Async callers use
    `asyncio.wrap_future`.
    """

    @property
    def metadata(self) -> ModelMetadata:
        """The model's; known once started."""
        ...

    @property
    def in_flight_max(self) -> int:
        """How many requests keep it fully busy; the most that may be unanswered at once."""
        ...

    def submit(self, request: InferRequest) -> "Future[InferResponse]":
        """Ask. Raises StoppedError when not running."""
        ...

    def statistics(self) -> PredictorStatistics:
        """A snapshot; safe from any thread."""
        ...
