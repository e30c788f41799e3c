"""An Asker over scripted answers, in a loop whose time passes only while all wait."""

import asyncio

from headrace.client.asking import Asker
from headrace.client.circuit import Circuit
from headrace.client.retry import HttpAnswer
from headrace.core.retry import RetryPolicy


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer instead of waiting for it; for coroutines without sockets."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        really_select = self._selector.select

        def select(timeout):
            self.now_s += timeout or 0.0
            return really_select(0)

        self._selector.select = select

    def time(self):
        return self.now_s


def run(coroutine):
    """The coroutine's result, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


class LoopClock:
    """The running loop's time, as a `Clock`."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def sleep(self, seconds, wake=None):
        raise NotImplementedError


class ScriptedConnection:
    """Answers with what `script` says, in order; the last is repeated. Exceptions are raised, functions called."""

    def __init__(self, *script, attempt_s: float = 0.0):
        self.script = list(script)
        self.calls = []
        self.asked_s = []
        self.attempt_s = attempt_s
        self.under_way = 0
        self.under_way_peak = 0

    async def send(self, call, timeout_s):
        self.calls.append(call)
        self.asked_s.append(LoopClock().now())
        self.under_way += 1
        self.under_way_peak = max(self.under_way, self.under_way_peak)
        try:
            await asyncio.sleep(self.attempt_s)
            said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            said = said(call) if callable(said) else said
            if isinstance(said, BaseException):
                raise said
            return said
        finally:
            self.under_way -= 1


def status(code: int, body: bytes = b"", **headers: str) -> HttpAnswer:
    return HttpAnswer(code, body, {name.replace("_", "-"): value for name, value in headers.items()})


def asker_over(connection, *, retry_s: float = 10.0, attempts_max: int = 4, failures_max: int = 100) -> Asker:
    return Asker(
        connection,
        Circuit(failures_max=failures_max),
        policy=RetryPolicy(retry_s),
        timeout_s=5.0,
        attempts_max=attempts_max,
        clock=LoopClock(),
        seed=1,
    )


def predicting(url: str, **more):
    """A started predictor of `url`, as a context manager."""
    from contextlib import contextmanager

    from headrace.client.endpoint import endpoint_predictor

    @contextmanager
    def started():
        predictor = endpoint_predictor(url, **{"environ": {}, "retry_s": 10.0, **more})
        predictor.start()
        try:
            yield predictor
        finally:
            predictor.stop(drain=False)

    return started()


def request_of(*values, id="batch-0", name="x"):
    """A request with a column `x`, one value a row, and a second one of zeros."""
    import numpy as np

    from headrace.core import InferRequest, Tensor

    data = np.array([[v, 0] for v in values], np.float32).reshape(len(values), 2)
    return InferRequest((Tensor(name, data),), id=id)
