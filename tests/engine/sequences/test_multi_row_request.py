"""One response from many steps."""

import gc
import threading
import weakref

import numpy as np
import pytest

import headrace.engine.sequences.sequence_rows as module
from cases import for_each
from engine.support import pending_request, request, rows
from headrace.core import InferResponse, Tensor
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    ModelContractError,
    ModelInputError,
    PredictError,
    SequenceGoneError,
)
from headrace.engine.sequences.row_request import RowRequest
from headrace.engine.sequences.sequence_rows import MultiRowRequest

GONE = SequenceGoneError("a", "gone")


def respond(given, request, failures, parameters):
    data = np.concatenate([one["y"] for one in given]) if given else rows()
    return InferResponse((Tensor("y", data),), id=request.id, parameters=parameters, failures=failures)


def collect(*row_indices, strict=True, result=respond):
    """Return a request with a row request for each of `row_indices`."""
    count = sum(map(len, row_indices))
    entry = pending_request(request(rows(*range(count))), strict=strict)
    collector = MultiRowRequest(len(row_indices), strict=strict, model="m", respond=result)
    x = {"x": rows(*range(count))}
    return collector, [
        RowRequest(entry, x, len(own), collector, row_indices=list(own)) for own in row_indices
    ]


def add_output(part, value, row=None):
    return part.collector.add_output(part, part.request_row if row is None else row, {"y": rows(value)}, [])


def step(part, value):
    add_output(part, value)
    part.row += 1


@for_each("error", [None, GONE])
def test_finished_request_has_no_reference_cycle(error):
    """Its arrays are freed at once, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        collector, parts = collect([0], [1])
        for part in parts:
            step(part, 1)
        over = [part.finish(error) for part in parts]
        assert over[0] is None
        assert over[1] is not None
        left = weakref.ref(collector)
        del collector, parts, part, over
        assert left() is None
    finally:
        gc.enable()


def test_rows_are_joined_in_order():
    _, (one, other) = collect([1, 2], [0])
    step(one, 10)
    step(one, 20)
    assert one.finish(None) is None
    step(other, 0)
    assert other.finish(None).outputs[0].data.ravel().tolist() == [0.0, 10.0, 20.0]


def test_rescheduled_row_gives_several_outputs():
    _, (one,) = collect([0])
    assert add_output(one, 1)
    assert add_output(one, 2)
    assert one.finish(None).outputs[0].data.ravel().tolist() == [1.0, 2.0]


def test_strict_request_fails_with_first_error():
    _, (one, other) = collect([0], [1])
    assert not one.collector.add_failure(one, 0, "odd")
    assert one.finish(GONE) is None
    assert other.finish(PredictError("m", "odd")) is GONE


def test_rows_of_lenient_request_fail_alone():
    """Also the remaining rows of a sequence that ended."""
    _, (one, other) = collect([0, 1], [2, 3], strict=False)
    assert one.collector.add_failure(one, 0, "odd")
    one.row = 1
    step(one, 1)
    assert one.finish(None) is None
    step(other, 2)
    result = other.finish(GONE)
    assert result.outputs[0].data.ravel().tolist() == [1.0, 2.0]
    assert [(f.row, "gone" in f.why) for f in result.failures] == [(0, False), (3, True)]


@for_each("count", [0, 2])
def test_lenient_request_has_one_output_per_row(count):
    """Otherwise outputs could not be matched to rows."""
    _, (one,) = collect([0, 1], strict=False)
    step(one, 5)
    for _ in range(count):
        add_output(one, 6)
    one.row = 2
    result = one.finish(None)
    assert result.outputs[0].data.ravel().tolist() == [5.0]
    assert [(f.row, f"returned {count} rows" in f.why) for f in result.failures] == [(1, True)]


def test_expired_request_fails_as_whole():
    late = DeadlineError("late")
    _, (one,) = collect([0, 1], strict=False)
    step(one, 1)
    assert one.finish(late) is late


def test_request_without_rows_fails_as_whole():
    collector, _ = collect([0], strict=False)
    nothing = RowRequest(pending_request(request(), strict=False), {}, 0, collector)
    assert nothing.finish(GONE) is GONE


def test_row_request_closes_once():
    """However many threads close it."""
    for _ in range(50):
        _, (one, other) = collect([0], [1], strict=False)
        step(one, 0)
        gate, answers = threading.Barrier(3), []

        def finish(part, gate=gate, answers=answers):
            gate.wait(5)
            answers.append(part.finish(None))

        threads = [threading.Thread(target=finish, args=(one,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
        assert answers == [None, None, None]
        step(other, 1)
        assert other.finish(None).outputs[0].data.ravel().tolist() == [0.0, 1.0]


def test_closed_row_request_takes_no_output():
    """Its sequence ended during its step."""
    collector, (one, other) = collect([0], [1], strict=False)
    one.finish(GONE)
    with pytest.raises(CancelledRequestError):
        add_output(one, 1)
    assert not collector.add_failure(one, 0, "late")
    step(other, 2)
    (failure,) = other.finish(None).failures
    assert (failure.row, "gone" in failure.why) == (0, True)


def test_rewind_forgets_own_rows_only():
    collector, (one, other) = collect([0, 2], [1], strict=False)
    collector.add_failure(one, 0, "odd")
    one.row = 1
    step(one, 9)
    step(other, 1)
    assert one.rewind()
    one.row = 0
    step(one, 0)
    step(one, 2)
    one.finish(None)
    result = other.finish(None)
    assert (result.outputs[0].data.ravel().tolist(), result.failures) == ([0.0, 1.0, 2.0], ())


def test_outputs_of_one_request_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "STEP_OUTPUTS_MAX", 3)
    _, (one,) = collect([0])
    assert all(add_output(one, value) for value in range(3))
    with pytest.raises(ModelContractError, match="use a stream"):
        add_output(one, 3)


def test_join_error_is_the_result():
    error = ModelInputError("m", "it has no output z")

    def refuse(*_):
        raise error

    _, (one,) = collect([0], result=refuse)
    step(one, 1)
    assert one.finish(None) is error


def test_collector_always_has_space():
    collector, _ = collect([0])
    assert not collector.when_space(lambda: None)


def test_failed_response_build_is_internal_error(caplog):

    def full(given, request, failures, parameters):
        raise MemoryError("no room")

    _, (one,) = collect([0], result=full)
    step(one, 1)
    error = one.finish(None)
    assert isinstance(error, PredictError)
    assert isinstance(error.__cause__, MemoryError)
    assert "no room" in caplog.text
