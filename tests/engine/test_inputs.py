"""What predict's signature and a model's declared inputs say about requests, and how arrays reach predict."""

import numpy as np
import pytest

from headrace.core import InferRequest, Model, Tensor, TensorSpec
from headrace.core.errors import ModelInputError, ModelLoadError
from headrace.engine.inputs import ModelInputs

X = np.zeros((2, 3), np.float32)


def _model(predict, inputs=()) -> Model:
    """A model with this function, without self, as its predict."""
    model = Model()
    model.predict = predict
    model.inputs = inputs
    return model


def _inputs(predict, inputs=()) -> ModelInputs:
    return ModelInputs.of(_model(predict, inputs), "m")


def _request(**tensors) -> InferRequest:
    return InferRequest(tuple(Tensor(n, d) for n, d in tensors.items()))


def _specs(*names: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(n, "FP32", (-1, 3)) for n in names)


def _plain(x, y): ...
def _default(x, scale=2.0): ...
def _positional(x, y, /): ...
def _keyword(*, x): ...
def _keywords(**tensors): ...
def _arrays(*arrays): ...
def _rest(x, **rest): ...


@pytest.mark.parametrize(
    ("predict", "names"),
    [
        (_plain, ["x", "y"]),
        (_default, ["x"]),
        (_positional, ["x", "y"]),
        (_keyword, ["x"]),
        (_keywords, []),
        (_arrays, []),
        (_rest, ["x"]),
        (Model().predict, []),
    ],
)
def test_names_come_from_the_parameters(predict, names):
    """Parameters with a default are no inputs of their own; starred ones tell no names."""
    assert [s.name for s in _inputs(predict).specs] == names
    assert {s.datatype for s in _inputs(predict).specs} <= {"FP32"}
    assert {s.shape for s in _inputs(predict).specs} <= {None}


@pytest.mark.parametrize(
    ("predict", "declared", "tensors"),
    [
        (lambda x, y: (x, y), (), {"y": 2, "x": 1}),
        (lambda x, y, /: (x, y), (), {"y": 2, "x": 1}),
        (lambda x, y=0: (x, y), (), {"y": 2, "x": 1}),
        (lambda x, **rest: (x, rest["y"]), (), {"y": 2, "x": 1}),
        (lambda **t: (t["x"], t["y"]), (), {"y": 2, "x": 1}),
        (lambda *a: a, (), {"x": 1, "y": 2}),
        (lambda *a: a, ("x", "y"), {"y": 2, "x": 1}),
        (lambda *a, **t: (t["x"], t["y"]), ("x", "y"), {"y": 2, "x": 1}),
        (lambda a, b: (a, b), ("x", "y"), {"y": 2, "x": 1}),
        (lambda x, /, y: (x, y), ("x", "y"), {"y": 2, "x": 1}),
    ],
)
def test_arrays_reach_the_right_parameter(predict, declared, tensors):
    """By name where predict knows the names, else in the order of the declared inputs, else as they come."""
    arrays = {name: np.full((1, 3), value, np.float32) for name, value in tensors.items()}
    first, second = _inputs(predict, _specs(*declared)).call(predict, arrays)
    assert (first[0, 0], second[0, 0]) == (1, 2)


@pytest.mark.parametrize(
    ("predict", "declared", "message"),
    [
        (lambda: None, (), "predict takes no inputs"),
        (lambda a: None, ("x", "y"), "cannot take its inputs x, y"),
        (lambda *, a: None, ("x",), "cannot take its inputs x"),
    ],
)
def test_a_predict_that_cannot_be_called_is_found_when_loading(predict, declared, message):
    """Not at the first row, and not row by row."""
    with pytest.raises(ModelLoadError, match=message):
        _inputs(predict, _specs(*declared))


def test_rows_of_a_request_that_fits():
    """Declared types and shapes, an open axis, an optional parameter."""
    assert _inputs(_plain, _specs("x", "y")).check(_request(x=X, y=X)) == 2
    assert _inputs(_default).check(_request(x=X, scale=X)) == 2
    assert _inputs(_keywords).check(_request(a=X, b=X[:, 0])) == 2
    assert _inputs(_plain, (TensorSpec("x", "FP32"), *_specs("y"))).check(_request(x=X[:, 0], y=X)) == 2


def test_guessed_types_are_not_checked():
    """A signature tells names only: what its FP32 stands for is a guess."""
    assert _inputs(_default).check(_request(x=np.array(["a", "b"], object))) == 2


@pytest.mark.parametrize(
    ("inputs", "request_", "message"),
    [
        (_inputs(_plain), _request(x=X), r"input 'y' is missing \(given: 'x'\)"),
        (_inputs(_plain), InferRequest(()), r"input 'x' is missing \(given: none\)"),
        (_inputs(_default), _request(x=X, z=X), r"it has no input 'z' \(it takes 'x'\)"),
        (_inputs(_keywords), InferRequest(()), "at least one input"),
        (_inputs(_keywords), _request(a=X, b=X[:1]), r"disagree on the number of rows \(a: 2, b: 1\)"),
        (_inputs(_keywords), _request(a=np.float32(1)), "input 'a' has no axis of rows"),
        (_inputs(_default), InferRequest((Tensor("x", X), Tensor("x", X))), "given twice"),
        (
            _inputs(_default, _specs("x")),
            _request(x=X.astype(np.float64)),
            r"takes FP32 \[-1, 3\], but was given FP64 \[2, 3\]",
        ),
        (_inputs(_default, _specs("x")), _request(x=X[:, :2]), r"but was given FP32 \[2, 2\]"),
        (_inputs(_default, _specs("x")), _request(x=X[:, 0]), r"but was given FP32 \[2\]"),
        (_inputs(_default, (TensorSpec("x", "BYTES"),)), _request(x=X), "takes BYTES, but was given FP32"),
        (_inputs(_keywords, _specs("x")), _request(x=X, z=X), "it has no input 'z'"),
    ],
)
def test_a_request_that_does_not_fit_says_why(inputs, request_, message):
    """The model's name, the input's, what it takes and what it was given."""
    with pytest.raises(ModelInputError, match=message) as caught:
        inputs.check(request_)
    assert caught.value.model == "m"


# What converts without loss


@pytest.mark.parametrize(
    ("declared", "given", "taken"),
    [
        ("FP64", "float32", True),
        ("FP64", "int32", True),
        ("FP32", "uint8", True),
        ("INT64", "int32", True),
        ("FP32", "float64", False),
        ("FP32", "int64", False),
        ("INT32", "float32", False),
        ("BYTES", "float32", False),
        ("FP32", "object", False),
        ("BF16", "float64", False),
    ],
)
def test_types_that_lose_nothing_are_converted(declared, given, taken):
    inputs = _inputs(_keywords, (TensorSpec("x", declared, (-1, 2)),))
    request = _request(x=np.ones((3, 2), given))
    if not taken:
        with pytest.raises(ModelInputError, match=f"takes {declared} "):
            inputs.check(request)
        return
    assert inputs.check(request) == 3
    seen = inputs.call(lambda x: x, {"x": request["x"]})
    assert (Tensor("x", seen).datatype, seen.tolist()) == (declared, [[1, 1]] * 3)


@pytest.mark.parametrize("given", ["uint16", "float32"])
def test_bf16_comes_as_bits_or_widened(given):
    inputs = _inputs(_keywords, (TensorSpec("x", "BF16", (-1, 2)),))
    request = _request(x=np.ones((3, 2), given))
    assert inputs.check(request) == 3
    assert inputs.call(lambda x: x, {"x": request["x"]}) is request["x"]


def test_what_fits_already_is_handed_over_as_it_is():
    inputs = _inputs(_keywords, _specs("x"))
    assert inputs.call(lambda x: x, {"x": X}) is X


def test_a_column_vector_is_taken_for_a_column():
    inputs = _inputs(_keywords, (TensorSpec("x", "FP32", (-1,)),))
    request = _request(x=np.ones((3, 1), np.float32))
    assert inputs.check(request) == 3
    assert inputs.call(lambda x: x, {"x": request["x"]}).shape == (3,)
    with pytest.raises(ModelInputError, match=r"takes FP32 \[-1\], but was given FP32 \[3, 2\]"):
        inputs.check(_request(x=np.ones((3, 2), np.float32)))
