import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, ModelContractError
from headrace.formats.contract import Piece
from headrace.formats.encode import output_columns
from headrace.formats.text_encode import TextEncoder


def pieces_of(rows: int) -> list[Piece]:
    none = np.zeros(rows, np.int64)
    return [Piece(Block(Position(), starts=none, ends=none), 0, rows)]


def encoded(outputs, **options) -> bytes:
    (data,) = outputs.values()
    encoder = TextEncoder(output_columns(outputs), **options)
    return encoder.begin() + encoder.encode(pieces_of(len(data)), outputs) + encoder.finish()


def test_texts_leave_as_they_stand():
    texts = np.array(['a "b",c', "two\nlines", "", None, b"\xff\x00", "ä", 7, "\ud800"], object)
    assert encoded({"t": texts}) == b'a "b",c\ntwo\nlines\n\n\n\xff\x00\n\xc3\xa4\n7\n\\ud800\n'
    assert encoded({"t": np.array(["a", "b"])}, separator=b"") == b"ab"
    assert encoded({"t": np.array([["a"], ["b"]])}) == b"a\nb\n"


@given(st.lists(st.text(alphabet="ab\n", max_size=5), max_size=9), st.integers(0, 9))
def test_batches_leave_no_trace(texts, cut):
    data = np.array(texts, object)
    encoder = TextEncoder(output_columns({"t": np.array(["x"], object)}))
    parts = [encoder.encode(pieces_of(len(part)), {"t": part}) for part in (data[:cut], data[cut:])]
    assert b"".join(parts) == "".join(text + "\n" for text in texts).encode()


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"y": np.zeros(2)},
        {"t": np.array(["a", "b"]), "u": np.array(["a", "b"])},
        {"t": np.array([["a", "b"], ["c", "d"]])},
    ],
)
def test_what_is_not_one_text_a_record_is_refused(outputs):
    with pytest.raises(ConfigError, match="choose csv or jsonl"):
        TextEncoder(output_columns(outputs))


def test_a_row_too_few_is_told():
    encoder = TextEncoder(output_columns({"t": np.array(["a"])}))
    with pytest.raises(ModelContractError):
        encoder.encode(pieces_of(2), {"t": np.array(["a"])})
