"""The sequences of a request: by its parameters, or row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core import InferRequest, Model, Tensor, TensorSpec
from headrace.core.errors import DataError, ModelInputError
from headrace.core.sequence import NO_SEQUENCE, SequenceControl
from headrace.engine.inputs import ModelInputs
from headrace.engine.sequences.sequence_rows import (
    SequenceRows,
    count_steps,
    has_control_tensors,
    model_inputs,
    split_sequences,
)


class Plain(Model):
    def step(self, states, x):
        return x


class Knows(Model):
    """Has an input of that name itself."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)), TensorSpec("sequence_start", "BOOL", (-1,)))

    def step(self, states, x, sequence_start):
        return x


PLAIN, KNOWS = ModelInputs.of(Plain(), "m"), ModelInputs.of(Knows(), "m")


def rows_request(rows=2, parameters=None, **tensors):
    x = Tensor("x", np.zeros((rows, 1), np.float32))
    controls = [Tensor(name, np.asarray(data)) for name, data in tensors.items()]
    return InferRequest((x, *controls), parameters=parameters or {})


def ids(*values):
    return np.array(values, object)


def groups(request, inputs=PLAIN):
    assert count_steps(request, inputs) >= 0
    groups, split = split_sequences(request, inputs)
    assert split == has_control_tensors(request, inputs)
    return groups


def test_parameters_name_the_sequence():
    assert groups(rows_request()) == [SequenceRows(NO_SEQUENCE)]
    named = rows_request(parameters={"sequence_id": 7, "sequence_start": True, "sequence_end": True})
    assert groups(named) == [SequenceRows(SequenceControl("7", start=True, end=True))]


@for_each("says", ["sequence_end", "sequence_cancel"])
def test_end_of_sequence_needs_no_inputs(says):
    nothing = InferRequest((), parameters={"sequence_id": "a", says: True})
    assert count_steps(nothing, PLAIN) == 0
    with pytest.raises(ModelInputError, match="missing"):
        count_steps(InferRequest((), parameters={"sequence_id": "a"}), PLAIN)
    with pytest.raises(ModelInputError, match="missing"):
        count_steps(InferRequest((), parameters={"sequence_end": True}), PLAIN)


def test_rows_of_one_sequence_are_one_group():
    """In the order of their first rows; rows without an id are groups of their own."""
    request = rows_request(5, sequence_id=ids("a", "b", "a", "", ""))
    assert groups(request) == [
        SequenceRows(SequenceControl("a"), [0, 2]),
        SequenceRows(SequenceControl("b"), [1]),
        SequenceRows(SequenceControl(""), [3]),
        SequenceRows(SequenceControl(""), [4]),
    ]


def test_start_opens_and_end_closes_a_group():
    request = rows_request(
        4,
        sequence_id=np.array([1, 1, 1, 1]),
        sequence_start=[False, True, False, False],
        sequence_end=[False, False, True, False],
    )
    assert groups(request) == [
        SequenceRows(SequenceControl("1"), [0]),
        SequenceRows(SequenceControl("1", start=True, end=True), [1, 2]),
        SequenceRows(SequenceControl("1"), [3]),
    ]


def test_parameters_apply_without_control_tensor():
    """A start applies to the first row of each sequence, an end to the last."""
    request = rows_request(3, {"sequence_start": True, "sequence_end": True}, sequence_id=ids("a", "b", "a"))
    assert groups(request) == [
        SequenceRows(SequenceControl("a", start=True, end=True), [0, 2]),
        SequenceRows(SequenceControl("b", start=True, end=True), [1]),
    ]
    auto = rows_request(1, {"sequence_start": "auto"}, sequence_id=ids("a"))
    assert groups(auto) == [SequenceRows(SequenceControl("a", auto=True), [0])]
    of_id = rows_request(2, {"sequence_id": "a"}, sequence_end=[True, False])
    assert groups(of_id) == [
        SequenceRows(SequenceControl("a", end=True), [0]),
        SequenceRows(SequenceControl("a"), [1]),
    ]


def test_no_rows_are_one_empty_group():
    request = rows_request(0, {"sequence_start": True}, sequence_id=ids())
    assert groups(request) == [SequenceRows(NO_SEQUENCE)]


def test_cancel_ignores_rows():
    request = rows_request(1, {"sequence_id": "a", "sequence_cancel": True}, sequence_id=ids("b"))
    assert groups(request) == [SequenceRows(SequenceControl("a", cancel=True))]


def test_model_inputs_are_no_control_tensors():
    """Under any name; other control tensors still count."""
    request = rows_request(2, sequence_id=ids("a", "b"), sequence_start=[True, True])
    assert [tensor.name for tensor in model_inputs(request, KNOWS)] == ["x", "sequence_start"]
    assert groups(request, KNOWS) == [
        SequenceRows(SequenceControl("a"), [0]),
        SequenceRows(SequenceControl("b"), [1]),
    ]
    assert not has_control_tensors(rows_request(2, sequence_start=[True, True]), KNOWS)


@for_each(
    ("tensors", "why"),
    [
        ({"sequence_id": ids("a")}, "one element for each of the 2 rows"),
        ({"sequence_id": np.zeros((2, 2), np.int64)}, "one element for each of the 2 rows"),
        ({"sequence_end": np.zeros(())}, "one element for each of the 2 rows"),
        ({"sequence_start": ids("true", "false")}, "takes BOOL"),
        ({"sequence_end": [0.0, 1.0]}, "takes BOOL"),
    ],
)
def test_control_tensor_of_wrong_size_is_refused(tensors, why):
    with pytest.raises(ModelInputError, match=why):
        count_steps(rows_request(2, **tensors), PLAIN)


@for_each("bad", [ids("a", None), np.array([0.5, 1.0]), ids("a", b"\xff")])
def test_invalid_ids_are_refused(bad):
    with pytest.raises(DataError, match="sequence_id"):
        split_sequences(rows_request(2, sequence_id=bad), PLAIN)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.booleans(), st.booleans()), max_size=12))
def test_every_row_is_in_one_group_in_order(rows):
    request = rows_request(
        len(rows),
        sequence_id=ids(*[id for id, _, _ in rows]),
        sequence_start=np.array([start for _, start, _ in rows], bool),
        sequence_end=np.array([end for _, _, end in rows], bool),
    )
    found = groups(request)
    assert sorted(row for part in found for row in part.rows) == list(range(len(rows)))
    for part in found:
        assert part.rows == sorted(part.rows)
        flags = [rows[row] for row in part.rows]
        assert {id for id, _, _ in flags} <= {part.control.id}
        assert not any(start for _, start, _ in flags[1:])
        assert not any(end for _, _, end in flags[:-1])
        if flags:
            assert part.control.start == (flags[0][1] and bool(part.control.id))
            assert part.control.end == flags[-1][2]
