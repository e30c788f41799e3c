"""Text into and out of models."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.model import RowError
from headrace.core.tensor import text_array
from headrace.runtimes.model_io import WHY_CHARS_MAX, decode_text, encode_json_texts, summarize_error


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_bytes_become_str(texts):
    given_ = text_array([t.encode() if i % 2 else t for i, t in enumerate(texts)])
    assert decode_text("x", given_).tolist() == texts


def test_str_arrays_are_not_copied():
    data = text_array(["a", "b"])
    assert decode_text("x", data) is data


def test_rows_that_are_not_utf8_are_named():
    data = np.array([[b"a", b"b"], [b"c", b"\xff"], ["d", b"e"]], object)
    with pytest.raises(
        RowError, match="row 1: input 'x' is not UTF-8: invalid start byte at byte 0"
    ) as caught:
        decode_text("x", data)
    assert list(caught.value.rows) == [1]


def test_any_value_becomes_json_text():
    values = [{"a": np.float32(1.5), 2: [np.int64(3)]}, np.arange(2), object, {"b": {1}}, float("nan")]
    texts = encode_json_texts(values)
    assert texts.shape == (5,)
    assert [json.loads(t) for t in texts[[0, 1, 4]]] == [{"a": 1.5, "2": [3]}, [0, 1], None]
    assert all(isinstance(json.loads(t), (str, dict)) for t in texts[2:4])


def test_error_summary_is_one_short_line():
    assert summarize_error(ValueError("a\n  b\x1b[1m c\x1b[0m")) == "ValueError: a b c"
    assert summarize_error(KeyError()) == "KeyError"
    assert len(summarize_error(ValueError("x" * 9999))) == WHY_CHARS_MAX
