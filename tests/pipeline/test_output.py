import numpy as np
import orjson
import pytest

from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError
from headrace.core.tensor import ModelMetadata
from headrace.formats.contract import Piece
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.jsonl_encode import JsonLinesEncoder
from headrace.formats.parquet import ParquetEncoder
from headrace.formats.read import ReadOptions
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.output import Encoders
from headrace.pipeline.settings import MappingOptions, OutputSettings, StreamSettings

OUTPUTS = {"y": np.zeros(1, np.float32)}


def encoder(*, learned=None, **output):
    mapper = Mapper(ModelMetadata("m"), MappingOptions(), ReadOptions(), learned)
    return Encoders(StreamSettings(output=OutputSettings(**output)), mapper).make(OUTPUTS)


def piece(name, text, **more):
    """One record as it stands in an object of that name."""
    block = Block(Position(name), text, np.array([0]), np.array([len(text)]), **more)
    return Piece(block, 0, 1)


@pytest.mark.parametrize(
    ("format_", "kind"), [("csv", CsvEncoder), ("jsonl", JsonLinesEncoder), ("parquet", ParquetEncoder)]
)
def test_the_format_is_as_asked(format_, kind):
    assert isinstance(encoder(format=format_), kind)


@pytest.mark.parametrize(
    ("header", "names", "begins"),
    [(None, None, b""), (None, ["a"], b"y\n"), (True, None, b"y\n"), (False, ["a"], b"")],
)
def test_a_header_stands_where_the_input_had_one_for_names_or_as_asked(header, names, begins):
    assert encoder(header=header, learned={"format": "csv", "column_names": names}).begin() == begins


def test_joined_lines_go_by_the_sources_delimiter_and_names():
    learned = {"format": "csv", "column_names": ["a", "b"], "delimiter": "\t"}
    assert encoder(join="input", learned=learned).begin() == b"a\tb\ty\n"


MIXED = [piece("a.csv", b"1,2"), piece("b.jsonl", b'{"x": 1}'), piece("c.tsv", b"1\t2")]
Y = {"y": np.zeros(3, np.float32)}


@pytest.mark.parametrize("first", ["csv", "jsonl"])
def test_records_of_mixed_formats_joined_as_json_lines_are_each_what_they_are(first):
    """Whatever the source began with, every line is valid JSON."""
    out = encoder(format="jsonl", join="input", learned={"format": first}).encode(MIXED, Y)
    assert [orjson.loads(line)["input"] for line in out.splitlines()] == ["1,2", {"x": 1}, "1\t2"]


@pytest.mark.parametrize(
    ("pieces", "first", "says"),
    [
        (MIXED[:2], "csv", "from b.jsonl, .* are jsonl, those before CSV with ',' between cells"),
        (MIXED[::2], "csv", r"from c.tsv, .* are CSV with '\\t' between cells"),
        (MIXED[1::-1], "jsonl", "from a.csv, .* those before jsonl"),
    ],
)
def test_records_of_mixed_formats_cannot_be_joined_as_csv(pieces, first, says):
    """A prediction would else stand under a column of the input's."""
    out = encoder(join="input", learned={"format": first, "delimiter": ","})
    with pytest.raises(ConfigError, match=says):
        out.encode(pieces, {"y": Y["y"][:2]})
    assert out.encode(pieces[:1], OUTPUTS)


@pytest.mark.parametrize("header", [None, False])
def test_records_below_a_header_of_other_columns_are_refused_where_names_would_lie(header):
    learned = {"format": "csv", "column_names": ["a", "b"]}
    out = encoder(join="input", header=header, learned=learned)
    same, other = (piece("a.csv", b"1,2", column_names=names) for names in [("a", "b"), ("b", "a")])
    assert out.encode([same], OUTPUTS) == b"1,2,0.0\n"
    if header is False:
        assert out.encode([other], OUTPUTS) == b"1,2,0.0\n"
        return
    with pytest.raises(ConfigError, match="other columns, or in another order"):
        out.encode([other], OUTPUTS)


def test_what_is_not_joined_may_be_mixed():
    assert encoder(learned={"format": "csv"}).encode(MIXED, Y) == b"0.0\n" * 3
