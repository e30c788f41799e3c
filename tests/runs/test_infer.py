import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError
from headrace.formats.csv import CsvDialect
from headrace.formats.json_path import compile_path
from headrace.formats.record_table import table_blocks
from headrace.runs.infer import infer_csv, infer_json, infer_table
from headrace.runs.schema import Column, RecordSchema, Schema, parse_schema

DIALECT = CsvDialect.from_strings(",", '"')


def block_of(text: str, object: str = "a.csv", names: tuple[str, ...] | None = None) -> Block:
    raw = [line.encode() for line in text.split("\n") if line]
    ends = np.cumsum([len(r) + 1 for r in raw], dtype=np.int64) - 1
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64) if raw else ends
    return Block(Position(f"memory://b/{object}"), b"\n".join(raw) + b"\n", starts, ends, column_names=names)


def csv(*texts: str, finds_header: bool = True, wanted: tuple[str, ...] = ()) -> RecordSchema:
    blocks = [block_of(text, f"{number}.csv") for number, text in enumerate(texts)]
    return infer_csv(blocks, [DIALECT] * len(blocks), finds_header=finds_header, wanted=wanted)


def types(found: RecordSchema) -> list[str]:
    return [column.type for column in found.columns]


# CSV


@for_each(
    ("text", "found"),
    [
        ("1,2\n1,2,3\n4,5,6", ["integer", "integer", "integer"]),
        ("# comment\n1,2.5\n3,4", ["integer", "number"]),
        ("x,1,true\ny,,FALSE", ["text", "integer", "boolean"]),
        ("1\nx\n2", ["integer"]),
        ("1e3,+4,-0,nan\n.5,7,1,inf", ["number", "integer", "integer", "number"]),
        ("10001,1\n00501,2\n,3", ["text", "integer"]),
        ("1234567890123456789,1\n1,2", ["text", "integer"]),
        ("1_000,٣\n1_000,٣", ["text", "text"]),
        (",1\n,2", ["null", "integer"]),
    ],
)
def test_majority_decides_width_and_types(text, found):
    assert types(csv(text)) == found


def test_widths_of_all_records_are_counted():
    assert dict(csv("1\n1,2\n3,4\n1,2,3").widths) == {2: 2, 1: 1, 3: 1}


@for_each(
    ("texts", "names"),
    [
        (["age,name\n1,Jo\n2,Al"], ("age", "name")),
        (["age,name\n1,Jo", "age,name\n2,Al", "3,Bo\n4,Cy"], ("age", "name")),
        (["age,name\n1,Jo", "5,Di", "3,Bo"], ()),
        (["age,name"], ()),
        (["age,name", "age,name\n1,Jo"], ("age", "name")),
        (["a,a\n1,2"], ()),
        (["a,\n1,2"], ()),
        (["a,7\n1,2"], ()),
        (["first,name\nJo,Doe\nAl,Roe"], ()),
        (["# comment\n1,2\n3,4"], ()),
        (['"the, age",b\n1,2'], ("the, age", "b")),
        (["\ufeffä,ö\n1,2"], ("\ufeffä", "ö")),
    ],
)
def test_header_is_a_first_record_of_words_above_numbers(texts, names):
    assert csv(*texts).names == names
    assert csv(*texts, finds_header=False).names == ()


def test_wanted_name_shows_a_header_above_text():
    assert csv("first,name\nJo,Doe", wanted=("name",)).names == ("first", "name")
    assert csv("first,name\nJo,Doe", wanted=("Name",)).names == ()
    assert csv("first,name", wanted=("name",)).names == ("first", "name")


def test_header_is_no_value_of_its_columns():
    assert types(csv("age,name\n1,Jo")) == ["integer", "text"]


def test_names_of_the_blocks_are_the_header():
    blocks = [block_of("1,x", "a.csv", ("p", "q")), block_of("2,y", "b.csv", ("p", "q"))]
    assert infer_csv(blocks, [DIALECT] * len(blocks), finds_header=False).names == ("p", "q")


@given(st.lists(st.tuples(st.integers(), st.floats(allow_nan=False)), min_size=1, max_size=30))
def test_numbers_are_never_a_header(rows):
    assert csv("\n".join(f"{a},{b}" for a, b in rows)).names == ()


# JSON


def json(*lines: str, path: str = "$") -> RecordSchema:
    return infer_json("jsonl", [block_of("\n".join(lines), "a.jsonl")], compile_path(path))


def test_fields_have_the_most_frequent_type_and_shape():
    found = json('{"f": ["x"]}', '{"f": [1, 2], "g": 1}', '{"f": [3, 4.5], "g": null}', '{"g": 2.5}', "junk")
    assert found.columns == (Column("f", "number", (2,), 1), Column("g", "number", (), 2))


@for_each(
    ("lines", "column"),
    [
        (["[1, 2]", "[3, 4]", "[5]"], Column(None, "integer", (2,))),
        (["[[1.5], [2]]"], Column(None, "number", (2, 1))),
        (['"a"', '"b"', "1"], Column(None, "text")),
        (["true", "null"], Column(None, "boolean", (), 1)),
        (["junk"], Column(None, "null")),
        (["[1]", '{"x": 1}', "[2]"], Column(None, "integer", (1,))),
    ],
)
def test_records_that_are_no_objects_are_one_column(lines, column):
    found = json(*lines)
    assert (found.columns, found.is_whole) == ((column,), True)


def test_schema_is_of_the_filtered_part():
    assert json('{"a": {"b": [1, 2]}}', '{"c": 1}', path="$.a").columns == (Column("b", "integer", (2,)),)
    with pytest.raises(ConfigError, match="the input filter selects nothing"):
        json('{"c": 1}', path="$.a")


# Tables


def test_columns_of_most_files_decide():
    def file(*names: str) -> Block:
        batch = pa.record_batch({"l": [[1, 2]], "n": [1]}).select(list(names))
        (block,) = table_blocks(batch, Position("a.parquet"), record_bytes_max=1000)
        return block

    found = infer_table("parquet", [file("n"), file("n", "l"), file("n", "l")])
    assert found.columns == (Column("n", "integer"), Column("l", "integer", (2,)))


# The document


def test_schema_round_trips_as_json():
    import orjson

    schema = Schema((csv("age,name\n1,Jo\n,Al"), json('{"f": [[1, 2]]}'), RecordSchema("line")))
    assert parse_schema(orjson.dumps(schema.to_json()), "s.json") == schema


@for_each(
    ("text", "why"),
    [
        (b"{", "s.json: not a schema: .*headrace inspect"),
        (b"[]", "s.json: not a schema"),
        (b'{"version": 2}', "version 2 is not 1"),
        (b'{"format": []}', "unknown key 'format': the keys are formats"),
        (b'{"formats": {}}', "Expected `array`"),
        (b'{"formats": [{"format": "csv", "columns": [{"title": "a"}]}]}', "unknown key 'title'"),
        (b'{"formats": [{"format": "csv", "columns": [{"type": "int"}]}]}', "Invalid enum value 'int'"),
        (b'{"formats": [{"columns": []}]}', "missing required field `format`"),
        (b'{"formats": [{"format": "csv"}]}', "csv needs columns"),
        (
            b'{"formats": [{"format": "csv", "columns": [{"name": "a"}, {}]}]}',
            "all of them with a name or none",
        ),
        (b'{"formats": [{"format": "json"}, {"format": "json"}]}', "a format is there twice"),
    ],
)
def test_invalid_document_is_refused(text, why):
    with pytest.raises(ConfigError, match=why):
        parse_schema(text, "s.json")


def test_text_names_the_columns():
    assert csv("age,name\n1,Jo").text() == "csv, 2 columns: age integer, name text (from 1 record)"
    assert csv(",".join("1" * 784)).text() == "csv, 784 columns: integer (from 1 record)"
    assert json("[[1, 2]]").text() == "jsonl, 1 column: integer[1 x 2]"
    assert RecordSchema("line", records=3).text() == "line (from 3 records)"
