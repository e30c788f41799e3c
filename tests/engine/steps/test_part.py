"""What a request asks of one sequence."""

import numpy as np

from engine.support import request, rows, ticket
from headrace.engine.steps.part import Part


class _Sink:
    def __init__(self, *, forgets=True):
        self.forgets = forgets
        self.told = []

    def rewind(self, part):
        return self.forgets

    def over(self, part, error):
        self.told.append((part, error))
        return "answer"


def part(x, *, which=None, sink=None):
    asked = ticket(request(x))
    return Part(asked, {"x": x}, len(which or x), sink or _Sink(), which=which)


def test_its_rows_are_stepped_one_by_one():
    one = part(rows(1, 2, 3))
    assert (one.index, one.step_tensors()["x"].tolist()) == (0, [[1.0]])
    one.row = 2
    assert (one.index, one.step_tensors()["x"].tolist()) == (2, [[3.0]])
    assert list(one.indices(1)) == [1, 2]


def test_its_rows_may_be_some_of_the_request():
    one = part(rows(1, 2, 3), which=[0, 2])
    one.row = 1
    assert (one.index, one.step_tensors()["x"].tolist()) == (2, [[3.0]])
    assert list(one.indices(1)) == [2]
    assert part(rows(1, 2), which=[1]).step_tensors()["x"].tolist() == [[2.0]]


def test_a_request_of_one_row_is_handed_on_as_it_is():
    x = rows(1)
    assert part(x).step_tensors()["x"] is x
    assert np.shares_memory(part(rows(1, 2)).step_tensors()["x"], x) is False


def test_it_begins_again_where_nobody_has_seen_anything():
    """How far it has come its sequence forgets itself."""
    assert part(rows(1, 2)).rewind()
    assert not part(rows(1, 2), sink=_Sink(forgets=False)).rewind()


def test_somebody_wants_it_until_its_caller_leaves_or_it_is_over():
    one = part(rows(1))
    assert one.wanted(0.0)
    one.over = True
    assert not one.wanted(0.0)
    one.over, one.ticket.cancelled = False, True
    assert not one.wanted(0.0)


def test_its_end_is_told_to_its_sink():
    sink = _Sink()
    one = part(rows(1), sink=sink)
    assert one.finish(None) == "answer"
    assert sink.told == [(one, None)]
