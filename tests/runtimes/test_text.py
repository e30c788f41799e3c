"""Text in and out of models."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.model import RowError
from headrace.core.tensor import text_array
from headrace.runtimes.text import WHY_CHARS_MAX, decoded_text, json_texts, one_line


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_bytes_become_str(texts):
    given_ = text_array([t.encode() if i % 2 else t for i, t in enumerate(texts)])
    assert decoded_text("x", given_).tolist() == texts


def test_what_is_str_already_is_not_copied():
    data = text_array(["a", "b"])
    assert decoded_text("x", data) is data


def test_rows_that_are_not_utf8_are_named():
    data = np.array([[b"a", b"b"], [b"c", b"\xff"], ["d", b"e"]], object)
    with pytest.raises(
        RowError, match="row 1: input 'x' is not UTF-8: invalid start byte at byte 0"
    ) as caught:
        decoded_text("x", data)
    assert list(caught.value.rows) == [1]


def test_anything_has_a_json_text():
    values = [{"a": np.float32(1.5), 2: [np.int64(3)]}, np.arange(2), object, {"b": {1}}, float("nan")]
    texts = json_texts(values)
    assert texts.shape == (5,)
    assert [json.loads(t) for t in texts[[0, 1, 4]]] == [{"a": 1.5, "2": [3]}, [0, 1], None]
    assert all(isinstance(json.loads(t), (str, dict)) for t in texts[2:4])


def test_an_error_is_one_short_line():
    assert one_line(ValueError("a\n  b\x1b[1m c\x1b[0m")) == "ValueError: a b c"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 9999))) == WHY_CHARS_MAX
