"""One step in a call of the model, and its outcome."""

import pytest

from engine.support import pending_request, request, rows
from headrace.batching.sequence import LiveSequence
from headrace.core.errors import DeadlineError, PredictError
from headrace.core.sequence import SequenceEnd
from headrace.engine.backend import CallResult
from headrace.engine.batch_caller import ModelCall
from headrace.engine.sequences.row_request import RowRequest, StepItem, sequence_ending, sequence_info
from headrace.engine.stepper import SequenceEnding, StepOrder


def make_item(x=None, *, row_indices=None, parameters=None, **settings):
    entry = pending_request(request(x, parameters=parameters or {}))
    data = entry.request["x"]
    row_request = RowRequest(
        entry, {"x": data}, len(row_indices or data), None, row_indices=row_indices, **settings
    )
    return StepItem(LiveSequence("a", 7, 0, 0.0), row_request)


def test_step_is_one_row_that_fails_as_a_whole():
    item = make_item(rows(1, 2, 3), row_indices=[2, 1])
    assert (item.rows, item.is_whole, item.tensors["x"].tolist()) == (1, True, [[3.0]])
    assert (item.row, item.request_row(0)) == (2, 2)


def test_order_describes_step():
    item = make_item(rows(1, 2), ends=True, parameters={"k": "v"})
    item.sequence.steps, item.row_request.number = 4, 9
    item.restore, item.save = b"state", True
    first = StepOrder(
        7, "a", 4, again=False, end=False, parameters={"k": "v"}, restore=b"state", save=True, request=9
    )
    assert item.order() == first
    item.row_request.row, item.row_request.again = 1, True
    assert item.order() == first._replace(again=True, end=True)


@pytest.mark.parametrize(
    ("row", "rescheduled", "ends", "is_last"),
    [
        (1, False, False, True),
        (0, False, False, False),
        (1, True, False, False),
        (0, True, True, True),
    ],
)
def test_step_is_last_by_its_model_or_by_its_client(row, rescheduled, ends, is_last):
    item = make_item(rows(1, 2), ends=True)
    item.row_request.row, item.rescheduled, item.ends = row, rescheduled, ends
    assert item.is_last == is_last


def test_each_step_of_a_call_gets_its_own_result():
    items = [make_item(), make_item()]
    result = CallResult(
        {"y": rows(5, 6)},
        flags=[(False, True, False), (True, False, True)],
        checkpoints=[None, b"state"],
    )
    ModelCall(items, [1, 1], result).apply()
    assert [item.outputs[0]["y"].tolist() for item in items] == [[[5.0]], [[6.0]]]
    assert [(item.rescheduled, item.silent, item.ends) for item in items] == list(result.flags)
    assert [item.checkpoint for item in items] == [None, b"state"]


def _done_item():
    item = make_item()
    item.add_outputs({"y": rows(1)}, CallResult({}, flags=[(True, False, True)], checkpoints=[None]), 0)
    return item


def _state(item):
    return (item.outputs, item.rescheduled, item.ends, item.state_changed)


def test_failed_step_has_no_output_or_flags():
    item = _done_item()
    assert item.state_changed
    error = PredictError("m", "odd")
    item.fail(error, "odd", finished=True)
    assert _state(item) == ([], False, False, False)
    assert (item.error, item.why, item.finished, item.withdrawn) == (error, "odd", True, False)


def test_undone_step_is_no_failure():
    item = _done_item()
    item.undo()
    assert _state(item) == ([], False, False, False)
    assert (item.undone, item.error, item.finished) == (True, None, False)


def test_withdrawn_step_finishes_its_request():
    item = make_item()
    error = DeadlineError("late")
    item.withdraw(error)
    assert (item.error, item.finished, item.withdrawn, item.state_changed) == (error, True, True, False)
    assert "late" in item.why


def test_step_is_unwanted_once_its_row_request_is_closed():
    """The request itself may wait for other sequences."""
    item = make_item()
    assert item.is_wanted(0.0)
    item.row_request.is_closed = True
    assert not item.is_wanted(0.0)
    assert item.entry.is_wanted(0.0)


def test_ending_describes_sequence():
    sequence = LiveSequence("a", 7, 0, 0.0)
    sequence.steps, sequence.end_reason = 3, SequenceEnd.IDLE
    assert sequence_ending(sequence) == SequenceEnding(7, "a", 3, SequenceEnd.IDLE)


def test_info_counts_open_requests_and_idle_time():
    sequence = LiveSequence("a", 7, 1, 2.0)
    info = sequence_info(sequence, 5.0)
    assert (info.id, info.instance, info.requests, info.age_s, info.idle_s) == ("a", 1, 0, 3.0, 3.0)
    sequence.current = make_item().row_request
    sequence.waiting.append(sequence.current)
    info = sequence_info(sequence, 5.0)
    assert (info.requests, info.idle_s) == (2, 0.0)
