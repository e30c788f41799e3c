"""A predictor for pipeline tests that answers when, and in the order, that a test says."""

import threading
from concurrent.futures import Future

import numpy as np

from headrace.core import InferRequest, InferResponse, ModelMetadata, RowFailure, Tensor, TensorSpec
from headrace.core.predictor import PredictorStatistics


class ScriptedPredictor:
    """Doubles its input `x`. With `hold`, answers wait until `release` is called, in the order that it says."""

    def __init__(self, *, columns: int = 2, rows_max: int = 4, in_flight_max: int = 8, hold: bool = False):
        self.metadata = ModelMetadata(
            "double", inputs=(TensorSpec("x", "FP32", (-1, columns)),), max_batch_rows=rows_max
        )
        self.in_flight_max = in_flight_max
        self.hold = hold
        self.requests: list[InferRequest] = []
        self.held: list[tuple[InferRequest, Future[InferResponse]]] = []
        self.arrived = threading.Condition()
        self.refuse_values: set[float] = set()
        self.drop_a_row_of_batch: int | None = None

    def start(self) -> None: ...

    def stop(self, *, drain: bool = True) -> None: ...

    def statistics(self) -> PredictorStatistics:
        return PredictorStatistics(calls=len(self.requests))

    def submit(self, request: InferRequest) -> "Future[InferResponse]":
        future: Future[InferResponse] = Future()
        with self.arrived:
            self.requests.append(request)
            if self.hold:
                self.held.append((request, future))
                self.arrived.notify_all()
                return future
        future.set_result(self.answer(request))
        return future

    def answer(self, request: InferRequest) -> InferResponse:
        x = request.inputs[0].data
        refused = [i for i, v in enumerate(x[:, 0]) if float(v) in self.refuse_values]
        good = np.delete(x, refused, axis=0)
        if self.drop_a_row_of_batch == len(self.requests) - 1:
            good = good[1:]
        outputs = (Tensor("y", good[:, 0] * 2),) if len(good) else ()
        return InferResponse(outputs, "double", failures=tuple(RowFailure(i, "refused") for i in refused))

    def wait_for_held(self, count: int) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.held) >= count, 10)

    def release(self, index: int) -> None:
        request, future = self.held[index]
        future.set_result(self.answer(request))
