"""A RetryingClient over scripted responses, in an event loop with virtual time."""

import asyncio

from headrace.client.retry import CircuitBreaker, HttpResponse
from headrace.client.retrying_client import RetryingClient
from headrace.core.clock import RetryPolicy


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to the next timer; for coroutines without sockets."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        select_now = self._selector.select

        def select(timeout):
            self.now_s += timeout or 0.0
            return select_now(0)

        self._selector.select = select

    def time(self):
        return self.now_s


def run(coroutine):
    """Return the result of a coroutine, run in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


class LoopClock:
    """The time of the running loop, as a `Clock`."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def sleep(self, seconds, wake=None):
        raise NotImplementedError


class ScriptedPool:
    """A pool that returns the items of `script` in order and repeats the last one.

    Exceptions are raised, functions are called with the request.
    """

    def __init__(self, *script, attempt_s: float = 0.0):
        self.script = list(script)
        self.requests = []
        self.sent_s = []
        self.attempt_s = attempt_s
        self.in_flight = 0
        self.in_flight_peak = 0

    async def send(self, request, timeout_s):
        self.requests.append(request)
        self.sent_s.append(LoopClock().now())
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight, self.in_flight_peak)
        try:
            await asyncio.sleep(self.attempt_s)
            outcome = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            outcome = outcome(request) if callable(outcome) else outcome
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome
        finally:
            self.in_flight -= 1


def status(code: int, body: bytes = b"", **headers: str) -> HttpResponse:
    return HttpResponse(code, body, {name.replace("_", "-"): value for name, value in headers.items()})


def client_over(
    pool, *, retry_s: float = 10.0, attempts_max: int = 4, failures_max: int = 100
) -> RetryingClient:
    return RetryingClient(
        pool,
        CircuitBreaker(failures_max=failures_max),
        policy=RetryPolicy(retry_s),
        timeout_s=5.0,
        attempts_max=attempts_max,
        clock=LoopClock(),
        seed=1,
    )


def predicting(url: str, **settings):
    """Return a context manager of a started predictor of `url`."""
    from contextlib import contextmanager

    from headrace.client.endpoint import endpoint_predictor

    @contextmanager
    def started():
        predictor = endpoint_predictor(url, **{"environ": {}, "retry_s": 10.0, **settings})
        predictor.start()
        try:
            yield predictor
        finally:
            predictor.stop(drain=False)

    return started()


def request_of(*values, id="batch-0", name="x"):
    """Return a request with an FP32 input of two columns: one value a row, and zeros."""
    import numpy as np

    from headrace.core import InferRequest, Tensor

    data = np.array([[v, 0] for v in values], np.float32).reshape(len(values), 2)
    return InferRequest((Tensor(name, data),), id=id)
