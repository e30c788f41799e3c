import numpy as np
import orjson
import pytest

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError
from headrace.core.tensor import ModelMetadata
from headrace.formats.contract import BlockSelection
from headrace.formats.jsonl_encode import JsonLinesEncoder
from headrace.formats.parquet import ParquetEncoder
from headrace.formats.read import ReadOptions
from headrace.formats.transform_csv import TransformCsvEncoder
from headrace.runs.encoders import Encoders
from headrace.runs.mapping import Mapper
from headrace.runs.settings import MappingOptions, OutputSettings, StreamSettings

OUTPUTS = {"y": np.zeros(1, np.float32)}


def encoder(*, learned=None, **output):
    mapper = Mapper(ModelMetadata("m"), MappingOptions(), ReadOptions(), learned)
    return Encoders(StreamSettings(output=OutputSettings(**output)), mapper).make(OUTPUTS, None)


def selection_of(name, text, **more):
    """Return one record of an object with this name."""
    block = Block(Position(name), text, np.array([0]), np.array([len(text)]), **more)
    return BlockSelection(block, 0, 1)


@for_each(
    ("format_", "kind"),
    [("csv", TransformCsvEncoder), ("jsonl", JsonLinesEncoder), ("parquet", ParquetEncoder)],
)
def test_encoder_has_the_requested_format(format_, kind):
    assert isinstance(encoder(format=format_), kind)


@for_each(
    ("header", "names", "begins"),
    [(None, None, b""), (None, ["a"], b"y\n"), (True, None, b"y\n"), (False, ["a"], b"")],
)
def test_header_follows_the_input_or_the_setting(header, names, begins):
    assert encoder(header=header, learned={"format": "csv", "column_names": names}).begin() == begins


def test_joined_lines_use_the_sources_delimiter_and_names():
    learned = {"format": "csv", "column_names": ["a", "b"], "delimiter": "\t"}
    assert encoder(join="input", learned=learned).begin() == b"a\tb\ty\n"


MIXED = [selection_of("a.csv", b"1,2"), selection_of("b.jsonl", b'{"x": 1}'), selection_of("c.tsv", b"1\t2")]
Y = {"y": np.zeros(3, np.float32)}


@for_each("first", ["csv", "jsonl"])
def test_mixed_formats_can_be_joined_as_json_lines(first):
    """Every line is valid JSON, whatever the first format is."""
    out = encoder(format="jsonl", join="input", learned={"format": first}).encode(MIXED, Y)
    assert [orjson.loads(line)["input"] for line in out.splitlines()] == ["1,2", {"x": 1}, "1\t2"]


@for_each(
    ("pieces", "first", "says"),
    [
        (MIXED[:2], "csv", "from b.jsonl, .* are jsonl, those before CSV with the delimiter ','"),
        (MIXED[::2], "csv", r"from c.tsv, .* are CSV with the delimiter '\\t'"),
        (MIXED[1::-1], "jsonl", "from a.csv, .* those before jsonl"),
    ],
)
def test_mixed_formats_cannot_be_joined_as_csv(pieces, first, says):
    """Otherwise a prediction could be in a column of the input."""
    out = encoder(join="input", learned={"format": first, "delimiter": ","})
    with pytest.raises(ConfigError, match=says):
        out.encode(pieces, {"y": Y["y"][:2]})
    assert out.encode(pieces[:1], OUTPUTS)


@for_each("header", [None, False])
def test_records_with_other_columns_than_the_header_are_refused(header):
    learned = {"format": "csv", "column_names": ["a", "b"]}
    out = encoder(join="input", header=header, learned=learned)
    same, other = (selection_of("a.csv", b"1,2", column_names=names) for names in [("a", "b"), ("b", "a")])
    assert out.encode([same], OUTPUTS) == b"1,2,0.0\n"
    if header is False:
        assert out.encode([other], OUTPUTS) == b"1,2,0.0\n"
        return
    with pytest.raises(ConfigError, match="differ from the header"):
        out.encode([other], OUTPUTS)


def test_mixed_formats_are_accepted_without_join():
    assert encoder(learned={"format": "csv"}).encode(MIXED, Y) == b"0.0\n" * 3
