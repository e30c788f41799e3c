"""Runs whose outputs are divided into folders by the values of columns: every record in its folder, once."""

import io
import json
from collections import defaultdict
from csv import DictReader
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from cases import for_each
from formats.table_writers import write_parquet
from headrace.core.errors import ConfigError, UnavailableError
from headrace.core.model import Model, RowError
from headrace.core.tensor import TensorSpec
from headrace.runs import partition_files
from headrace.runs.retry import FailedRecordsRetry
from headrace.runs.settings import StreamSettings, TransformSettings
from headrace.storage.resolve import Stores
from runs.support import (
    OUT,
    FailingPredictor,
    FailOnceStore,
    InjectedError,
    OverlaidStores,
    engine,
    failed_lines,
    ledger_names,
    make_settings,
    outputs,
    put,
    transform,
)

DAYS = ("2026-11-01", "", "a/b=c", "Genève")
NUMBERS = range(40)


class Rate(Model):
    """A model of two columns: ``y`` is twice `a`, and `label` says whether `b` is odd.

    Refuses negative numbers.
    """

    inputs = (TensorSpec("a", "FP64", (-1,)), TensorSpec("b", "FP64", (-1,)))
    outputs = (TensorSpec("y", "FP64", (-1,)), TensorSpec("label", "BYTES", (-1,)))
    max_batch_rows = 7

    def predict(self, a, b):
        return {"y": a * 2, "label": np.array([("even", "odd")[int(value) % 2] for value in b], object)}


@pytest.fixture(scope="module")
def rate():
    with engine(Rate()) as started:
        yield started


def day(number):
    return DAYS[number % len(DAYS)]


def csv(numbers):
    return b"day,a,b\n" + "".join(f"{day(n)},{n},{n // 2}\n" for n in numbers).encode()


def jsonl(numbers):
    lines = ({"a": n, "day": day(n) or None, "b": n // 2} for n in numbers)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def parquet(numbers):
    days = [day(n) or None for n in numbers]
    return write_parquet({"day": days, "a": list(numbers), "b": [n // 2 for n in numbers]}, group_rows=6)


SOURCES = {"csv": csv, "jsonl": jsonl, "parquet": parquet}
FOLDERS = {
    "2026-11-01": "day=2026-11-01/",
    "": "day=__HIVE_DEFAULT_PARTITION__/",
    "a/b=c": "day=a%2Fb%3Dc/",
    "Genève": "day=Genève/",
}


def settings(preset=TransformSettings, *, tasks=None, flow=None, **output):
    return make_settings(
        read={"header": "names"},
        output={"partition_by": ("day",), **output},
        preset=preset,
        tasks=tasks,
        flow=flow,
        checkpoint_s=0.0,
    )


def values(data, format_):
    """Return the numbers `y` of a file."""
    if format_ == "parquet":
        return pq.read_table(io.BytesIO(data))["y"].to_pylist()
    if format_ == "arrow":
        return pa.ipc.open_file(data).read_all()["y"].to_pylist()
    if format_ == "jsonl":
        lines = map(json.loads, data.splitlines())
        return [line.get("SageMakerOutput", line)["y"] for line in lines]
    return [float(row["y"]) for row in DictReader(io.StringIO(data.decode()), skipinitialspace=True)]


def by_folder(found, format_):
    """Return the numbers `y` of all files in the order of their names, by folder."""
    folders = defaultdict(list)
    for name, data in sorted(found.items()):
        if not name.endswith((".failed", ".failed.jsonl")):
            folders[name.rpartition("/")[0] + "/"] += values(data, format_)
    return dict(folders)


EXPECTED = {FOLDERS[one]: [2.0 * n for n in NUMBERS if day(n) == one] for one in DAYS}


# Rows in their folders


@for_each("source", list(SOURCES))
@for_each("format_", ["csv", "jsonl", "parquet", "arrow"])
@for_each("more", [{}, {"join": "input"}, {"keep": ("a",)}])
def test_transform_divides_the_output_of_each_object(rate, source, format_, more):
    stores = Stores()
    make = SOURCES[source]
    put(stores, {f"a.{source}": make(NUMBERS[:25]), f"b.{source}": make(NUMBERS[25:])})
    header = {"header": True} if format_ == "csv" else {}
    report = transform(stores, predictor=rate, settings=settings(format=format_, **header, **more))
    found = outputs(stores)
    suffix = f".{format_}" if format_ in ("parquet", "arrow") else ""
    assert set(found) == {
        f"{folder}{name}.{source}.out{suffix}" for folder in FOLDERS.values() for name in "ab"
    }
    assert by_folder(found, format_) == EXPECTED
    assert (report.records_in, report.rows_out) == (40, 40)
    assert report.out_bytes == sum(map(len, found.values()))


@for_each("source", list(SOURCES))
@for_each("format_", ["csv", "jsonl", "parquet", "arrow"])
@for_each("tasks", [{}, {"task_objects_max": 2}])
def test_stream_divides_its_parts(rate, source, format_, tasks):
    stores = Stores()
    make = SOURCES[source]
    put(stores, {f"{n:02d}.{source}": make(NUMBERS[n : n + 5]) for n in range(0, 40, 5)})
    header = {"header": True} if format_ == "csv" else {}
    used = settings(StreamSettings, tasks=tasks, format=format_, part_rows_max=14, **header)
    report = transform(stores, predictor=rate, settings=used)
    found = outputs(stores)
    assert {name.rpartition(".")[2] for name in found} == {format_}
    assert by_folder(found, format_) == EXPECTED
    assert report.out_bytes == sum(map(len, found.values()))


def test_column_is_written_only_in_the_folders_of_tables(rate):
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    transform(stores, predictor=rate, settings=settings(format="parquet", join="input"))
    table = pq.read_table(io.BytesIO(outputs(stores)["day=Genève/a.csv.out.parquet"]))
    assert table.schema.names == ["a", "b", "y", "label"]
    used = settings(format="parquet", keep=("day",))
    transform(stores, predictor=rate, settings=used, if_exists="overwrite")
    assert by_folder(outputs(stores), "parquet") == EXPECTED


def test_folders_keep_the_digits_of_cells(rate):
    stores = Stores()
    put(stores, {"a.csv": b"day,a,b\n007,1,1\n7,2,2\n"})
    transform(stores, predictor=rate, settings=settings(format="parquet"))
    assert {name.partition("/")[0] for name in outputs(stores)} == {"day=007", "day=7"}


def test_outputs_and_columns_can_be_mixed_and_renamed(rate):
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    more = {"partition_by": ("label", "day"), "rename": ("day=date",), "header": False}
    transform(stores, predictor=rate, settings=settings(**more))
    found = outputs(stores)
    assert found["label=odd/date=Genève/a.csv.out"] == b"".join(
        b"%d.0\n" % (2 * n) for n in NUMBERS if day(n) == "Genève" and n // 2 % 2
    )
    assert len(found) == 4


def test_records_alone_can_be_divided_by_an_output(rate):
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    more = {"partition_by": ("label",), "drop": ("y",), "join": "input"}
    transform(stores, predictor=rate, settings=settings(**more))
    odd = [n for n in NUMBERS if n // 2 % 2]
    assert outputs(stores)["label=odd/a.csv.out"] == csv(odd)


@for_each(
    ("column", "names"),
    [
        (pa.array([7, -7, None], pa.int8()), ["7", "-7", None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array(["x", "", None], pa.large_string()), ["x", None, None]),
        (pa.array(["x", "y", "x"]).dictionary_encode(), ["x", "y", "x"]),
        (pa.array([date(2026, 11, 27)] * 3), ["2026-11-27"] * 3),
        (pa.array([1_795_780_800_000_000] * 3, pa.timestamp("us")), ["2026-11-27 12:00:00"] * 3),
        (
            pa.array([1_000_000, 1_500_000, None], pa.timestamp("us", "UTC")),
            ["1970-01-01 00:00:01Z", "1970-01-01 00:00:01.500000Z", None],
        ),
        (pa.nulls(3), [None] * 3),
    ],
)
def test_every_type_with_text_names_folders(rate, column, names):
    stores = Stores()
    data = write_parquet({"day": column, "a": [0, 1, 2], "b": [0, 1, 2]})
    put(stores, {"a.parquet": data})
    transform(stores, predictor=rate, settings=settings(format="parquet"))
    found = defaultdict(list)
    for name, file in outputs(stores).items():
        keys = ds.get_partition_keys(
            ds.HivePartitioning(pa.schema([("day", pa.string())]), segment_encoding="uri").parse(name)
        )
        found[keys.get("day")] += values(file, "parquet")
    expected = defaultdict(list)
    for row, name in enumerate(names):
        expected[name].append(2.0 * row)
    assert found == expected


# Failures


def test_bad_records_cost_one_record(rate):
    """A field of another type, a value that is too long, and a record that does not decode."""
    stores = Stores()
    lines = [json.loads(line) for line in jsonl(NUMBERS).splitlines()]
    lines[5]["a"], lines[6]["day"] = "none", "x" * 200
    put(stores, {"a.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines)})
    report = transform(stores, predictor=rate, settings=settings())
    found = outputs(stores)
    failed = failed_lines(found["a.jsonl.out.failed"])
    assert [line["record"] for line in failed] == [5, 6]
    assert "more than 200 bytes" in failed[1]["reason"]
    assert (report.rows_out, report.rows_failed) == (38, 2)
    expected = {FOLDERS[d]: [2.0 * n for n in NUMBERS if day(n) == d and n not in (5, 6)] for d in DAYS}
    assert by_folder(found, "jsonl") == expected


@for_each(("format_", "suffix"), [("csv", ""), ("parquet", ".parquet")])
def test_object_without_predictions_has_no_files(rate, format_, suffix):
    stores = Stores()
    put(stores, {"a.csv": csv([]), "b.csv": csv([]) + b"d,x,1\n", "c.csv": csv([0])})
    report = transform(stores, predictor=rate, settings=settings(format=format_, header=True))
    found, name = outputs(stores), f"day=2026-11-01/c.csv.out{suffix}"
    assert set(found) == {f"b.csv.out{suffix}.failed", name}
    assert report.out_bytes == len(found[name])


@for_each("preset", [StreamSettings, TransformSettings])
def test_places_of_failed_records_do_not_depend_on_batches(rate, preset):
    """They count the bytes of all folders, and not the frames, which follow the batches."""
    found = []
    for rows_max in (3, 7):
        stores = Stores()
        put(stores, {"a.csv": csv(NUMBERS[:20]) + b"d,x,1\n" + csv(NUMBERS[20:])[8:] + b"d,x,1\n"})
        used = settings(preset, flow={"batch_rows_max": rows_max})
        transform(stores, predictor=rate, settings=used)
        (failed,) = [data for name, data in outputs(stores).items() if ".failed" in name]
        size = sum(len(data) for name, data in outputs(stores).items() if "=" in name)
        found.append([(line["output_row"], line["output_byte"]) for line in failed_lines(failed)])
        assert found[-1][-1] == (40, size)
    assert found[0] == found[1]


@for_each(
    ("output", "says"),
    [
        ({"partition_by": ("dya",)}, "--partition-by dya: no output and no column.*day, a, b, y, label"),
        (
            {"partition_by": ("y",)},
            "--partition-by y: the column is double, whose values do not name folders",
        ),
        ({"partition_by": ("label",), "drop": ("y",)}, "--drop and --partition-by leave no column to write"),
        ({"partition_by": ("a", "a")}, "partition_by has a name twice"),
        (
            {"partition_by": ("a",), "drop": ("a",)},
            "drop removes 'a', which keep, rename or partition_by names",
        ),
    ],
)
@for_each("preset", [StreamSettings, TransformSettings])
def test_impossible_partitions_are_refused(rate, preset, output, says):
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    with pytest.raises(ConfigError, match=says):
        transform(stores, predictor=rate, settings=settings(preset, **output))
    assert outputs(stores) == {}


def test_v2_requests_have_no_columns_to_divide_by():
    with pytest.raises(ConfigError, match="partition_by has no meaning for v2 records"):
        make_settings(read={"format": "v2"}, output={"partition_by": ("day",)})


def test_images_have_no_columns_to_divide_by():
    pillow = pytest.importorskip("PIL.Image")
    data = io.BytesIO()
    pillow.new("RGB", (2, 2)).save(data, "png")

    class Mean(Model):
        inputs = (TensorSpec("image", "FP32", (-1, 2, 2, 3)),)

        def predict(self, image):
            return {"y": image.mean(axis=(1, 2, 3)), "n": np.arange(len(image))}

    stores = Stores()
    put(stores, {"a.png": data.getvalue()})
    with engine(Mean()) as mean:
        with pytest.raises(ConfigError, match="--partition-by day: no output and no column of the record"):
            transform(stores, predictor=mean, settings=settings(), if_exists="overwrite")
        used = settings(partition_by=("n",))
        transform(stores, predictor=mean, settings=used, if_exists="overwrite")
    assert outputs(stores) == {"n=0/a.png.out": b"0.0\n"}


# Interruptions


OBJECTS = {f"{n}.csv": csv(NUMBERS[n * 10 : n * 10 + 10]) for n in range(2)}
KINDS = [
    settings(),
    settings(format="parquet"),
    settings(StreamSettings, part_rows_max=12),
    settings(StreamSettings, part_rows_max=12, format="parquet"),
]


@pytest.mark.parametrize("used", KINDS)
def test_broken_run_resumes_to_the_undisturbed_files(rate, used):
    whole = Stores()
    put(whole, OBJECTS)
    transform(whole, predictor=rate, settings=used)
    for at in range(3):
        stores = Stores()
        put(stores, OBJECTS)
        with pytest.raises(InjectedError):
            transform(stores, predictor=FailingPredictor(rate, at=at), settings=used)
        transform(stores, predictor=rate, settings=used, if_exists="resume")
        assert outputs(stores) == outputs(whole)


@pytest.mark.parametrize("used", KINDS)
@pytest.mark.parametrize("write_first", [True, False])
def test_run_resumes_after_any_failed_call_of_its_store(rate, used, write_first):
    whole = Stores()
    put(whole, OBJECTS)
    transform(whole, predictor=rate, settings=used)
    at = 0
    failed = True
    while failed:
        at += 1
        stores = Stores()
        put(stores, OBJECTS)
        store = FailOnceStore(stores.for_uri(OUT), at=at, write_first=write_first)
        try:
            transform(OverlaidStores(stores, OUT, store), predictor=rate, settings=used)
        except UnavailableError:
            transform(stores, predictor=rate, settings=used, if_exists="resume")
        failed = store.failed
        assert outputs(stores) == outputs(whole), at
    assert at > 20


class Fickle(Rate):
    """A model whose labels are others in each process."""

    def __init__(self, label):
        self.label = label

    def predict(self, a, b):
        return {"y": a, "label": np.full(len(a), self.label, object)}


@for_each("preset", [StreamSettings, TransformSettings])
def test_files_of_an_unfinished_attempt_are_deleted(preset):
    """The first attempt publishes its files and is killed before it records them."""
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    used = settings(preset, partition_by=("label",))
    calls = FailOnceStore(stores.for_uri(OUT), at=0, write_first=False)
    with engine(Fickle("first")) as first:
        transform(OverlaidStores(stores, OUT, calls), predictor=first, settings=used)
        names = [name for name in outputs(stores) if name.startswith("label=first/")]
        assert len(names) == 1
        record = next(name for name in ledger_names(stores) if name in ("part-00000.json", "task-00000.json"))
        for name in (record, "report.json"):
            stores.for_uri(OUT).delete(f"{OUT}_headrace/{name}")
    with engine(Fickle("second")) as second:
        transform(stores, predictor=second, settings=used, if_exists="resume")
    assert list(outputs(stores)) == [names[0].replace("first", "second")]


@for_each("preset", [StreamSettings, TransformSettings])
def test_overwriting_deletes_all_files(rate, preset):
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    stores.for_uri(OUT).put(f"{OUT}day=other/part-00000.csv", b"of another program")
    transform(stores, predictor=rate, settings=settings(preset))
    put(stores, {"a.csv": csv(NUMBERS[:1])})
    transform(stores, predictor=rate, settings=settings(preset), if_exists="overwrite")
    name = "part-00000.csv" if preset is StreamSettings else "a.csv.out"
    assert set(outputs(stores)) == {f"day=2026-11-01/{name}", "day=other/part-00000.csv"}


# Retries


def retry(stores, predictor):
    return FailedRecordsRetry(OUT, stores=stores, predictor=predictor, model_identity="m").execute()


class Picky(Rate):
    """A model that refuses the numbers in `refused`."""

    def __init__(self):
        self.refused = {3.0, 4.0}

    def predict(self, a, b):
        bad = {row: "refused" for row, value in enumerate(a.tolist()) if value in self.refused}
        if bad:
            raise RowError(bad)
        return super().predict(a, b)


@for_each("on_error", ["record", "object"])
@for_each("format_", ["csv", "parquet"])
def test_retry_scores_objects_with_failures_again(format_, on_error):
    stores, model = Stores(), Picky()
    put(stores, {"a.csv": csv(NUMBERS[:8]), "b.csv": csv(NUMBERS[8:])})
    read, failures = {"header": "names"}, {"on_error": on_error}
    output = {"partition_by": ("day",), "format": format_}
    used = make_settings(read=read, output=output, failures=failures)
    with engine(model) as picky:
        transform(stores, predictor=picky, settings=used)
        assert any("a.csv" in name and "=" in name for name in outputs(stores)) == (on_error == "record")
        model.refused = set()
        report = retry(stores, picky)
    assert by_folder(outputs(stores), format_) == EXPECTED
    assert not any(name.endswith(".failed") for name in outputs(stores))
    assert report.out_bytes == sum(map(len, outputs(stores).values()))


def test_failed_records_of_a_stream_are_not_merged_into_partitions():
    stores = Stores()
    put(stores, {"a.csv": csv(NUMBERS)})
    with engine(Picky()) as picky:
        transform(stores, predictor=picky, settings=settings(StreamSettings))
        with pytest.raises(ConfigError, match="parts with partitions cannot be changed"):
            retry(stores, picky)


# Large outputs


@for_each(
    ("sizes", "passes"),
    [
        ({}, []),
        ({"a": 1, "b": 64 << 20, "c": 9}, ["abc"]),
        (dict.fromkeys("ba" + "cdefghij", 1 << 40), ["abcdefghij"]),
        ({"a": 62 << 20, **dict.fromkeys((f"{n:02d}" for n in range(33)), 2 << 20)}, None),
    ],
)
def test_files_are_written_in_bounded_passes(sizes, passes):
    found = list(partition_files._passes(sizes))
    assert sorted(folder for some in found for folder in some) == sorted(sizes)
    if passes is None:
        assert [len(some) for some in found] == [32, 2]
    else:
        assert ["".join(some) for some in found] == passes


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize("preset", [StreamSettings, TransformSettings])
def test_large_output_is_published_in_passes(rate, monkeypatch, tmp_path, place, preset):
    """Large files are written in pieces, small ones at once, and drafts are removed."""
    monkeypatch.setattr("headrace.runs.output.BUFFER_BYTES_MAX", 100)
    monkeypatch.setattr(partition_files, "_PASS_BYTES", 60)
    monkeypatch.setattr(partition_files, "_SMALL_BYTES", 30)
    numbers = range(400)
    numbers = [n for n in numbers if n % 4 or n < 12]  # one of the files is small
    stores = Stores()
    put(stores, {"a.csv": csv(numbers)})
    destination = OUT if place == "memory" else f"{tmp_path}/out/"
    transform(stores, predictor=rate, settings=settings(preset), destination=destination)
    expected = {FOLDERS[one]: [2.0 * n for n in numbers if day(n) == one] for one in DAYS}
    assert by_folder(outputs(stores, destination), "csv") == expected
    assert not [name for name in ledger_names(stores, destination) if name.startswith("drafts/")]
