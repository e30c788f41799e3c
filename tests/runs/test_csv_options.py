"""Runs with the options of CSV and text: first records, joined outputs, retries and refusals."""

import numpy as np
import pytest

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.csv import CsvFormat
from headrace.formats.read import csv_dialect
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.settings import MappingOptions, StreamSettings
from headrace.storage.resolve import Stores
from runs.support import allow_small_tasks, engine, failed_lines, make_settings, outputs, put, transform

NUMBERS = TensorSpec("x", "FP32", (-1, 2))
TEXT = TensorSpec("t", "BYTES", (-1,))


class Spelling(Model):
    """A model of text: each text between angle brackets."""

    inputs = (TEXT,)
    outputs = (TensorSpec("y", "BYTES", (-1,)),)
    max_batch_rows = 8

    def predict(self, t):
        return {"y": np.array([f"<{text}>" for text in t], object)}


def mapper(*inputs: TensorSpec, read: ReadOptions | None = None, **mapping) -> Mapper:
    return Mapper(ModelMetadata("m", inputs=inputs), MappingOptions(**mapping), read or ReadOptions())


def run_one(data: bytes, *, name="a.csv", predictor=None, preset=None, **groups) -> dict[str, bytes]:
    stores = Stores()
    put(stores, {name: data})
    used = make_settings(**groups) if preset is None else make_settings(preset=preset, **groups)
    transform(stores, predictor=predictor, settings=used)
    return outputs(stores)


@for_each("inputs", [(NUMBERS,), (TensorSpec("x", "FP32", (-1, -1)),)])
def test_first_record_with_a_bare_carriage_return_is_a_record(inputs):
    (block,) = CsvFormat().blocks([b"a\rb,1\nc,2\n4,2\n"], Position("memory://b/a.csv"))
    decoded = mapper(*inputs).decode(block)
    assert decoded.tensors["x"].tolist() == [[4, 2]]
    assert [f.position.record for f in decoded.failures] == [0, 1]


@for_each("quoted", [False, True])
def test_first_record_with_a_cell_above_128_kib_is_a_record(quoted):
    """The csv module refuses such fields."""
    cell = b"a" * 140_000
    data = (b'"%b",1\n' if quoted else b"%b,1\n") % cell + b"3,2\n"
    (block,) = CsvFormat().blocks([data], Position("memory://b/a.csv"))
    decoded = mapper(NUMBERS).decode(block)
    assert decoded.tensors["x"].tolist() == [[3, 2]]
    text = mapper(TEXT, text_column=0).decode(block)
    assert [len(value) for value in text.tensors["t"]] == [140_000, 1]


def test_sequence_columns_are_read_in_the_dialect():
    read = ReadOptions(delimiter=";", quote="'")
    (block,) = CsvFormat(dialect=mapper(read=read).dialect).blocks(
        [b"'a;b';1\n'c';2\n"], Position("memory://b/a.csv")
    )
    used = mapper(TensorSpec("x", "FP32", (-1, 1)), read=read, sequence=0)
    decoded, sequences = used.decode_steps(block)
    assert decoded.tensors["x"].tolist() == [[1], [2]]
    assert sequences is not None
    assert sequences.ids.tolist() == ["a;b", "c"]


DIALECT = {"delimiter": ";", "quote": "'", "escape": "^", "decimal": ",", "null_words": ("NA",)}


@for_each(
    ("join", "expected"),
    [("input", b"0,25;'1';0,5\nNA;2;nan\n'3';^4;6,0\n"), ("none", b"0.5\nnan\n6.0\n")],
)
def test_joined_predictions_have_the_dialect_of_the_records(join, expected, shared):
    data = b"0,25;'1'\nNA;2\n'3';^4\n"
    assert run_one(data, predictor=shared, read=DIALECT, output={"join": join}) == {"a.csv.out": expected}


def test_joined_outputs_are_read_back_with_the_same_options():
    """Text that the model returns is quoted and escaped as the records are."""
    read = {"delimiter": ";", "quote": "'", "escape": "^"}
    with engine(Spelling()) as predictor:
        groups = {"read": read, "mapping": {"text_column": 0}, "output": {"join": "input"}}
        (written,) = run_one(b"a^;b\n'c;d'\n'e^'f^^'\n", predictor=predictor, **groups).values()
    assert written == b"a^;b;'<a;b>'\n'c;d';'<c;d>'\n'e^'f^^';'<e''f^^>'\n"
    dialect = csv_dialect("a.csv", ReadOptions(**read))
    (block,) = CsvFormat(dialect=dialect).blocks([written], Position())
    cells = [dialect.cells(record) for record in block.texts()]
    assert cells == [[b"a;b", b"<a;b>"], [b"c;d", b"<c;d>"], [b"e'f^", b"<e'f^>"]]


def test_output_filter_reads_escaped_records(shared):
    written = run_one(
        b"a^;b;1;2\nc;3;4\n",
        predictor=shared,
        read={"delimiter": ";", "quote": "", "escape": "^"},
        mapping={"columns": (1, 2)},
        output={"join": "input", "output_filter": "$[0,-1]"},
    )
    assert written == {"a.csv.out": b"a^;b;2.0\nc;6.0\n"}


@for_each(("preset", "name"), [(None, "a.csv.out.failed"), (StreamSettings, "part-00000.failed.jsonl")])
def test_text_that_no_cell_can_hold_is_a_failed_record(preset, name):
    """Without quote and escape, a delimiter in a prediction would begin another column."""
    with engine(Spelling()) as predictor:
        written = run_one(
            b"a\nb\n",
            predictor=predictor,
            preset=preset,
            read={"quote": "", "delimiter": "<"},
            mapping={"text_column": 0},
            output={"join": "input"},
        )
    failed = failed_lines(written[name])
    assert [(f["record"], f["kind"]) for f in failed] == [(0, "format"), (1, "format")]
    assert "have neither a quote nor an escape" in failed[0]["reason"]


def test_invalid_bytes_of_another_encoding_cost_their_record():
    data = "é\n日\n".encode("utf-16") + b"\x00\xd8" + "\nü\n".encode("utf-16-le")
    with engine(Spelling()) as predictor:
        written = run_one(data, predictor=predictor, read={"encoding": "utf-16"}, mapping={"text_column": 0})
    assert written["a.csv.out"] == "<é>\n<日>\n<ü>\n".encode()
    (failed,) = failed_lines(written["a.csv.out.failed"])
    assert (failed["record"], failed["line"], failed["reason"]) == (2, 3, "column 0: not utf-16")


@for_each("format", ["line", "jsonl"])
@for_each("task_bytes", [None, 8])
def test_comments_and_skipped_lines_apply_to_lines(format, task_bytes, monkeypatch):
    if task_bytes:
        allow_small_tasks(monkeypatch)
    data = b'junk\n// c\n"a"\n\n//\n"b"\n"//"\n"c"\n//'
    with engine(Spelling()) as predictor:
        written = run_one(
            data,
            name="a.jsonl",
            predictor=predictor,
            read={"format": format, "comment": "//", "skip_rows": 1},
            mapping={"whole_records": True},
            output={"format": "text"},
            tasks={"task_bytes": task_bytes} if task_bytes else {},
        )
    assert written == {"a.jsonl.out": b'<"a">\n<"b">\n<"//">\n<"c">\n'}


@for_each(
    ("options", "why"),
    [
        ({"delimiter": ";", "escape": ";"}, "delimiter and escape are both ';'"),
        ({"delimiter": ",", "decimal": ","}, "delimiter and decimal are both ','"),
        ({"delimiter": ",", "escape": '"'}, "quote and escape are both"),
        ({"comment": ""}, "comment must be text without line ends"),
        ({"comment": "a\nb"}, "comment must be text without line ends"),
        ({"quote": "ab"}, "quote must be one ASCII character"),
        ({"escape": "é"}, "escape must be one ASCII character"),
        ({"skip_rows": -1}, "skip_rows must be a whole number of 0 or more"),
        ({"encoding": "none"}, "encoding must be a text encoding known to Python"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        ReadOptions(**options)


@for_each(
    ("options", "name", "why"),
    [
        ({"decimal": ","}, "a.csv", "delimiter and decimal are both ','"),
        ({"comment": ","}, "a.csv", "comment ',' contains the delimiter"),
        ({"comment": '"'}, "a.csv", "comment '\"' contains the delimiter, the quote or the escape"),
    ],
)
@for_each("preset", [None, StreamSettings])
def test_contradictions_with_the_delimiter_of_a_name_stop_the_run_at_once(options, name, why, preset, shared):
    with pytest.raises(ConfigError, match=why):
        run_one(b"1,2\n", name=name, predictor=shared, preset=preset, read=options)


def test_decimal_commas_in_tab_separated_files_need_no_option(shared):
    assert run_one(b"1,5\t2\n", name="a.tsv", predictor=shared, read={"decimal": ","}) == {
        "a.tsv.out": b"3.0\n"
    }


@for_each("preset", [None, StreamSettings])
def test_objects_of_a_header_alone_have_no_records(preset, shared):
    stores = Stores()
    put(stores, {"a.csv": b"p,q\n", "b.csv": b"p,q\n1,2\n", "c.csv": b"q,p\n"})
    used = make_settings(read={"names": ("p", "q")}, **({} if preset is None else {"preset": preset}))
    report = transform(stores, predictor=shared, settings=used)
    assert (report.records_in, report.rows_out, report.objects) == (1, 1, 3)
