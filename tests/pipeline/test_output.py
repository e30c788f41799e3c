import numpy as np
import pytest

from headrace.core.tensor import ModelMetadata
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
