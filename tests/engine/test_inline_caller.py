"""Inline calls: the fast path returns, counts and raises what the general path does."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.errors import HeadraceError, ModelInputError, PredictError, RefusedRowsError, StoppedError
from headrace.core.model import Model, RowError
from headrace.core.predictor import RequestTimes
from headrace.core.tensor import InferRequest, Tensor, TensorSpec
from headrace.engine.engine import Engine
from headrace.engine.settings import ServeSettings

INPUTS = (TensorSpec("a", "FP32", (-1, 2)), TensorSpec("b", "INT64", (-1,)))


class Sums(Model):
    """Does what the first number selects: all outcomes of a call."""

    inputs = INPUTS
    outputs = (TensorSpec("sum", "FP64", (-1,)),)
    max_batch_rows = 4
    isolation = "inline"

    def predict(self, a, b):
        wish = a[0, 0]
        a += 1  # they are its own
        match wish:
            case 2:
                raise ValueError("two")
            case 3:
                raise RowError({0: "three"})
            case 4:
                return None
            case 5:
                return {"sum": a.sum(axis=1), "other": b}
            case 6:
                return np.arange(9.0)
            case 7:
                return self.later(a)
            case 8:
                raise SystemExit(1)
            case 9:
                raise ModelInputError("sums", "nine")
        return a.sum(axis=1) + b

    async def later(self, a):
        return a.sum(axis=1)


class Declared(Model):
    """Has one input, whose arrays it does not change."""

    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    isolation = "inline"
    writes_inputs = False

    def predict(self, x):
        return x


class Undeclared(Declared):
    """Declares no inputs."""

    inputs = ()


def engine_of(model: type[Model]) -> Engine:
    settings = ServeSettings(max_batch_delay_ms=0, warm_up=False)
    return Engine(model, name="sums", version="3", serving=settings)


@pytest.fixture(scope="module")
def engine():
    made = engine_of(Sums)
    made.start()
    yield made
    made.stop()


def run_requests(engine: Engine, request: InferRequest, *, short: bool):
    """Return the result of a request and the change of the counters. `times` force the general
    path.
    """
    before = engine.model_statistics()
    try:
        found = engine.infer_inline(request, None if short else RequestTimes())
        assert found is not None
        outcome = (
            found.model_name,
            found.model_version,
            found.id,
            {t.name: t.data.tolist() for t in found.outputs},
        )
    except HeadraceError as error:
        outcome = (type(error), str(error), type(error.__cause__))
    after = engine.model_statistics()
    counted = [
        after.success.count - before.success.count,
        after.fail.count - before.fail.count,
        after.queue.count - before.queue.count,
        after.rows - before.rows,
        after.error_rows - before.error_rows,
        after.calls - before.calls,
        after.compute_infer.count - before.compute_infer.count,
        np.subtract(after.batch_rows.counts, before.batch_rows.counts).tolist(),
        sum(after.queue_s.counts) - sum(before.queue_s.counts),
        sum(after.request_s.counts) - sum(before.request_s.counts),
        {b.rows: b.compute.count for b in after.batches} if after.batches != before.batches else None,
    ]
    return outcome, counted[:-1], after.busy_s >= before.busy_s


ROWS = st.integers(0, 6)


@st.composite
def requests(draw):
    rows = draw(ROWS)
    a = np.full((rows, 2), draw(st.integers(0, 9)), np.float32)
    b = np.arange(draw(st.sampled_from([rows, rows, rows, rows + 1])), dtype=np.int64)
    kind = draw(
        st.sampled_from(
            ["plain", "plain", "plain", "wide", "strided", "turned", "read-only", "more axes", "text"]
        )
    )
    if kind == "wide":
        a, b = a.astype(np.float64) if draw(st.booleans()) else a, b.astype(np.int32)
    if kind == "strided":
        a = np.repeat(a, 2, axis=1)[:, ::2]
    if kind == "read-only":
        a.flags.writeable = False
    if kind == "more axes":
        b = b.reshape(-1, 1)
    if kind == "text":
        b = np.array(["x"] * rows, object)
    tensors = [Tensor("a", a), Tensor("b", b)]
    if kind == "turned":
        tensors.reverse()
    outputs = draw(st.sampled_from([(), (), ("sum",), ("no",)]))
    return InferRequest(
        tuple(tensors[: draw(st.sampled_from([2, 2, 2, 1]))]), draw(st.sampled_from(["", "id"])), outputs
    )


@settings(max_examples=levels.examples(3))
@given(requests())
def test_fast_path_matches_general_path(engine, request_):
    given_before = [t.data.tolist() for t in request_.inputs]
    assert run_requests(engine, request_, short=True) == run_requests(engine, request_, short=False)
    assert [t.data.tolist() for t in request_.inputs] == given_before, "the caller's arrays are the caller's"


def test_fast_path_is_taken(engine):
    inline = engine._session.inline

    def call_fast(**changed):
        a = changed.get("a", np.zeros((1, 2), np.float32))
        request = InferRequest(
            (Tensor("a", a), Tensor("b", np.zeros(1, np.int64))), **changed.get("more", {})
        )
        return inline.call_fast(request) is not None

    assert call_fast()
    assert not call_fast(a=np.zeros((1, 2), np.float64))
    assert not call_fast(a=np.zeros((5, 2), np.float32))
    assert not call_fast(a=np.zeros((1, 4), np.float32)[:, ::2])
    assert not call_fast(more={"deadline": 1e9})
    assert not call_fast(more={"outputs": ("sum",)})


@for_each(
    ("wish", "error"), [(2, PredictError), (3, RefusedRowsError), (8, PredictError), (9, ModelInputError)]
)
def test_model_error_keeps_its_cause(engine, wish, error):
    request = InferRequest(
        (Tensor("a", np.full((1, 2), wish, np.float32)), Tensor("b", np.zeros(1, np.int64)))
    )
    with pytest.raises(error) as raised:
        engine.infer_inline(request)
    assert raised.value.__cause__ is not None or wish == 9


def test_read_only_model_gets_inputs_without_copy():
    engine = engine_of(Declared)
    engine.start()
    try:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert engine.infer_inline(InferRequest((Tensor("x", x),)))["output"] is x
    finally:
        engine.stop()


def test_undeclared_inputs_use_general_path():
    engine = engine_of(Undeclared)
    engine.start()
    try:
        request = InferRequest((Tensor("x", np.zeros((2, 3), np.float32)),))
        assert engine._session.inline.call_fast(request) is None
        assert engine.infer_inline(request)["output"].tolist() == [[0] * 3] * 2
    finally:
        engine.stop()


def test_stop_waits_for_call_and_allows_no_other():
    entered, go = threading.Event(), threading.Event()

    class Slow(Declared):
        def predict(self, x):
            entered.set()
            assert go.wait(30)
            return x

    engine = engine_of(Slow)
    engine.start()
    request = InferRequest((Tensor("x", np.zeros((1, 3), np.float32)),))
    answers = []
    asking = threading.Thread(target=lambda: answers.append(engine.infer_inline(request)))
    asking.start()
    assert entered.wait(30)
    inline = engine._session.inline
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    go.set()
    for thread in (asking, stopping):
        thread.join(30)
        assert not thread.is_alive()
    assert answers[0]["output"].tolist() == [[0.0] * 3]
    assert inline.call_fast(request) is None
    with pytest.raises(StoppedError):
        engine.infer_inline(request)
