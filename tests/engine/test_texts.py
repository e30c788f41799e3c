"""Text reaches a model in one form, whichever door it came through."""

import numpy as np
import pytest

from engine.support import rows
from headrace.core import InferRequest, Tensor
from headrace.core.errors import ModelInputError
from headrace.core.tensor import text_array
from headrace.engine.texts import with_texts


def asked(*values, shape=None):
    text = text_array(values)
    return InferRequest(
        (Tensor("x", rows(1)), Tensor("text", text.reshape(shape or text.shape), {"kind": 1}))
    )


@pytest.mark.parametrize("sent", [("a", "ü"), (b"a", "ü".encode()), ("a", "ü".encode())])
@pytest.mark.parametrize(("bytes_as", "given"), [("str", ["a", "ü"]), ("bytes", [b"a", "ü".encode()])])
def test_it_is_what_the_model_wants_whatever_was_sent(sent, bytes_as, given):
    request = with_texts(asked(*sent, shape=(2, 1)), bytes_as, "m")
    assert request["text"].tolist() == [[g] for g in given]
    assert request.inputs[1].parameters == {"kind": 1}


def test_what_is_right_already_is_not_copied():
    request = asked("a", "b")
    assert with_texts(request, "str", "m").inputs[1] is request.inputs[1]
    numbers = InferRequest((Tensor("x", rows(1)),))
    assert with_texts(numbers, "str", "m") is numbers
    mixed = asked("a", b"\xff")
    assert with_texts(mixed, "sent", "m") is mixed


def test_no_elements_are_no_text():
    empty = InferRequest((Tensor("text", np.empty((0, 2), object)),))
    assert with_texts(empty, "str", "m")["text"].shape == (0, 2)


def test_bytes_that_are_no_text_are_told_by_their_place():
    with pytest.raises(ModelInputError, match="element 1 is not UTF-8"):
        with_texts(asked("a", b"\xff"), "str", "m")
