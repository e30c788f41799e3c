"""The part of a request for one sequence."""

import numpy as np

from engine.support import pending_request, request, rows
from headrace.engine.sequences.row_request import RowRequest


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
