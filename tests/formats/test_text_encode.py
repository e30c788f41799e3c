"""Tests of text output."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, ModelContractError
from headrace.formats.contract import BlockSelection
from headrace.formats.encode import TextEncoder, output_columns


def selections_of(rows: int) -> list[BlockSelection]:
    none = np.zeros(rows, np.int64)
    return [BlockSelection(Block(Position(), starts=none, ends=none), 0, rows)]


def encode_part(outputs, **options) -> bytes:
    (data,) = outputs.values()
    encoder = TextEncoder(output_columns(outputs), **options)
    return encoder.begin() + encoder.encode(selections_of(len(data)), outputs) + encoder.finish()


def test_texts_are_written_unchanged():
    texts = np.array(['a "b",c', "two\nlines", "", None, b"\xff\x00", "ä", 7, "\ud800"], object)
    assert encode_part({"t": texts}) == b'a "b",c\ntwo\nlines\n\n\n\xff\x00\n\xc3\xa4\n7\n\\ud800\n'
    assert encode_part({"t": np.array(["a", "b"])}, separator=b"") == b"ab"
    assert encode_part({"t": np.array([["a"], ["b"]])}) == b"a\nb\n"


@given(st.lists(st.text(alphabet="ab\n", max_size=5), max_size=9), st.integers(0, 9))
def test_output_is_independent_of_batches(texts, cut):
    data = np.array(texts, object)
    encoder = TextEncoder(output_columns({"t": np.array(["x"], object)}))
    parts = [encoder.encode(selections_of(len(part)), {"t": part}) for part in (data[:cut], data[cut:])]
    assert b"".join(parts) == "".join(text + "\n" for text in texts).encode()


@for_each(
    "outputs",
    [
        {},
        {"y": np.zeros(2)},
        {"t": np.array(["a", "b"]), "u": np.array(["a", "b"])},
        {"t": np.array([["a", "b"], ["c", "d"]])},
    ],
)
def test_outputs_other_than_one_text_per_record_are_rejected(outputs):
    with pytest.raises(ConfigError, match="choose csv or jsonl"):
        TextEncoder(output_columns(outputs))


def test_missing_row_is_rejected():
    encoder = TextEncoder(output_columns({"t": np.array(["a"])}))
    with pytest.raises(ModelContractError):
        encoder.encode(selections_of(2), {"t": np.array(["a"])})
