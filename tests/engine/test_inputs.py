"""Inputs: signatures, declared inputs, request checks, text elements, and the call."""

import functools

import numpy as np
import pytest

from cases import for_each
from engine.support import rows
from headrace.core import InferRequest, Model, Tensor, TensorSpec
from headrace.core.errors import ModelInputError, ModelLoadError
from headrace.core.tensor import ModelMetadata, text_array
from headrace.engine.inputs import ModelInputs, convert_inputs

X = np.zeros((2, 3), np.float32)


def _model(predict, inputs=()) -> Model:
    """Return a model with this function, without self, as its `predict`."""
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


@for_each(
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
def test_input_names_are_parameter_names(predict, names):
    """Parameters with a default are optional; starred ones name nothing."""
    assert [s.name for s in _inputs(predict).specs] == names
    assert {s.datatype for s in _inputs(predict).specs} <= {"FP32"}
    assert {s.shape for s in _inputs(predict).specs} <= {None}


@for_each(
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
def test_arrays_reach_their_parameters(predict, declared, tensors):
    """By name if `predict` knows the names, else in declared order, else as they are."""
    arrays = {name: np.full((1, 3), value, np.float32) for name, value in tensors.items()}
    first, second = _inputs(predict, _specs(*declared)).call(predict, arrays)
    assert (first[0, 0], second[0, 0]) == (1, 2)


@for_each(
    ("predict", "declared", "message"),
    [
        (lambda: None, (), "predict takes no inputs"),
        (lambda a: None, ("x", "y"), "cannot be called with its inputs x, y"),
        (lambda *, a: None, ("x",), "cannot be called with its inputs x"),
    ],
)
def test_uncallable_predict_fails_load(predict, declared, message):
    with pytest.raises(ModelLoadError, match=message):
        _inputs(predict, _specs(*declared))


def test_row_count_of_valid_request():
    """Declared types and shapes, an open axis, an optional parameter."""
    assert _inputs(_plain, _specs("x", "y")).check(_request(x=X, y=X)) == 2
    assert _inputs(_default).check(_request(x=X, scale=X)) == 2
    assert _inputs(_keywords).check(_request(a=X, b=X[:, 0])) == 2
    assert _inputs(_plain, (TensorSpec("x", "FP32"), *_specs("y"))).check(_request(x=X[:, 0], y=X)) == 2


def test_guessed_types_are_not_checked():
    """A signature has names only: its FP32 is a guess."""
    assert _inputs(_default).check(_request(x=np.array(["a", "b"], object))) == 2


@for_each(
    ("inputs", "request_", "message"),
    [
        (_inputs(_plain), _request(x=X), r"input 'y' is missing \(inputs: 'x'\)"),
        (_inputs(_plain), InferRequest(()), r"input 'x' is missing \(inputs: none\)"),
        (_inputs(_default), _request(x=X, z=X), r"it has no input 'z' \(it takes 'x'\)"),
        (_inputs(_keywords), InferRequest(()), "at least one input"),
        (_inputs(_keywords), _request(a=X, b=X[:1]), r"disagree on the number of rows \(a: 2, b: 1\)"),
        (_inputs(_keywords), _request(a=np.float32(1)), "input 'a' has no row axis"),
        (_inputs(_default), InferRequest((Tensor("x", X), Tensor("x", X))), "occurs twice"),
        (
            _inputs(_default, _specs("x")),
            _request(x=X.astype(np.float64)),
            r"takes FP32 \[-1, 3\], but the request has FP64 \[2, 3\]",
        ),
        (_inputs(_default, _specs("x")), _request(x=X[:, :2]), r"but the request has FP32 \[2, 2\]"),
        (_inputs(_default, _specs("x")), _request(x=X[:, 0]), r"but the request has FP32 \[2\]"),
        (
            _inputs(_default, (TensorSpec("x", "BYTES"),)),
            _request(x=X),
            "takes BYTES, but the request has FP32",
        ),
        (_inputs(_keywords, _specs("x")), _request(x=X, z=X), "it has no input 'z'"),
    ],
)
def test_invalid_request_names_reason(inputs, request_, message):
    """The error names the model, the input, its type and the request's type."""
    with pytest.raises(ModelInputError, match=message) as caught:
        inputs.check(request_)
    assert caught.value.model == "m"


class _Methods(Model):
    def keywords(self, **tensors): ...
    def arrays(self, *arrays): ...
    def both(self, *arrays, **tensors): ...
    def only_self(self, /, **tensors): ...
    def named(this, **tensors): ...  # noqa: N805
    def states(self, states, **tensors): ...
    def only_states(self, states, /, **tensors): ...


@for_each(
    ("method", "attribute", "refused", "accepted"),
    [
        ("keywords", "predict", {"self"}, {"states", "this", "x"}),
        ("named", "predict", {"this"}, {"self", "x"}),
        ("both", "predict", {"self"}, {"x"}),
        ("arrays", "predict", set(), {"self", "x"}),
        ("only_self", "predict", set(), {"self", "x"}),
        ("states", "step", {"self", "states"}, {"x"}),
        ("only_states", "step", set(), {"states", "self", "x"}),
    ],
)
def test_tensor_named_as_a_parameter_of_the_method_is_refused(method, attribute, refused, accepted):
    """Python takes `predict(self=...)` for a second value of the parameter."""
    model = _Methods()
    setattr(model, attribute, getattr(model, method))
    inputs = ModelInputs.of(model, "m")
    called = model.predict if attribute == "predict" else functools.partial(model.step, {})
    for name in accepted:
        assert inputs.check(_request(**{name: X})) == 2
        inputs.call(called, {name: X})
    for name in refused:
        with pytest.raises(ModelInputError, match=f"no input can be named '{name}': its method has a param"):
            inputs.check(_request(x=X, **{name: X}))


def test_declared_input_named_as_a_parameter_of_the_method_fails_load():
    model = _Methods()
    model.predict, model.inputs = model.keywords, _specs("self")
    with pytest.raises(ModelLoadError, match="cannot be called with its inputs self"):
        ModelInputs.of(model, "m")
    model.predict = model.both
    inputs = ModelInputs.of(model, "m")
    assert inputs.check(_request(self=X)) == 2
    inputs.call(model.predict, {"self": X})


# Lossless conversions


@for_each(
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
def test_lossless_types_are_converted(declared, given, taken):
    inputs = _inputs(_keywords, (TensorSpec("x", declared, (-1, 2)),))
    request = _request(x=np.ones((3, 2), given))
    if not taken:
        with pytest.raises(ModelInputError, match=f"takes {declared} "):
            inputs.check(request)
        return
    assert inputs.check(request) == 3
    seen = inputs.call(lambda x: x, {"x": request["x"]})
    assert (Tensor("x", seen).datatype, seen.tolist()) == (declared, [[1, 1]] * 3)


@for_each("given", ["uint16", "float32"])
def test_bf16_is_accepted_as_bits_or_widened(given):
    inputs = _inputs(_keywords, (TensorSpec("x", "BF16", (-1, 2)),))
    request = _request(x=np.ones((3, 2), given))
    assert inputs.check(request) == 3
    assert inputs.call(lambda x: x, {"x": request["x"]}) is request["x"]


def test_matching_array_is_not_copied():
    inputs = _inputs(_keywords, _specs("x"))
    assert inputs.call(lambda x: x, {"x": X}) is X


def test_column_vector_is_accepted_as_column():
    inputs = _inputs(_keywords, (TensorSpec("x", "FP32", (-1,)),))
    request = _request(x=np.ones((3, 1), np.float32))
    assert inputs.check(request) == 3
    assert inputs.call(lambda x: x, {"x": request["x"]}).shape == (3,)
    with pytest.raises(ModelInputError, match=r"takes FP32 \[-1\], but the request has FP32 \[3, 2\]"):
        inputs.check(_request(x=np.ones((3, 2), np.float32)))


def test_whole_request_may_have_tensors_without_axes():
    """They are no rows beside tensors with rows."""
    model = _model(_keywords)
    model.predict_request = lambda request: request
    inputs = ModelInputs.of(model, "m")
    one = np.float32(1)
    assert inputs.check(_request(a=np.array(one))) == 1
    assert inputs.check(_request(a=X, b=np.array(one), c=X)) == 2
    with pytest.raises(ModelInputError, match=r"disagree on the number of rows \(a: 2, b: 1\)"):
        inputs.check(_request(a=X, b=X[:1], c=np.array(one)))


def text_request(*values, shape=None):
    text = text_array(values)
    return InferRequest(
        (Tensor("x", rows(1)), Tensor("text", text.reshape(shape or text.shape), {"kind": 1}))
    )


def converted(request, bytes_as, *, as_rows=True):
    return convert_inputs(request, ModelMetadata("m", bytes_as=bytes_as), as_rows=as_rows)


@for_each("sent", [("a", "ü"), (b"a", "ü".encode()), ("a", "ü".encode())])
@for_each(("bytes_as", "given"), [("str", ["a", "ü"]), ("bytes", [b"a", "ü".encode()])])
def test_elements_are_converted_to_wanted_type(sent, bytes_as, given):
    request = converted(text_request(*sent, shape=(2, 1)), bytes_as)
    assert request["text"].tolist() == [[g] for g in given]
    assert request.inputs[1].parameters == {"kind": 1}


def test_matching_input_is_not_copied():
    request = text_request("a", "b")
    assert converted(request, "str").inputs[1] is request.inputs[1]
    numbers = InferRequest((Tensor("x", rows(1)),))
    assert converted(numbers, "str") is numbers
    mixed = text_request("a", b"\xff")
    assert converted(mixed, "sent") is mixed


def test_tensors_without_axes_become_rows():
    request = _request(x=X, y=np.array(2.0), text=np.array(b"t", object))
    found = converted(request, "str")
    assert [t.data.shape for t in found.inputs] == [(2, 3), (1,), (1,)]
    assert (found["x"] is X, found["y"].tolist(), found["text"].tolist()) == (True, [2.0], ["t"])
    kept = converted(request, "str", as_rows=False)
    assert [t.data.shape for t in kept.inputs] == [(2, 3), (), ()]
    assert kept["text"].item() == "t"


def test_empty_input_is_unchanged():
    empty = InferRequest((Tensor("text", np.empty((0, 2), object)),))
    assert converted(empty, "str")["text"].shape == (0, 2)


def test_invalid_utf8_names_element_and_byte():
    with pytest.raises(ModelInputError, match="element 1 is not UTF-8"):
        converted(text_request("a", b"\xff"), "str")
