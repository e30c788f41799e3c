"""The part of a request for one sequence, the outcomes of its steps, and the response."""

import numpy as np
import pytest

from engine.support import pending_request, request, rows
from headrace.batching.sequence import LiveSequence
from headrace.core.errors import ModelContractError, ModelInputError, PredictError
from headrace.core.sequence import SequenceEnd
from headrace.core.tensor import RowFailure
from headrace.engine.outputs import OutputCheck
from headrace.engine.stepper import SequenceEnding
from headrace.engine.steps.response_builder import ResponseBuilder
from headrace.engine.steps.row_request import RowRequest
from headrace.engine.steps.step_work import StepOutcome, sequence_ending


class _Collector:
    def __init__(self, *, forgets=True):
        self.forgets = forgets
        self.finished = []

    def rewind(self, row_request):
        return self.forgets

    def close(self, row_request, error):
        self.finished.append((row_request, error))
        return "answer"


def make_row_request(x, *, row_indices=None, collector=None):
    entry = pending_request(request(x))
    return RowRequest(
        entry, {"x": x}, len(row_indices or x), collector or _Collector(), row_indices=row_indices
    )


def test_rows_are_stepped_one_by_one():
    row_request = make_row_request(rows(1, 2, 3))
    assert (row_request.request_row, row_request.step_tensors()["x"].tolist()) == (0, [[1.0]])
    row_request.row = 2
    assert (row_request.request_row, row_request.step_tensors()["x"].tolist()) == (2, [[3.0]])
    assert list(row_request.request_rows(1)) == [1, 2]


def test_row_request_may_hold_some_rows():
    row_request = make_row_request(rows(1, 2, 3), row_indices=[0, 2])
    row_request.row = 1
    assert (row_request.request_row, row_request.step_tensors()["x"].tolist()) == (2, [[3.0]])
    assert list(row_request.request_rows(1)) == [2]
    assert make_row_request(rows(1, 2), row_indices=[1]).step_tensors()["x"].tolist() == [[2.0]]


def test_single_row_is_not_copied():
    x = rows(1)
    assert make_row_request(x).step_tensors()["x"] is x
    assert np.shares_memory(make_row_request(rows(1, 2)).step_tensors()["x"], x) is False


def test_rewind_needs_unseen_outputs():
    assert make_row_request(rows(1, 2)).rewind()
    assert not make_row_request(rows(1, 2), collector=_Collector(forgets=False)).rewind()


def test_row_request_is_wanted_until_cancelled_or_closed():
    row_request = make_row_request(rows(1))
    assert row_request.is_wanted(0.0)
    row_request.is_closed = True
    assert not row_request.is_wanted(0.0)
    row_request.is_closed, row_request.entry.cancelled = False, True
    assert not row_request.is_wanted(0.0)


def test_finish_closes_collector():
    collector = _Collector()
    row_request = make_row_request(rows(1), collector=collector)
    assert row_request.finish(None) == "answer"
    assert collector.finished == [(row_request, None)]


def test_failed_step_has_no_output_or_flags():
    row_request = RowRequest(pending_request(request()), {"x": rows(1)}, 1, None, row_indices=[4])
    outcome = StepOutcome(LiveSequence("a", 1, 0, 0.0), row_request)
    assert (outcome.row, outcome.state_changed) == (4, True)
    outcome.outputs, outcome.rescheduled, outcome.ends = {"y": rows(1)}, True, True
    error = PredictError("m", "odd")
    outcome.fail(error, "odd", finished=True)
    assert (outcome.outputs, outcome.rescheduled, outcome.ends, outcome.state_changed) == (
        None,
        False,
        False,
        False,
    )
    assert (outcome.error, outcome.why, outcome.finished) == (error, "odd", True)


def test_ending_describes_sequence():
    sequence = LiveSequence("a", 7, 0, 0.0)
    sequence.steps, sequence.end_reason = 3, SequenceEnd.IDLE
    assert sequence_ending(sequence) == SequenceEnding(7, "a", 3, SequenceEnd.IDLE)


respond = ResponseBuilder(OutputCheck("m", ()), "m", "3")


def test_rows_are_joined_and_named():
    failures = (RowFailure(2, "odd"),)
    answer = respond([{"y": rows(1)}, {"y": rows(2)}], request(id="r"), failures, {"sequence_id": "a"})
    assert answer["y"].ravel().tolist() == [1.0, 2.0]
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "3", "r")
    assert (answer.failures, dict(answer.parameters)) == (failures, {"sequence_id": "a"})


def test_single_output_is_not_copied():
    data = rows(1)
    assert respond([{"y": data}], request(), (), {})["y"] is data


def test_named_outputs_are_selected():
    given = [{"y": rows(1), "z": rows(2)}]
    assert [t.name for t in respond(given, request(outputs=("z",)), (), {}).outputs] == ["z"]
    with pytest.raises(ModelInputError, match="no output 'w'"):
        respond(given, request(outputs=("w",)), (), {})


def test_no_outputs_are_an_empty_response():
    assert respond([], request(outputs=("z",)), (), {}).outputs == ()


def test_differing_steps_cannot_be_joined():
    with pytest.raises(ModelContractError, match="differ"):
        respond([{"y": rows(1)}, {"z": rows(1)}], request(), (), {})
