"""Each broken service or predictor fails its suite with a message that names the defect."""

import threading

import numpy as np
import pytest

from headrace.core import InferRequest, RowError, Tensor
from headrace.core.errors import StoppedError
from headrace.core.tensor import InferResponse
from headrace.engine import Engine
from headrace.testing import EchoModel, check_predictor, check_service

REQUEST = InferRequest((Tensor("x", np.zeros((2, 1), np.float32)),), id="r")


class Ticker:
    """A correct service with one thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.thread = None
        self.over = threading.Event()

    def start(self):
        with self.lock:
            if self.thread is None:
                self.over = threading.Event()
                self.thread = threading.Thread(target=self.over.wait, args=(30,), daemon=True, name="tick")
                self.thread.start()

    def stop(self, *, drain=True):
        with self.lock:
            if self.thread is not None:
                self.over.set()
                self.thread.join()
                self.thread = None


class StartsTwice(Ticker):
    def start(self):
        self.thread = None
        super().start()


class LeavesThread(Ticker):
    def stop(self, *, drain=True):
        self.thread = None


class FailsAtSecondStop(Ticker):
    def stop(self, *, drain=True):
        if self.thread is None:
            raise RuntimeError("not running")
        super().stop()


def test_correct_service_passes():
    check_service(Ticker)


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        (StartsTwice, AssertionError, "a second start created threads: tick"),
        (LeavesThread, AssertionError, r"threads still run after stop.*: tick"),
        (FailsAtSecondStop, RuntimeError, "not running"),
    ],
)
def test_broken_service_fails(broken, error, message):
    with pytest.raises(error, match=message):
        check_service(broken)


class BrokenPredictor:
    """An engine; subclasses break one guarantee each."""

    def __init__(self):
        self.engine = Engine(EchoModel, name="m")

    def __getattr__(self, name):
        return getattr(self.engine, name)


class NeverRefuses(BrokenPredictor):
    def submit(self, request):
        try:
            return self.engine.submit(request)
        except StoppedError:
            return None


class ForgetsTheId(BrokenPredictor):
    def submit(self, request):
        future = self.engine.submit(request)
        future.result(30)
        done = type(future)()
        done.set_result(InferResponse(future.result().outputs))
        return done


class LosesARow(BrokenPredictor):
    def submit(self, request):
        future = self.engine.submit(request)
        output = future.result(30).outputs[0]
        done = type(future)()
        done.set_result(InferResponse((Tensor(output.name, output.data[1:]),), id=request.id))
        return done


class Miscounts(BrokenPredictor):
    def statistics(self):
        return type(self.engine.statistics())()


class NeverResponds(BrokenPredictor):
    def submit(self, request):
        return type(self.engine.submit(request))()


class Refusing(EchoModel):
    """A model that refuses the second row."""

    def predict(self, **tensors):
        if len(tensors["x"]) > 1:
            raise RowError(1, "refused")
        return super().predict(**tensors)


class IgnoresStrict(BrokenPredictor):
    def __init__(self):
        self.engine = Engine(Refusing, name="m", warm_up=False)

    def submit(self, request, *, strict=False):
        return self.engine.submit(request)


def test_correct_predictor_passes():
    check_predictor(lambda: Engine(EchoModel, name="m"), REQUEST)
    check_predictor(lambda: Engine(Refusing, name="m", warm_up=False), REQUEST)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (NeverRefuses, "submit before start must raise StoppedError"),
        (ForgetsTheId, "the response to request 'r' has id ''"),
        (LosesARow, "output 'output' has 1 rows, expected 2"),
        (Miscounts, "statistics count 0 rows, expected 14"),
        (NeverResponds, "unfinished after stop"),
        (IgnoresStrict, "a strict request with a refused row ended with None"),
    ],
)
def test_broken_predictor_fails(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_predictor(broken, REQUEST)
