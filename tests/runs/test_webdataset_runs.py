"""Runs over WebDataset shards: fields become inputs and columns, and only the needed files are decoded."""

import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from cases import for_each
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.runs.media_types import read_options
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.settings import StreamSettings, SubsetSettings, TransformSettings
from headrace.storage.resolve import Stores
from runs.support import (
    OUT,
    FailingPredictor,
    InjectedError,
    engine,
    failed_lines,
    make_settings,
    outputs,
    put,
    tar,
    transform,
)

Image = pytest.importorskip("PIL.Image")


def png(value, *, size=(4, 6)):
    out = io.BytesIO()
    Image.new("RGB", size, (value, 0, 0)).save(out, "png")
    return out.getvalue()


def npy(*values, dtype=np.float32):
    out = io.BytesIO()
    np.save(out, np.array(values, dtype))
    return out.getvalue()


def record(number, **fields):
    """Return the members of a record; a field of None is left out."""
    values = {
        "png": png(number, size=(4 + number, 6)),
        "npy": npy(number, 1),
        "txt": b"text %d" % number,
        "cls": b"%d" % number,
        "json": json.dumps({"caption": f"picture {number}", "box": [number, 2]}).encode(),
        "wav": b"RIFF",
    }
    for name, data in (values | fields).items():
        if data is not None:
            yield f"d/{number:03d}.{name}", data


def shard(*records):
    return tar(dict(member for one in records for member in one))


class Recorder(Model):
    """A model that writes the inputs that it received."""

    max_batch_rows = 3

    def __init__(self):
        self.refuses = lambda one: False

    def predict(self, *values, **named):
        names = [spec.name for spec in self.inputs]
        rows = zip(*(values or [named[name] for name in names]), strict=True)
        found = [dict(zip(names, map(shown, row), strict=True)) for row in rows]
        if bad := {row: "refused" for row, one in enumerate(found) if self.refuses(one)}:
            raise RowError(bad)
        return {"seen": np.array([json.dumps(one) for one in found], object)}


def model_of(inputs):
    return type("Inputs", (Recorder,), {"inputs": tuple(inputs)})


def shown(value):
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [one.decode() for one in value]
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "max": round(float(value.max()), 4)}
    return value.decode() if isinstance(value, bytes) else getattr(value, "item", lambda: value)()


def settings(preset=TransformSettings, *, read=None, mapping=None, output=None, **more):
    return make_settings(
        read={"format": "webdataset", **(read or {})},
        mapping=mapping,
        output={"format": "jsonl", **(output or {})},
        checkpoint_s=0.0,
        preset=preset,
        **more,
    )


def seen(stores, suffix=".out"):
    """Return what the model received, in the order of the records."""
    found = [data for name, data in sorted(outputs(stores).items()) if name.endswith(suffix)]
    return [json.loads(json.loads(line)["seen"]) for data in found for line in data.splitlines()]


def score(inputs, data, used):
    stores = Stores()
    put(stores, {"a.tar": data})
    with engine(model_of(inputs)()) as predictor:
        report = transform(stores, predictor=predictor, settings=used)
    return stores, report


SIZE = {"size_px": (3, 3)}
PIXELS = TensorSpec("image", "FP32", (-1, 3, 3, 3))
TEXT = TensorSpec("words", "BYTES", (-1,))


# Inputs


@for_each(
    ("inputs", "columns", "expected"),
    [
        ([PIXELS, TEXT], (), {"image": {"shape": [3, 3, 3], "max": 0.0078}, "words": "text 2"}),
        ([TensorSpec("png", "UINT8", (-1, -1, -1, 3))], (), {"png": {"shape": [3, 3, 3], "max": 2.0}}),
        ([TensorSpec("x", "FP32", (-1, 3, 3, 3))], ("png",), {"x": {"shape": [3, 3, 3], "max": 0.0078}}),
        ([TensorSpec("vector", "FP64", (-1, 2))], (), {"vector": {"shape": [2], "max": 2.0}}),
        ([TensorSpec("cls", "INT64", (-1,))], (), {"cls": 2}),
        ([TensorSpec("sound", "BYTES", (-1,))], ("wav",), {"sound": "RIFF"}),
        ([TensorSpec("sound", "BYTES", (-1, 1))], ("wav",), {"sound": ["RIFF"]}),
        ([TensorSpec("t", "BYTES", (-1,))], ("json.caption",), {"t": "picture 2"}),
        ([TensorSpec("b", "INT64", (-1, 2))], ("json.box",), {"b": {"shape": [2], "max": 2.0}}),
        ([TensorSpec("b", "INT64", (-1, -1))], ("json.box",), {"b": {"shape": [2], "max": 2.0}}),
        ([TensorSpec("n", "INT64", (-1,))], ("de.cls",), {"n": 9}),
        ([TensorSpec("sound", "BYTES", (-1,))], ("audio",), {"sound": "a name of a format"}),
        ([TEXT, TensorSpec("n", "FP32", (-1,))], ("txt", "cls"), {"words": "text 2", "n": 2.0}),
    ],
)
def test_fields_become_inputs(inputs, columns, expected):
    mapping = {"columns": columns}
    data = shard(record(2, **{"de.cls": b"9", "audio": b"a name of a format"}))
    stores, report = score(inputs, data, settings(read=SIZE, mapping=mapping))
    assert report.rows_out == 1
    (found,) = seen(stores)
    assert found == expected


def test_numbers_of_several_fields_are_one_matrix():
    mapping = {"columns": ("cls", "id")}
    inputs = [TensorSpec("x", "FP32", (-1, 2))]
    stores, _ = score(inputs, shard(record(2, id=b"9")), settings(mapping=mapping))
    assert seen(stores) == [{"x": {"shape": [2], "max": 9.0}}]


@for_each(
    ("inputs", "columns", "says"),
    [
        (
            [TensorSpec("x", "FP32", (-1, 2))],
            ("wav",),
            "'wav' is a file that is not decoded: let the model take its bytes",
        ),
        ([TensorSpec("x", "FP32", (-1, 2))], ("mp3",), "there is no field 'mp3'"),
        ([TensorSpec("x", "FP32", (-1, 2)), TEXT], ("cls",), "it has 2 inputs, but 1 fields are chosen"),
        ([TensorSpec("x", "FP32", (-1, 3))], (), "the fields npy, b.npy could be this input"),
        ([TensorSpec("x", "BYTES", (-1,)), PIXELS], ("txt",), "2 inputs"),
        ([PIXELS], ("png",), r"takes \[-1, 3, 3, 3\], but the image at .*a\.tar!d/002.* is \[-1, 6, 6, 3\]"),
    ],
)
def test_impossible_inputs_are_refused(inputs, columns, says):
    data = shard(record(2, **{"b.npy": npy(1)}))
    with pytest.raises(ModelInputError, match=says):
        score(inputs, data, settings(mapping={"columns": columns}))


def test_one_record_does_not_decide_about_the_fields():
    """The first record has no image, and no text."""
    data = shard(record(1, png=None, txt=None), record(2), record(3))
    stores, report = score([PIXELS, TEXT], data, settings(read=SIZE))
    assert [one["words"] for one in seen(stores)] == ["text 2", "text 3"]
    assert (report.records_in, report.rows_failed) == (3, 1)


@for_each(
    ("field", "data", "why"),
    [
        ("png", b"no image", "field png: not a JPEG"),
        ("png", None, "the record has no field png"),
        ("npy", b"no array", "field npy: not an array of numbers"),
        (
            "npy",
            npy(1, 2, 3),
            r"field npy: the array is [3], but input 'v'",
        ),
        ("npy", npy(1, 2, dtype=np.complex64), "field npy: the array is complex64, but input 'v' takes FP32"),
        ("txt", b"\xff", "field txt: not UTF-8"),
        ("txt", None, 'field "txt" is missing'),
    ],
)
def test_bad_field_costs_one_record(field, data, why):
    inputs = [PIXELS, TensorSpec("v", "FP32", (-1, 2)), TEXT]
    shards = shard(record(1), record(2, **{field: data}), record(3))
    mapping = {"columns": ("png", "npy", "txt")}
    stores, report = score(inputs, shards, settings(read=SIZE, mapping=mapping))
    assert [one["words"] for one in seen(stores)] == ["text 1", "text 3"]
    (line,) = failed_lines(outputs(stores)["a.tar.out.failed"])
    assert why in line["reason"]
    assert (line["member"], line["record"]) == ("d/002", 0)
    assert (report.records_in, report.rows_out) == (3, 2)


def test_files_that_no_input_takes_are_not_decoded():
    data = shard(record(1, png=b"broken", npy=b"broken"), record(2))
    _, report = score([TEXT], data, settings())
    assert report.rows_out == 2


def test_batches_are_bounded_by_decoded_bytes():
    """An image has 108 bytes as an input, and fewer as PNG would be no reason for a larger batch."""
    calls = []

    class Counting(Recorder):
        inputs = (PIXELS,)
        max_batch_rows = 100

        def predict(self, image):
            calls.append(len(image))
            return {"y": image[:, 0, 0, 0]}

    stores = Stores()
    put(stores, {"a.tar": shard(*(record(n, npy=None) for n in range(6)))})
    used = settings(read=SIZE, flow={"batch_bytes_max": 216})
    with engine(Counting()) as predictor:
        transform(stores, predictor=predictor, settings=used)
    assert calls == [2, 2, 2]


# Outputs


def test_fields_are_columns_of_the_output():
    data = shard(record(1), record(2))
    output = {"keep": ("__key__", "cls", "json"), "format": "parquet"}
    stores, _ = score([TEXT], data, settings(output=output))
    table = pq.read_table(io.BytesIO(outputs(stores)["a.tar.out.parquet"]))
    assert table.select(["__key__", "cls"]).to_pylist() == [
        {"__key__": "d/001", "cls": 1},
        {"__key__": "d/002", "cls": 2},
    ]
    assert json.loads(table["json"][0].as_py()) == {"caption": "picture 1", "box": [1, 2]}


def test_files_are_not_columns_of_the_output():
    with pytest.raises(
        ConfigError, match="--keep png: no column has this name: the columns are __key__, txt"
    ):
        score([TEXT], shard(record(1)), settings(output={"keep": ("png",)}))
    stores, _ = score([TEXT], shard(record(1)), settings(output={"join": "input", "format": "parquet"}))
    table = pq.read_table(io.BytesIO(outputs(stores)["a.tar.out.parquet"]))
    assert table.schema.names == ["__key__", "txt", "cls", "json", "seen"]


def test_output_is_divided_by_a_field():
    stores, _ = score([TEXT], shard(record(1), record(2)), settings(output={"partition_by": ("cls",)}))
    assert set(outputs(stores)) == {"cls=1/a.tar.out", "cls=2/a.tar.out"}


def test_input_filter_selects_within_the_values():
    used = settings(mapping={"input_filter": "$.json", "columns": ("caption",)})
    stores, _ = score([TEXT], shard(record(1)), used)
    assert seen(stores) == [{"words": "picture 1"}]


# Runs


SHARDS = {"a.tar": shard(*(record(n) for n in range(9))), "b.tar": shard(*(record(n) for n in range(9, 14)))}
SUFFIXES = {TransformSettings: ".out", StreamSettings: ".jsonl"}
EXPECTED = [f"text {number}" for number in range(14)]


@for_each("preset", [TransformSettings, StreamSettings])
def test_broken_run_resumes_inside_a_shard(preset):
    used = settings(preset, read=SIZE)
    suffix = SUFFIXES[preset]
    with engine(model_of([PIXELS, TEXT])()) as predictor:
        for at in range(1, 5):
            stores = Stores()
            put(stores, SHARDS)
            with pytest.raises(InjectedError):
                transform(stores, predictor=FailingPredictor(predictor, at=at), settings=used)
            transform(stores, predictor=predictor, settings=used, if_exists="resume")
            assert [one["words"] for one in seen(stores, suffix)] == EXPECTED


@for_each("subset", [{"limit": 3}, {"sample": 0.5}])
def test_parts_of_shards_are_scored(subset):
    used = settings(read=SIZE, subset=SubsetSettings(**subset))
    stores = Stores()
    put(stores, SHARDS)
    with engine(model_of([PIXELS, TEXT])()) as predictor:
        report = transform(stores, predictor=predictor, settings=used)
    found = [one["words"] for one in seen(stores)]
    assert report.rows_out == len(found) < 14
    assert [words for words in EXPECTED if words in found] == found
    assert "limit" not in subset or len(found) == 3


@for_each("preset", [TransformSettings, StreamSettings])
def test_failed_records_are_retried_from_the_shard(preset):
    kind = model_of([PIXELS, TEXT])
    model = kind()
    model.refuses = lambda one: one["words"] in ("text 3", "text 10")
    stores = Stores()
    put(stores, SHARDS)
    with engine(model) as predictor:
        report = transform(stores, predictor=predictor, settings=settings(preset, read=SIZE))
        assert report.rows_failed == 2
        model.refuses = lambda one: False
        FailedRecordsRetry(OUT, stores=stores, predictor=predictor, model_identity="m").execute()
    assert [one["words"] for one in seen(stores, SUFFIXES[preset])] == EXPECTED


def test_split_of_a_transform_names_the_format():
    found = read_options(split="webdataset")
    assert (found.format, found.archive) == ("webdataset", "auto")
