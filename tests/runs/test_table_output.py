"""Runs whose output is committed to a table: every row once, whatever stops the run."""

import gzip
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.errors import ConfigError, CountMismatchError, OutputExistsError
from headrace.runs.ledger import Ledger
from runs.tables import FORMATS, open_tables

pa = pytest.importorskip("pyarrow")


class Outputs(headrace.Model):
    """Returns typed outputs; refuses rows with a negative number."""

    inputs = (headrace.TensorSpec("x", "FP64", (-1, 2)),)

    def predict(self, x):
        refused = dict.fromkeys(np.flatnonzero(x[:, 0] < 0).tolist(), "negative")
        if refused:
            raise headrace.RowError(refused)
        return {
            "number": x[:, 0].astype(np.int64),
            "score": x[:, 1].astype(np.float32),
            "pair": x,
            "label": np.array([f"row {int(value)}" for value in x[:, 0]], object),
            "even": x[:, 0] % 2 == 0,
        }


class Unsigned(Outputs):
    def predict(self, x):
        return {"number": x[:, 0].astype(np.uint8)}


class Other(Outputs):
    def predict(self, x):
        return {"number": x[:, 0].astype(np.float64)}


class Killed(BaseException):
    """A kill of the process, as far as one process can test it."""


SETTINGS = headrace.StreamSettings(
    flow=headrace.FlowSettings(batch_rows_max=5), output=headrace.OutputSettings(part_rows_max=10)
)


def _write_source(folder: Path, numbers=range(40)):
    folder.mkdir(exist_ok=True, parents=True)
    for start in range(0, len(numbers), 10):
        lines = [f"{number},{number / 4}\n" for number in numbers[start : start + 10]]
        (folder / f"{numbers[start]:05d}.csv").write_text("".join(lines))
    return f"{folder}/"


@pytest.fixture
def source(tmp_path):
    return _write_source(tmp_path / "in")


@pytest.fixture(params=FORMATS)
def table(request, tmp_path, monkeypatch):
    """Return a name of a table that does not exist, and what it has later."""
    return open_tables(request.param, tmp_path, monkeypatch)


@pytest.fixture
def delta(tmp_path, monkeypatch):
    return open_tables("delta", tmp_path, monkeypatch)


def _run(source, table, model=Outputs, **options):
    return headrace.run_sync(source, output=table.name, model=model, settings=SETTINGS, **options)


def _numbers(table):
    return sorted(table.read().column("number").to_pylist())


def test_run_creates_a_table_with_typed_columns(source, table):
    report = _run(source, table)
    assert report.rows_out == 40
    found = table.read().sort_by("number")
    assert [str(field.type) for field in found.schema] == [
        "int64", "float", "list<element: double>", "string", "bool"
    ]  # fmt: skip
    assert found.slice(3, 1).to_pylist() == [
        {"number": 3, "score": 0.75, "pair": [3.0, 0.75], "label": "row 3", "even": False}
    ]
    assert _numbers(table) == list(range(40))
    assert table.commits() == 1


def test_next_run_appends_in_one_commit(source, table, tmp_path):
    _run(source, table)
    _run(source, table)
    _run(_write_source(tmp_path / "more", range(100, 120)), table)
    assert _numbers(table) == sorted([*range(40), *range(40), *range(100, 120)])
    assert table.commits() == 3


def test_overwrite_replaces_the_content_in_one_commit(source, table, tmp_path):
    _run(source, table)
    _run(_write_source(tmp_path / "more", range(100, 120)), table, overwrite=True)
    assert _numbers(table) == list(range(100, 120))
    assert table.commits() == 2
    assert len(list(table.folder.glob("headrace-*/part-*.parquet"))) == 6, (
        "readers of the old version need them"
    )


def test_overwrite_replaces_the_schema_of_a_delta_table(source, delta):
    _run(source, delta)
    _run(source, delta, Other, overwrite=True)
    assert delta.read().schema.names == ["number"]
    assert _numbers(delta) == [float(number) for number in range(40)]


def test_finished_run_is_not_repeated_by_resume(source, table):
    first = _run(source, table)
    assert _run(source, table, resume=True).records_in == first.records_in
    assert _numbers(table) == list(range(40))
    assert table.commits() == 1


def test_transform_writes_a_file_for_each_object_with_any_name(tmp_path, table):
    folder = tmp_path / "in" / "day=1 %20ü"
    folder.mkdir(parents=True)
    source = _write_source(folder)
    (folder / "empty.csv").write_text("")
    headrace.transform_sync(source, table.name, model=Outputs)
    assert _numbers(table) == list(range(40))


def test_object_that_ends_early_is_not_in_the_table(tmp_path, table):
    source = _write_source(tmp_path / "in")
    text = "".join(f"{number},0\n" for number in range(1000, 9000)).encode()
    whole = gzip.compress(text)
    (tmp_path / "in" / "broken.csv.gz").write_bytes(whole[: len(whole) // 2])
    report = headrace.transform_sync(source, table.name, model=Outputs)
    assert (report.status, report.objects_broken) == ("complete", 1)
    assert report.rows_out > 40, "its first records were predicted"
    assert _numbers(table) == list(range(40))


def test_workers_write_parts_of_one_commit(source, table):
    workers = headrace.Workers(count=2)
    _run(source, table, workers=workers)
    assert _numbers(table) == list(range(40))
    assert table.commits() == 1


def test_failed_records_are_beside_the_files_and_not_in_the_table(tmp_path, table):
    report = _run(_write_source(tmp_path / "in", [1, -2, 3]), table)
    assert (report.rows_out, report.rows_failed) == (2, 1)
    assert _numbers(table) == [1, 3]
    assert len(list(table.folder.glob("headrace-*/*.failed.jsonl"))) == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("point", ["in a batch", "before the commit", "after the commit", "at the end"])
def test_killed_run_is_committed_once(source, table, monkeypatch, point, overwrite):
    _run(_write_source(table.folder.parent / "before", range(100, 110)), table)
    with monkeypatch.context() as patch:
        _kill_at(patch, table, point)
        with pytest.raises(Killed):
            _run(source, table, overwrite=overwrite)
    with pytest.raises(OutputExistsError, match="overwrite would replace the content of the table"):
        _run(source, table)
    _run(source, table, resume=True)
    _run(source, table, resume=True)
    assert _numbers(table) == [*range(40), *(() if overwrite else range(100, 110))]
    assert table.commits() == 2


def _class_of(table):
    """Return headrace's class for the tables."""
    if table.name.startswith("delta:"):
        return import_module("headrace.runs.delta_table").DeltaTable
    return import_module("headrace.runs.iceberg_table").IcebergTable


def _kill_at(patch, table, point):
    opened = _class_of(table)

    def killed(*_, **__):
        raise Killed

    commit, commit_part = opened.commit, Ledger.commit_part

    def commit_first_part(self, record):
        if record.part:
            raise Killed
        commit_part(self, record)

    def commit_then_die(self, *args, **options):
        commit(self, *args, **options)
        raise Killed

    match point:
        case "in a batch":
            patch.setattr(Ledger, "commit_part", commit_first_part)
        case "before the commit":
            patch.setattr(opened, "commit", killed)
        case "after the commit":
            patch.setattr(opened, "commit", commit_then_die)
        case _:
            patch.setattr(Ledger, "finish", killed)


def test_unfinished_run_can_be_replaced_by_an_overwriting_one(source, table, monkeypatch):
    with monkeypatch.context() as patch:
        _kill_at(patch, table, "after the commit")
        with pytest.raises(Killed):
            _run(source, table)
    assert _numbers(table) == list(range(40)), "it was committed"
    _run(source, table, overwrite=True)
    assert _numbers(table) == list(range(40))
    assert table.commits() == 2


def test_unfinished_run_can_be_abandoned(source, table, monkeypatch):
    with monkeypatch.context() as patch:
        _kill_at(patch, table, "before the commit")
        with pytest.raises(Killed):
            _run(source, table)
    with pytest.raises(OutputExistsError) as error:
        _run(source, table)
    (pointer,) = (table.folder / "_headrace").glob("*.json")
    assert str(pointer) in str(error.value)
    pointer.unlink()
    _run(source, table)
    assert _numbers(table) == list(range(40))


def test_second_process_of_a_run_does_not_commit_again(source, table, monkeypatch):
    """Both processes open the table before either of them commits."""
    opened = _class_of(table)
    _run(source, table)
    add, added, reopen = opened._add, [], getattr(opened, "_open", None) or opened._load

    def add_twice(self, before, run_id, files, *, overwrite):
        if not added:
            added.append(run_id)
            add(self, reopen(self), run_id, files, overwrite=overwrite)
        add(self, before, run_id, files, overwrite=overwrite)

    monkeypatch.setattr(opened, "_add", add_twice)
    _run(source, table)
    assert len(_numbers(table)) == 80


def test_another_writer_between_two_looks_does_not_matter(source, table, monkeypatch):
    opened = _class_of(table)
    create = opened._create

    def created_by_another(self, run_id, files):
        table.create(files[0].schema.remove_metadata())
        create(self, run_id, files)

    monkeypatch.setattr(opened, "_create", created_by_another)
    _run(source, table)
    assert _numbers(table) == list(range(40))


def test_watched_stream_commits_each_append_once(tmp_path, table):
    source = _write_source(tmp_path / "in")
    with headrace.open_run(source, output=table.name, model=Outputs, settings=SETTINGS) as run:
        run.append(run.select())
        assert (_numbers(table), table.commits()) == (list(range(40)), 1)
        assert run.append(run.select()) is None
        _write_source(tmp_path / "in", range(100, 105))
        run.append(run.select())
    assert _numbers(table) == [*range(40), *range(100, 105)]
    assert table.commits() == 2


def test_watched_transform_is_refused(source, table):
    settings = headrace.TransformSettings()
    with (
        headrace.open_run(source, output=table.name, model=Outputs, settings=settings) as run,
        pytest.raises(ConfigError, match="a transform that watches its source"),
    ):
        run.append(run.select())


def test_lost_file_stops_the_commit(source, table, monkeypatch):
    with monkeypatch.context() as patch:
        _kill_at(patch, table, "before the commit")
        with pytest.raises(Killed):
            _run(source, table)
    next(iter(table.folder.glob("headrace-*/part-00001.parquet"))).unlink()
    with pytest.raises(CountMismatchError):
        _run(source, table, resume=True)
    assert not table.exists()


def test_statistics_bound_the_columns(tmp_path, delta):
    _run(_write_source(tmp_path / "in", [3, 1, 2]), delta)
    log = (delta.folder / "_delta_log" / "00000000000000000000.json").read_text().splitlines()
    stats = json.loads(next(json.loads(line)["add"]["stats"] for line in log if '"add"' in line))
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {"number": 1, "score": 0.25, "label": "row 1"}
    assert stats["maxValues"] == {"number": 3, "label": "row 3"}
    assert stats["nullCount"]["number"] == 0


def test_rows_with_nan_are_found_by_a_reader_that_skips_files(tmp_path, delta):
    (tmp_path / "in.csv").write_text("1,nan\n2,1\n")
    _run(str(tmp_path / "in.csv"), delta)
    polars = pytest.importorskip("polars")
    assert polars.scan_delta(str(delta.folder)).filter(polars.col("score") > 5).collect()[
        "number"
    ].to_list() == [1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"number": pa.int64()}, "has no such column|does not fit the table"),
        ({"number": pa.string()}, "has this column as|does not fit the table"),
    ],
)
def test_output_that_does_not_fit_the_table_is_refused_and_kept(source, table, columns, message):
    table.create(pa.schema(columns))
    with pytest.raises(ConfigError, match=message):
        _run(source, table)
    assert table.read().num_rows == 0
    with pytest.raises(OutputExistsError):
        _run(source, table)


def test_column_that_the_run_lacks_is_null(source, table):
    columns = [("number", pa.float64()), ("note", pa.string())]
    table.create(pa.schema(columns))
    _run(source, table, Other)
    assert table.read().column("note").null_count == 40


def test_type_that_the_table_format_lacks_is_refused(source, table):
    with pytest.raises(ConfigError, match=r"column 'number' of .* is uint8, a type that tables do not"):
        _run(source, table, Unsigned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": ["number"]}, "partitioned by number"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "columnMapping|maps the names"),
    ],
)
def test_table_with_rules_is_refused_before_the_run(source, delta, options, message):
    delta.create(pa.schema([("number", pa.int64())]), **options)
    with pytest.raises(ConfigError, match=message):
        _run(source, delta)
    assert not list(delta.folder.glob("headrace-*"))


def test_partitioned_iceberg_table_is_refused_before_the_run(source, tmp_path, monkeypatch):
    iceberg = open_tables("iceberg", tmp_path, monkeypatch)
    iceberg.create(pa.schema([("number", pa.int64())]))
    with iceberg.table().update_spec() as update:
        update.add_identity("number")
    with pytest.raises(ConfigError, match="it is partitioned"):
        _run(source, iceberg)


def test_polars_reads_every_row_with_its_type(source, table, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    polars = pytest.importorskip("polars")
    _run(source, table)
    scan = polars.scan_delta(str(table.folder)) if table.name.startswith("delta:") else None
    found = (polars.scan_iceberg(table.table()) if scan is None else scan).sort("number").collect()
    assert [str(kind) for kind in found.dtypes] == [
        "Int64", "Float32", "List(Float64)", "String", "Boolean"
    ]  # fmt: skip
    assert found["number"].to_list() == list(range(40))


@pytest.mark.parametrize(
    ("output", "settings", "message"),
    [
        ("delta:", SETTINGS, "write delta:FOLDER"),
        ("iceberg:lake", SETTINGS, "write iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:unknown/a.b", SETTINGS, "the catalog 'unknown' is not configured"),
        ("delta:https://host/table", SETTINGS, "write delta:FOLDER"),
        (
            "delta:t",
            headrace.StreamSettings(output=headrace.OutputSettings(format="csv")),
            "a table has Parquet files, not csv",
        ),
    ],
)
def test_wrong_output_is_refused(source, output, settings, message):
    pytest.importorskip("deltalake" if output.startswith("delta:") else "pyiceberg")
    with pytest.raises(ConfigError, match=message):
        headrace.run_sync(source, output=output, model=Outputs, settings=settings)


def test_iceberg_table_needs_a_namespace(source, tmp_path, monkeypatch):
    open_tables("iceberg", tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="there is no namespace 'none': create it"):
        headrace.run_sync(source, output="iceberg:lake/none.table", model=Outputs, settings=SETTINGS)


def test_failed_records_of_a_table_are_not_retried(table):
    with pytest.raises(ConfigError, match="score the repaired objects in a new run"):
        headrace.retry_failed(table.name)
