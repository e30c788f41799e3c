"""One answer of many steps."""

import gc
import threading
import weakref

import numpy as np
import pytest

import headrace.engine.steps.gathered as module
from engine.support import request, rows, ticket
from headrace.core import InferResponse, Tensor
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    ModelContractError,
    ModelInputError,
    PredictError,
    SequenceGoneError,
)
from headrace.engine.steps.gathered import Gathered
from headrace.engine.steps.part import Part

GONE = SequenceGoneError("a", "gone")


def respond(given, asked, failures, told):
    data = np.concatenate([one["y"] for one in given]) if given else rows()
    return InferResponse((Tensor("y", data),), id=asked.id, parameters=told, failures=failures)


def gathered(*which, strict=True, answer=respond):
    """A request with a part for each of `which`: the rows that are its own."""
    count = sum(map(len, which))
    asked = ticket(request(rows(*range(count))), strict=strict)
    sink = Gathered(len(which), strict=strict, model="m", respond=answer)
    x = {"x": rows(*range(count))}
    return sink, [Part(asked, x, len(own), sink, which=list(own)) for own in which]


def give(part, value, row=None):
    return part.sink.give(part, part.index if row is None else row, {"y": rows(value)}, [])


def step(part, value):
    give(part, value)
    part.row += 1


@pytest.mark.parametrize("error", [None, GONE])
def test_nothing_of_a_request_that_is_over_is_in_a_circle(error):
    """Its arrays are free at once, not when somebody looks for circles."""
    gc.collect()
    gc.disable()
    try:
        sink, parts = gathered([0], [1])
        for part in parts:
            step(part, 1)
        over = [part.finish(error) for part in parts]
        assert over[0] is None
        assert over[1] is not None
        left = weakref.ref(sink)
        del sink, parts, part, over
        assert left() is None
    finally:
        gc.enable()


def test_rows_are_joined_in_their_order_once_all_parts_are_over():
    _, (one, other) = gathered([1, 2], [0])
    step(one, 10)
    step(one, 20)
    assert one.finish(None) is None
    step(other, 0)
    assert other.finish(None).outputs[0].data.ravel().tolist() == [0.0, 10.0, 20.0]


def test_what_goes_on_gives_more_than_one_row():
    _, (one,) = gathered([0])
    assert give(one, 1)
    assert give(one, 2)
    assert one.finish(None).outputs[0].data.ravel().tolist() == [1.0, 2.0]


def test_the_first_error_is_that_of_a_strict_request():
    _, (one, other) = gathered([0], [1])
    assert not one.sink.failed(one, 0, "odd")
    assert one.finish(GONE) is None
    assert other.finish(PredictError("m", "odd")) is GONE


def test_rows_fail_alone_where_that_is_wanted():
    """Also those of a sequence that ended, from where it had come to."""
    _, (one, other) = gathered([0, 1], [2, 3], strict=False)
    assert one.sink.failed(one, 0, "odd")
    one.row = 1
    step(one, 1)
    assert one.finish(None) is None
    step(other, 2)
    answer = other.finish(GONE)
    assert answer.outputs[0].data.ravel().tolist() == [1.0, 2.0]
    assert [(f.row, "gone" in f.why) for f in answer.failures] == [(0, False), (3, True)]


@pytest.mark.parametrize("count", [0, 2])
def test_each_row_is_one_row_of_outputs_where_rows_fail_alone(count):
    """Else nobody could tell which is whose."""
    _, (one,) = gathered([0, 1], strict=False)
    step(one, 5)
    for _ in range(count):
        give(one, 6)
    one.row = 2
    answer = one.finish(None)
    assert answer.outputs[0].data.ravel().tolist() == [5.0]
    assert [(f.row, f"gave {count} rows" in f.why) for f in answer.failures] == [(1, True)]


def test_a_request_whose_time_is_over_fails_as_a_whole():
    late = DeadlineError("late")
    _, (one,) = gathered([0, 1], strict=False)
    step(one, 1)
    assert one.finish(late) is late


def test_what_asks_for_no_row_fails_as_a_whole():
    """There is no row that could tell."""
    sink, _ = gathered([0], strict=False)
    nothing = Part(ticket(request(), strict=False), {}, 0, sink)
    assert nothing.finish(GONE) is GONE


def test_a_part_is_over_once():
    """However many say so, at once."""
    for _ in range(50):
        _, (one, other) = gathered([0], [1], strict=False)
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


def test_what_comes_after_a_part_is_over_is_not_taken():
    """Its sequence ended while its step was done."""
    sink, (one, other) = gathered([0], [1], strict=False)
    one.finish(GONE)
    with pytest.raises(CancelledRequestError):
        give(one, 1)
    assert not sink.failed(one, 0, "late")
    step(other, 2)
    (failure,) = other.finish(None).failures
    assert (failure.row, "gone" in failure.why) == (0, True)


def test_a_part_that_begins_again_forgets_its_own_rows_alone():
    sink, (one, other) = gathered([0, 2], [1], strict=False)
    sink.failed(one, 0, "odd")
    one.row = 1
    step(one, 9)
    step(other, 1)
    assert one.rewind()
    one.row = 0
    step(one, 0)
    step(one, 2)
    one.finish(None)
    answer = other.finish(None)
    assert (answer.outputs[0].data.ravel().tolist(), answer.failures) == ([0.0, 1.0, 2.0], ())


def test_outputs_of_one_request_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "STEP_OUTPUTS_MAX", 3)
    _, (one,) = gathered([0])
    assert all(give(one, value) for value in range(3))
    with pytest.raises(ModelContractError, match="ask for a stream"):
        give(one, 3)


def test_what_cannot_be_joined_is_the_answer():
    error = ModelInputError("m", "it has no output z")

    def refuse(*_):
        raise error

    _, (one,) = gathered([0], answer=refuse)
    step(one, 1)
    assert one.finish(None) is error


def test_there_is_always_room():
    sink, _ = gathered([0])
    assert not sink.when_room(lambda: None)


def test_an_answer_that_cannot_be_made_is_an_error(caplog):
    """And no other request hears of it."""

    def full(given, asked, failures, told):
        raise MemoryError("no room")

    _, (one,) = gathered([0], answer=full)
    step(one, 1)
    error = one.finish(None)
    assert isinstance(error, PredictError)
    assert isinstance(error.__cause__, MemoryError)
    assert "no room" in caplog.text
