"""Which sequences a request is for: by its parameters, or row by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import InferRequest, Model, Tensor, TensorSpec
from headrace.core.errors import DataError, ModelInputError
from headrace.core.sequence import NO_SEQUENCE, SequenceAsk
from headrace.engine.inputs import ModelInputs
from headrace.engine.steps.asks import asks_of, controlled, rows_of, without_controls
from headrace.engine.steps.part import PartAsk


class Plain(Model):
    def step(self, states, x):
        return x


class Knows(Model):
    """Takes an input of that name itself."""

    inputs = (TensorSpec("x", "FP32", (-1, 1)), TensorSpec("sequence_start", "BOOL", (-1,)))

    def step(self, states, x, sequence_start):
        return x


PLAIN, KNOWS = ModelInputs.of(Plain(), "m"), ModelInputs.of(Knows(), "m")


def asked(rows=2, parameters=None, **tensors):
    x = Tensor("x", np.zeros((rows, 1), np.float32))
    controls = [Tensor(name, np.asarray(data)) for name, data in tensors.items()]
    return InferRequest((x, *controls), parameters=parameters or {})


def ids(*values):
    return np.array(values, object)


def parts(request, inputs=PLAIN):
    assert rows_of(request, inputs) >= 0
    parts, split = asks_of(request, inputs)
    assert split == controlled(request, inputs)
    return parts


def test_a_request_is_for_the_sequence_that_its_parameters_name():
    assert parts(asked()) == [PartAsk(NO_SEQUENCE)]
    named = asked(parameters={"sequence_id": 7, "sequence_start": True, "sequence_end": True})
    assert parts(named) == [PartAsk(SequenceAsk("7", start=True, end=True))]


@pytest.mark.parametrize("says", ["sequence_end", "sequence_cancel"])
def test_what_only_ends_a_sequence_needs_no_inputs(says):
    nothing = InferRequest((), parameters={"sequence_id": "a", says: True})
    assert rows_of(nothing, PLAIN) == 0
    with pytest.raises(ModelInputError, match="missing"):
        rows_of(InferRequest((), parameters={"sequence_id": "a"}), PLAIN)
    with pytest.raises(ModelInputError, match="missing"):
        rows_of(InferRequest((), parameters={"sequence_end": True}), PLAIN)


def test_rows_of_one_sequence_are_one_part():
    """In the order of their first rows; those without an id are each by themselves."""
    request = asked(5, sequence_id=ids("a", "b", "a", "", ""))
    assert parts(request) == [
        PartAsk(SequenceAsk("a"), [0, 2]),
        PartAsk(SequenceAsk("b"), [1]),
        PartAsk(SequenceAsk(""), [3]),
        PartAsk(SequenceAsk(""), [4]),
    ]


def test_a_row_that_starts_begins_another_part_and_one_that_ends_is_the_last_of_its():
    request = asked(
        4,
        sequence_id=np.array([1, 1, 1, 1]),
        sequence_start=[False, True, False, False],
        sequence_end=[False, False, True, False],
    )
    assert parts(request) == [
        PartAsk(SequenceAsk("1"), [0]),
        PartAsk(SequenceAsk("1", start=True, end=True), [1, 2]),
        PartAsk(SequenceAsk("1"), [3]),
    ]


def test_what_no_tensor_tells_the_parameters_tell():
    """A start is that of the first row of each, an end that of the last."""
    request = asked(3, {"sequence_start": True, "sequence_end": True}, sequence_id=ids("a", "b", "a"))
    assert parts(request) == [
        PartAsk(SequenceAsk("a", start=True, end=True), [0, 2]),
        PartAsk(SequenceAsk("b", start=True, end=True), [1]),
    ]
    auto = asked(1, {"sequence_start": "auto"}, sequence_id=ids("a"))
    assert parts(auto) == [PartAsk(SequenceAsk("a", auto=True), [0])]
    of_id = asked(2, {"sequence_id": "a"}, sequence_end=[True, False])
    assert parts(of_id) == [PartAsk(SequenceAsk("a", end=True), [0]), PartAsk(SequenceAsk("a"), [1])]


def test_no_rows_are_one_part_that_asks_for_nothing():
    """Whatever is said of each of them."""
    request = asked(0, {"sequence_start": True}, sequence_id=ids())
    assert parts(request) == [PartAsk(NO_SEQUENCE)]


def test_a_cancel_is_no_matter_of_rows():
    request = asked(1, {"sequence_id": "a", "sequence_cancel": True}, sequence_id=ids("b"))
    assert parts(request) == [PartAsk(SequenceAsk("a", cancel=True))]


def test_inputs_of_the_model_are_its_own():
    """Whatever their names; what is left tells the sequences."""
    request = asked(2, sequence_id=ids("a", "b"), sequence_start=[True, True])
    assert [tensor.name for tensor in without_controls(request, KNOWS)] == ["x", "sequence_start"]
    assert parts(request, KNOWS) == [PartAsk(SequenceAsk("a"), [0]), PartAsk(SequenceAsk("b"), [1])]
    assert not controlled(asked(2, sequence_start=[True, True]), KNOWS)


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"sequence_id": ids("a")}, "an element for each of the 2 rows"),
        ({"sequence_id": np.zeros((2, 2), np.int64)}, "an element for each of the 2 rows"),
        ({"sequence_end": np.zeros(())}, "an element for each of the 2 rows"),
        ({"sequence_start": ids("true", "false")}, "takes BOOL"),
        ({"sequence_end": [0.0, 1.0]}, "takes BOOL"),
    ],
)
def test_tensors_that_do_not_tell_each_row_are_refused(tensors, why):
    with pytest.raises(ModelInputError, match=why):
        rows_of(asked(2, **tensors), PLAIN)


@pytest.mark.parametrize("bad", [ids("a", None), np.array([0.5, 1.0]), ids("a", b"\xff")])
def test_ids_that_are_none_are_refused(bad):
    with pytest.raises(DataError, match="sequence_id"):
        asks_of(asked(2, sequence_id=bad), PLAIN)


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.booleans(), st.booleans()), max_size=12))
def test_every_row_is_in_one_part_in_order(rows):
    request = asked(
        len(rows),
        sequence_id=ids(*[id for id, _, _ in rows]),
        sequence_start=np.array([start for _, start, _ in rows], bool),
        sequence_end=np.array([end for _, _, end in rows], bool),
    )
    found = parts(request)
    assert sorted(row for part in found for row in part.rows) == list(range(len(rows)))
    for part in found:
        assert part.rows == sorted(part.rows)
        told = [rows[row] for row in part.rows]
        assert {id for id, _, _ in told} <= {part.sequence.id}
        assert not any(start for _, start, _ in told[1:])
        assert not any(end for _, _, end in told[:-1])
        if told:
            assert part.sequence.start == (told[0][1] and bool(part.sequence.id))
            assert part.sequence.end == told[-1][2]
