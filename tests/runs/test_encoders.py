"""Output formats, joins, filters and separators, of outputs per object and of parts."""

import numpy as np
import orjson
import pyarrow.ipc
import pyarrow.parquet
import pytest

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, TooManyFailuresError
from headrace.core.model import Model
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.contract import BlockSelection
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import TextEncoder
from headrace.formats.json_encode import JsonLinesEncoder, TransformJsonEncoder
from headrace.formats.parquet import ArrowEncoder, ParquetEncoder
from headrace.formats.read_options import ReadOptions
from headrace.reports.report import Report
from headrace.runs import encoders
from headrace.runs.encoders import Encoders
from headrace.runs.mapping import Mapper
from headrace.runs.output_columns import resolve_format
from headrace.runs.output_settings import TABLES, OutputSettings
from headrace.runs.run import Run
from headrace.runs.schema import Column, RecordSchema, Schema
from headrace.runs.settings import MappingOptions, StreamSettings, TransformSettings
from headrace.runs.tasks import InProcessRunner
from headrace.storage.resolve import Stores
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    engine,
    failed_lines,
    make_settings,
    outputs,
    put,
    rows,
    tar,
    transform,
)

INPUTS = {
    "csv": ("a.csv", b'1,2\n"3",4\nx,1\n5,6\n'),
    "jsonl": ("a.jsonl", b'{"x": [1, 2]}\n{"x": [3, 4]}\n{"x": "q"}\n{"x": [5, 6], "id": "z"}\n'),
    "tar": (
        "a.tar",
        tar(
            {
                "1.json": b'{"x": [1, 2]}',
                "2.json": b'{"x":\n[3, 4]}',
                "3.json": b"{",
                "4.json": b'{"x": [5, 6]}',
            }
        ),
    ),
}


def transform_one(shared, kind: str, **output) -> bytes:
    stores = Stores()
    name, data = INPUTS[kind]
    put(stores, {name: data})
    report = transform(stores, predictor=shared, settings=make_settings(output=output))
    assert (report.rows_out, report.rows_failed) == (3, 1)
    found = outputs(stores)
    written = f"{name}.out" + (f".{output['format']}" if output.get("format") in TABLES else "")
    assert set(found) == {written, f"{written}.failed"}
    return found[written]


@for_each(
    ("kind", "output", "expected"),
    [
        ("csv", {}, b"2.0\n6.0\n10.0\n"),
        ("csv", {"join": "input"}, b'1,2,2.0\n"3",4,6.0\n5,6,10.0\n'),
        ("csv", {"join": "input", "output_filter": "$[0,-1]"}, b'1,2.0\n"3",6.0\n5,10.0\n'),
        ("csv", {"header": True}, b"y\n2.0\n6.0\n10.0\n"),
        ("csv", {"format": "jsonl"}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        ("csv", {"format": "jsonl", "output_filter": "$.y"}, b"2.0\n6.0\n10.0\n"),
        ("csv", {"format": "json", "assemble": "none"}, b'{"y":2.0}{"y":6.0}{"y":10.0}'),
        ("csv", {"format": "json"}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        ("jsonl", {}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        (
            "jsonl",
            {"join": "input"},
            b"".join(
                (
                    b'{"x": [1, 2],"SageMakerOutput":{"y":2.0}}\n',
                    b'{"x": [3, 4],"SageMakerOutput":{"y":6.0}}\n',
                    b'{"x": [5, 6], "id": "z","SageMakerOutput":{"y":10.0}}\n',
                )
            ),
        ),
        ("jsonl", {"join": "input", "output_filter": "$.SageMakerOutput.y"}, b"2.0\n6.0\n10.0\n"),
        ("jsonl", {"format": "csv"}, b"2.0\n6.0\n10.0\n"),
        ("tar", {}, b'{"y":2.0}\n{"y":6.0}\n{"y":10.0}\n'),
        ("tar", {"format": "json", "assemble": "none", "output_filter": "$['y']"}, b"2.06.010.0"),
    ],
)
def test_predictions_have_the_requested_format(shared, kind, output, expected):
    assert transform_one(shared, kind, **output) == expected


@for_each("accept", ["parquet", "arrow"])
@for_each("kind", list(INPUTS))
@for_each("join", ["none", "input"])
def test_predictions_are_written_as_tables(shared, kind, accept, join):
    table = read_table(accept, transform_one(shared, kind, format=accept, join=join))
    assert table["y"].to_pylist() == [2.0, 6.0, 10.0]
    columns = {"csv": {"0": 1, "1": 2}, "jsonl": {"x": [1, 2], "id": None}, "tar": {"x": [1, 2]}}[kind]
    assert table.slice(0, 1).to_pylist() == [(columns if join == "input" else {}) | {"y": 2.0}]


@for_each("accept", ["parquet", "arrow"])
def test_table_of_an_object_without_records_is_valid(shared, accept):
    stores = Stores()
    put(stores, {"a.csv": b"", "b.csv": b"x,1\n", "c.csv": rows(3), "d.csv.gz": b"\x1f\x8b"})
    transform(stores, predictor=shared, settings=make_settings(output={"format": accept}))
    found = outputs(stores)
    for name, count in (("a.csv", 0), ("b.csv", 0), ("c.csv", 3), ("d.csv.gz", 0)):
        suffix = ".partial" if name == "d.csv.gz" else ""
        table = read_table(accept, found[f"{name}.out.{accept}{suffix}"])
        assert (table.num_rows, table.schema.names, str(table.schema.types[0])) == (count, ["y"], "double")
    assert len(failed_lines(found[f"b.csv.out.{accept}.failed"])) == 1


def read_table(accept: str, data: bytes):
    if accept == "arrow":
        return pyarrow.ipc.open_file(pyarrow.BufferReader(data)).read_all()
    return pyarrow.parquet.read_table(pyarrow.BufferReader(data))


@for_each("accept", ["parquet", "arrow"])
@for_each("checkpoint_s", [0.0, 1e9])
@for_each("columns", [{}, {"join": "input"}, {"keep": ("1",), "rename": ("1=second",)}])
def test_tables_resume_object_by_object(shared, accept, checkpoint_s, columns):
    objects = {"a.csv": rows(9), "b.csv": rows(9, 9), "c.csv": b"x,1\n" + rows(9, 18)}
    whole = Stores()
    put(whole, objects)
    settings = make_settings(output={"format": accept, **columns}, checkpoint_s=checkpoint_s)
    transform(whole, predictor=shared, settings=settings)
    for at in range(1, 7):
        stores = Stores()
        put(stores, objects)
        with pytest.raises(InjectedError):
            transform(stores, predictor=FailingPredictor(shared, at=at), settings=settings)
        transform(stores, predictor=shared, settings=settings, if_exists="resume")
        assert outputs(stores) == outputs(whole)


class UppercaseModel(Model):
    """A model from text to text."""

    inputs = (TensorSpec("text", "BYTES", (-1,)),)
    max_batch_rows = 3

    def predict(self, text):
        return {"said": np.array([str(t).upper() for t in text], object)}


@for_each(("assemble", "expected"), [("line", b"A\nB C\n\xc3\x84\n"), ("none", b"AB C\xc3\x84")])
def test_text_is_written_unchanged(assemble, expected):
    stores = Stores()
    put(stores, {"a.csv": "a\nb c\nä\n".encode()})
    settings = make_settings(read={"format": "line"}, output={"format": "text", "assemble": assemble})
    with engine(UppercaseModel()) as predictor:
        transform(stores, predictor=predictor, settings=settings)
    assert outputs(stores) == {"a.csv.out": expected}


def test_accept_text_refuses_numbers(shared, stores):
    put(stores, {"a.csv": rows(2)})
    with pytest.raises(ConfigError, match="choose csv or jsonl"):
        transform(stores, predictor=shared, settings=make_settings(output={"format": "text"}))


def test_input_formats_can_be_mixed(shared, stores):
    put(stores, dict(INPUTS.values()))
    report = transform(stores, predictor=shared)
    assert (report.rows_out, report.rows_failed) == (9, 3)
    assert [outputs(stores)[f"a.{k}.out"] for k in ("csv", "jsonl", "tar")] == [b"2.0\n6.0\n10.0\n"] * 3


def test_whole_records_are_passed_to_a_text_model(stores):
    put(stores, {"a.csv": b'1,"b"\n', "a.jsonl": b'{"q": 1}\n'})
    settings = make_settings(mapping={"whole_records": True}, output={"format": "text"})
    with engine(UppercaseModel()) as predictor:
        transform(stores, predictor=predictor, settings=settings)
    assert outputs(stores) == {"a.csv.out": b'1,"B"\n', "a.jsonl.out": b'{"Q": 1}\n'}


@for_each(
    ("kind", "expected"),
    [("csv", "csv"), ("line", "csv"), (None, "csv"), ("json", "jsonl"), ("jsonl", "jsonl"), ("image", "csv")],
)
def test_default_accept_follows_the_first_records(kind, expected):
    assert resolve_format(TransformSettings(), kind) == expected
    assert resolve_format(TransformSettings(output=OutputSettings(format="parquet")), kind) == "parquet"


def test_default_format_of_parts_is_csv():
    assert {resolve_format(StreamSettings(), kind) for kind in ("csv", "jsonl", None)} == {"csv"}


# Parts

TEXT_ROW = {"y": np.array(["a"], object)}
ONE_ROW = {"y": np.zeros(1, np.float32)}


def schema_of(format, names=(), delimiter=","):
    return Schema((RecordSchema(format, tuple(map(Column, names or ())), delimiter),))


def part_encoder(*, schema=None, **output):
    mapper = Mapper(ModelMetadata("m"), MappingOptions(), ReadOptions(), schema)
    return Encoders(StreamSettings(output=OutputSettings(**output)), mapper).make(ONE_ROW, None)


def selection_of(name, text, **more):
    """Return one record of an object with this name."""
    block = Block(Position(name), text, np.array([0]), np.array([len(text)]), **more)
    return BlockSelection(block, 0, 1)


@for_each(
    ("format_", "kind"),
    [("csv", CsvEncoder), ("jsonl", JsonLinesEncoder), ("parquet", ParquetEncoder)],
)
def test_part_has_the_requested_format(format_, kind):
    assert isinstance(part_encoder(format=format_), kind)


def object_encoder(format_):
    settings = TransformSettings()
    object.__setattr__(settings.output, "format", format_)
    mapper = Mapper(ModelMetadata("m"), MappingOptions(), ReadOptions())
    return Encoders(settings, mapper).make(TEXT_ROW if format_ == "text" else ONE_ROW, None)


@for_each(
    ("format_", "kind"),
    [
        ("auto", CsvEncoder),
        ("csv", CsvEncoder),
        ("jsonl", TransformJsonEncoder),
        ("json", TransformJsonEncoder),
        ("text", TextEncoder),
        ("parquet", ParquetEncoder),
        ("arrow", ArrowEncoder),
    ],
)
def test_object_has_the_requested_format(format_, kind):
    assert isinstance(object_encoder(format_), kind)


def test_format_without_an_encoder_is_an_error():
    with pytest.raises(AssertionError, match="xml"):
        object_encoder("xml")


@for_each(
    ("header", "names", "begins"),
    [(None, None, b""), (None, ["a"], b"y\n"), (True, None, b"y\n"), (False, ["a"], b"")],
)
def test_header_of_a_part_follows_the_input_or_the_setting(header, names, begins):
    assert part_encoder(header=header, schema=schema_of("csv", names)).begin() == begins


def test_joined_lines_use_the_sources_delimiter_and_names():
    schema = schema_of("csv", ("a", "b"), "\t")
    assert part_encoder(join="input", schema=schema).begin() == b"a\tb\ty\n"


MIXED = [selection_of("a.csv", b"1,2"), selection_of("b.jsonl", b'{"x": 1}'), selection_of("c.tsv", b"1\t2")]
Y = {"y": np.zeros(3, np.float32)}


@for_each("first", ["csv", "jsonl"])
def test_mixed_formats_can_be_joined_as_json_lines(first):
    """Every line is valid JSON, whatever the first format is."""
    out = part_encoder(format="jsonl", join="input", schema=schema_of(first)).encode(MIXED, Y)
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
    out = part_encoder(join="input", schema=schema_of(first))
    with pytest.raises(ConfigError, match=says):
        out.encode(pieces, {"y": Y["y"][:2]})
    assert out.encode(pieces[:1], ONE_ROW)


@for_each("header", [None, False])
def test_records_with_other_columns_than_the_header_are_refused(header):
    schema = schema_of("csv", ("a", "b"))
    out = part_encoder(join="input", header=header, schema=schema)
    same, other = (selection_of("a.csv", b"1,2", column_names=names) for names in [("a", "b"), ("b", "a")])
    assert out.encode([same], ONE_ROW) == b"1,2,0.0\n"
    if header is False:
        assert out.encode([other], ONE_ROW) == b"1,2,0.0\n"
        return
    with pytest.raises(ConfigError, match="differ from the header"):
        out.encode([other], ONE_ROW)


def test_mixed_formats_are_accepted_without_join():
    assert part_encoder(schema=schema_of("csv")).encode(MIXED, Y) == b"0.0\n" * 3


def stream(
    shared, objects, *, read=None, mapping=None, failures=None, **output
) -> tuple[Report, dict[str, bytes]]:
    """Run a stream to its end. Return its report and its published parts."""
    stores = Stores()
    put(stores, objects)
    settings = make_settings(
        preset=StreamSettings, read=read, mapping=mapping, failures=failures, output=output
    )
    run = Run(IN, OUT, stores=stores, predictor=shared, settings=settings, model_identity="m")
    return run.execute(), outputs(stores)


@for_each(
    ("kind", "output", "expected"),
    [
        ("csv", {"output_filter": "$[0]"}, b"2.0\n6.0\n10.0\n"),
        ("csv", {"join": "input", "output_filter": "$[0,-1]"}, b'1,2.0\n"3",6.0\n5,10.0\n'),
        ("csv", {"join": "input", "output_filter": "$[1:]"}, b"2,2.0\n4,6.0\n6,10.0\n"),
        ("csv", {"format": "jsonl", "output_filter": "$.y"}, b"2.0\n6.0\n10.0\n"),
        ("csv", {"format": "jsonl", "output_filter": "$['y']"}, b"2.0\n6.0\n10.0\n"),
        (
            "csv",
            {"format": "jsonl", "join": "input", "output_filter": "$['y','input']"},
            b'{"y":2.0,"input":"1,2"}\n{"y":6.0,"input":"\\"3\\",4"}\n{"y":10.0,"input":"5,6"}\n',
        ),
        ("jsonl", {"output_filter": "$[-1]"}, b"2.0\n6.0\n10.0\n"),
        (
            "jsonl",
            {"format": "jsonl", "join": "input", "output_filter": "$.input.x"},
            b"[1, 2]\n[3, 4]\n[5, 6]\n",
        ),
        (
            "jsonl",
            {"format": "jsonl", "join": "input", "output_filter": "$.input.x[0:1]"},
            b"[1]\n[3]\n[5]\n",
        ),
        ("tar", {"format": "jsonl", "join": "input", "output_filter": "$.input.x[1]"}, b"2\n4\n6\n"),
    ],
)
def test_parts_honour_the_output_filter(shared, kind, output, expected):
    report, found = stream(shared, dict([INPUTS[kind]]), **output)
    suffix = output.get("format", "csv")
    assert found.pop(f"part-00000.{suffix}") == expected
    assert list(found) == ["part-00000.failed.jsonl"]
    assert (report.rows_out, report.rows_failed) == (3, 1)


def test_header_of_a_part_honours_the_output_filter(shared):
    objects = {"a.csv": b"p,q\n1,2\n3,4\n"}
    _, found = stream(
        shared, objects, read={"header": "names"}, mapping={"columns": ("p", "q")}, join="input",
        output_filter="$['q','y']",
    )  # fmt: skip
    assert found == {"part-00000.csv": b"q,y\n2,2.0\n4,6.0\n"}


def test_end_of_a_slice_is_that_of_the_settings(shared):
    for slice_end, expected in (("exclusive", b"1\n3\n"), ("inclusive", b"1,2\n3,4\n")):
        objects = {"a.csv": b"1,2\n3,4\n"}
        _, found = stream(shared, objects, join="input", output_filter="$[0:1]", slice_end=slice_end)
        assert found == {"part-00000.csv": expected}


NAMED = (
    b'{"x": [1, 2], "id": "a"}\n{"x": [3, 4]}\n{"x": [5, 6], "id": "c"}\n'
    b'{"x": [7, 8]}\n{"x": [9, 0], "id": 5}\n'
)
BY_NAME = {"format": "jsonl", "join": "input", "output_filter": "$.input.id"}


def test_record_without_the_selected_value_fails_alone(shared):
    report, found = stream(shared, {"a.jsonl": NAMED}, **BY_NAME)
    assert found["part-00000.jsonl"] == b'"a"\n"c"\n5\n'
    failed = failed_lines(found["part-00000.failed.jsonl"])
    assert [(f["record"], f["kind"], f["output_row"], f["output_byte"]) for f in failed] == [
        (1, "format", 1, 4),
        (3, "format", 2, 8),
    ]
    assert [f["raw"] for f in failed] == ['{"x": [3, 4]}', '{"x": [7, 8]}']
    assert "a.jsonl" in failed[0]["reason"]
    assert "the output filter $.input.id cannot be applied" in failed[0]["reason"]
    assert (report.records_in, report.rows_out, report.rows_failed) == (5, 3, 2)
    assert sum(report.failures.values()) == 2


@for_each("preset", [StreamSettings, TransformSettings])
def test_on_error_job_refuses_a_record_without_the_selected_value(shared, preset):
    stores = Stores()
    put(stores, {"a.jsonl": NAMED})
    if preset is TransformSettings:
        output = {"join": "input", "output_filter": "$['id','SageMakerOutput']"}
    else:
        output = BY_NAME
    settings = make_settings(preset=preset, output=output, failures={"on_error": "job"})
    used = {"predictor": shared} if preset is StreamSettings else {"runner": InProcessRunner(shared)}
    with pytest.raises(TooManyFailuresError, match="on_error is job"):
        Run(IN, OUT, stores=stores, settings=settings, model_identity="m", **used).execute()


@for_each("line_end", [b"\n", b"\r\n", b"\r"])
def test_record_on_several_lines_can_be_filtered(shared, line_end):
    """Any line end may stand between the tokens of a JSON document."""
    objects = {"a.tar": tar({"1.json": b'{"x":' + line_end + b"[1, 2]}", "2.json": b'{"x": [3, 4]}'})}
    report, found = stream(shared, objects, format="jsonl", join="input", output_filter="$.y")
    assert report.rows_failed == 0
    assert found == {"part-00000.jsonl": b"2.0\n6.0\n"}


@for_each(
    ("path", "why"),
    [("$[0]", "selects elements of an array"), ("$.z", 'selects "z", but the lines have input, y')],
)
def test_filter_that_fits_no_line_is_refused(shared, path, why):
    stores = Stores()
    put(stores, {"a.jsonl": b'{"x": [1, 2]}\n'})
    settings = make_settings(
        preset=StreamSettings, output={"format": "jsonl", "join": "input", "output_filter": path}
    )
    with pytest.raises(ConfigError, match=why):
        transform(stores, predictor=shared, settings=settings)


def test_empty_outputs_follow_the_metadata():
    metadata = ModelMetadata(
        "m",
        outputs=(
            TensorSpec("y", "FP32", (-1,)),
            TensorSpec("v", "INT64", (-1, 3)),
            TensorSpec("open", "FP32", (-1, -1)),
            TensorSpec("unknown", "FP32", None),
            TensorSpec("s", "BYTES", (-1,)),
        ),
    )
    found = encoders._empty_outputs(metadata)
    assert {n: (d.shape, d.dtype.str) for n, d in found.items()} == {
        "y": ((0,), "<f4"),
        "v": ((0, 3), "<i8"),
        "s": ((0,), "|O"),
    }


@for_each(
    ("outputs", "header"),
    [
        ([TensorSpec("y", "FP32", (-1,)), TensorSpec("v", "INT64", (-1, 2))], b"y,v_0,v_1\n"),
        ([TensorSpec("y", "FP32", (-1,)), TensorSpec("open", "FP32", (-1, -1))], None),
        ([TensorSpec("y", "FP32", None)], None),
        ([], None),
    ],
)
@for_each("preset", [StreamSettings, TransformSettings])
def test_header_without_records_needs_all_outputs(preset, outputs, header):
    used = preset(read=ReadOptions(header="names"))
    metadata = ModelMetadata("m", outputs=tuple(outputs))
    mapper = Mapper(metadata, used.mapping, used.read)
    empty = Encoders(used, mapper).make_empty(metadata, lambda: Block(Position("a.csv")))
    assert (None if empty is None else empty.begin()) == header
