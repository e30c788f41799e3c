"""Predictors for pipeline tests, which respond at the time and in the order of the test."""

import threading
from concurrent.futures import Future

import numpy as np

from headrace.core import InferRequest, InferResponse, ModelMetadata, RowFailure, Tensor, TensorSpec
from headrace.core.predictor import PredictorStatistics


class ScriptedPredictor:
    """A predictor that doubles its input `x`.

    With `hold`, responses wait until `release` is called, in the order that it gives.
    """

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


class SummingPredictor(ScriptedPredictor):
    """A predictor that keeps a running sum of each sequence, and fails for a sequence that it does
    not have, as an engine does.
    """

    def __init__(
        self, *, columns: int = 1, rows_max: int = 4, live_max: int | None = None, hold: bool = False
    ):
        super().__init__(columns=columns, rows_max=rows_max, hold=hold)
        self.metadata = ModelMetadata(
            "sum",
            inputs=(TensorSpec("x", "FP32", (-1, columns)),),
            max_batch_rows=rows_max,
            is_stateful=True,
            sequences_live_max=live_max,
        )
        self.sums: dict[str, float] = {}
        self.live_most = 0
        self.ended: list[tuple[str, str]] = []

    @property
    def asked(self) -> list[InferRequest]:
        """The requests with rows."""
        return [r for r in self.requests if r.inputs]

    def answer(self, request: InferRequest) -> InferResponse:
        if not request.inputs:
            id = request.parameters["sequence_id"]
            assert request.parameters["sequence_end"] is True
            if self.sums.pop(id, None) is None:
                raise AssertionError(f"{id} does not live")
            self.ended.append((id, "told"))
            return InferResponse((), "sum")
        values = request["x"][:, -1].tolist()
        ids = request["sequence_id"].tolist()
        alone = [False] * len(ids)
        starts, ends = (
            request[name].tolist() if any(t.name == name for t in request.inputs) else alone
            for name in ("sequence_start", "sequence_end")
        )
        out, failures = [], []
        for row, (id, start, end, value) in enumerate(zip(ids, starts, ends, values, strict=True)):
            if not id:
                out.append(value)
                continue
            if start:
                if id in self.sums:
                    self.ended.append((id, "restarted"))
                self.sums[id] = 0.0
            self.live_most = max(self.live_most, len(self.sums))
            if id not in self.sums:
                failures.append(RowFailure(row, f"sequence {id} is gone"))
            elif value in self.refuse_values:
                failures.append(RowFailure(row, "refused"))
            else:
                self.sums[id] += value
                out.append(self.sums[id])
            if end and self.sums.pop(id, None) is not None:
                self.ended.append((id, "with its row"))
        outputs = (Tensor("y", np.array(out, np.float32)),) if out else ()
        return InferResponse(outputs, "sum", failures=tuple(failures))
