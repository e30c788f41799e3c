"""Runs whose output is committed to a table: every row once, whatever stops the run."""

import json
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

import headrace
from headrace.core.errors import ConfigError, CountMismatchError, OutputExistsError
from headrace.runs.ledger import Ledger

deltalake = pytest.importorskip("deltalake")
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
            "pair": x.astype(np.float64),
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
    folder.mkdir(exist_ok=True)
    for start in range(0, len(numbers), 10):
        lines = [f"{number},{number / 4}\n" for number in numbers[start : start + 10]]
        (folder / f"{numbers[start]:05d}.csv").write_text("".join(lines))
    return f"{folder}/"


@pytest.fixture
def source(tmp_path):
    return _write_source(tmp_path / "in")


@pytest.fixture
def table(tmp_path):
    return tmp_path / "table"


def _run(source, table, model=Outputs, **options):
    return headrace.run_sync(source, output=f"delta:{table}", model=model, settings=SETTINGS, **options)


def _numbers(table):
    return sorted(deltalake.DeltaTable(table).to_pyarrow_table().column("number").to_pylist())


def _version(table):
    return deltalake.DeltaTable(table).version()


def test_run_creates_a_table_with_typed_columns(source, table):
    report = _run(source, table)
    assert report.rows_out == 40
    found = deltalake.DeltaTable(table).to_pyarrow_table().sort_by("number")
    assert [str(field.type) for field in found.schema] == [
        "int64", "float", "list<element: double>", "string", "bool"
    ]  # fmt: skip
    assert found.slice(3, 1).to_pylist() == [
        {"number": 3, "score": 0.75, "pair": [3.0, 0.75], "label": "row 3", "even": False}
    ]
    assert _numbers(table) == list(range(40))
    assert _version(table) == 0


def test_next_run_appends_in_one_commit(source, table, tmp_path):
    _run(source, table)
    _run(source, table)
    _run(_write_source(tmp_path / "more", range(100, 120)), table)
    assert _numbers(table) == sorted([*range(40), *range(40), *range(100, 120)])
    assert _version(table) == 2


def test_overwrite_replaces_the_content_in_one_commit(source, table, tmp_path):
    _run(source, table)
    _run(_write_source(tmp_path / "more", range(100, 120)), table, Other, overwrite=True)
    assert _numbers(table) == [float(number) for number in range(100, 120)]
    assert _version(table) == 1
    before = deltalake.DeltaTable(table, version=0).to_pyarrow_table()
    assert before.num_rows == 40, "the files of the earlier version are still there"


def test_finished_run_is_not_repeated_by_resume(source, table):
    first = _run(source, table)
    assert _run(source, table, resume=True).records_in == first.records_in
    assert _numbers(table) == list(range(40))
    assert _version(table) == 0


def test_transform_writes_a_file_for_each_object_with_any_name(tmp_path, table):
    folder = tmp_path / "in" / "day=1 %20ü"
    folder.mkdir(parents=True)
    source = _write_source(folder)
    (folder / "empty.csv").write_text("")
    headrace.transform_sync(source, f"delta:{table}", model=Outputs)
    assert _numbers(table) == list(range(40))
    names = [unquote(uri).rpartition("/")[2] for uri in deltalake.DeltaTable(table).file_uris()]
    assert "00000.csv.out.parquet" in names


def test_workers_write_parts_of_one_commit(source, table):
    workers = headrace.Workers(count=2)
    _run(source, table, workers=workers)
    assert _numbers(table) == list(range(40))
    assert _version(table) == 0


def test_failed_records_are_beside_the_files_and_not_in_the_table(tmp_path, table):
    report = _run(_write_source(tmp_path / "in", [1, -2, 3]), table)
    assert (report.rows_out, report.rows_failed) == (2, 1)
    assert _numbers(table) == [1, 3]
    assert len(list(table.glob("headrace-*/*.failed.jsonl"))) == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("point", ["in a batch", "before the commit", "after the commit", "at the end"])
def test_killed_run_is_committed_once(source, table, monkeypatch, point, overwrite):
    _run(_write_source(table.parent / "before", range(100, 110)), table)
    with monkeypatch.context() as patch:
        _kill_at(patch, point)
        with pytest.raises(Killed):
            _run(source, table, overwrite=overwrite)
    with pytest.raises(OutputExistsError):
        _run(source, table)
    _run(source, table, resume=True)
    _run(source, table, resume=True)
    assert _numbers(table) == [*range(40), *(() if overwrite else range(100, 110))]
    assert _version(table) == 1


def _kill_at(patch, point):
    from headrace.runs.delta_table import DeltaTable

    def killed(*_, **__):
        raise Killed

    commit, commit_part = DeltaTable.commit, Ledger.commit_part

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
            patch.setattr(DeltaTable, "commit", killed)
        case "after the commit":
            patch.setattr(DeltaTable, "commit", commit_then_die)
        case _:
            patch.setattr(Ledger, "finish", killed)


def test_unfinished_run_can_be_replaced_by_an_overwriting_one(source, table, monkeypatch):
    with monkeypatch.context() as patch:
        _kill_at(patch, "after the commit")
        with pytest.raises(Killed):
            _run(source, table)
    assert _numbers(table) == list(range(40)), "it was committed"
    _run(source, table, overwrite=True)
    assert _numbers(table) == list(range(40))
    assert _version(table) == 1


def test_second_process_of_a_run_does_not_commit_again(source, table, monkeypatch):
    """Both processes open the table before either of them commits."""
    from headrace.runs.delta_table import DeltaTable

    _run(source, table)
    add, added = DeltaTable._add, []

    def add_twice(self, opened, run_id, files, *, overwrite):
        if not added:
            added.append(run_id)
            add(self, self._open(), run_id, files, overwrite=overwrite)
        add(self, opened, run_id, files, overwrite=overwrite)

    monkeypatch.setattr(DeltaTable, "_add", add_twice)
    _run(source, table)
    assert len(_numbers(table)) == 80


def test_another_writer_between_two_looks_does_not_matter(source, table, monkeypatch):
    from headrace.runs.delta_table import DeltaTable

    create = DeltaTable._create

    def created_by_another(self, run_id, files):
        schema = deltalake.Schema.from_arrow(files[0].schema.remove_metadata())
        deltalake.DeltaTable.create(table, schema)
        create(self, run_id, files)

    monkeypatch.setattr(DeltaTable, "_create", created_by_another)
    _run(source, table)
    assert _numbers(table) == list(range(40))


def test_watched_stream_commits_each_append_once(tmp_path, table):
    source = _write_source(tmp_path / "in")
    with headrace.open_run(source, output=f"delta:{table}", model=Outputs, settings=SETTINGS) as run:
        run.append(run.select())
        assert (_numbers(table), _version(table)) == (list(range(40)), 0)
        assert run.append(run.select()) is None
        _write_source(tmp_path / "in", range(100, 105))
        run.append(run.select())
    assert _numbers(table) == [*range(40), *range(100, 105)]
    assert _version(table) == 1


def test_watched_transform_is_refused(source, table):
    settings = headrace.TransformSettings()
    with (
        headrace.open_run(source, output=f"delta:{table}", model=Outputs, settings=settings) as run,
        pytest.raises(ConfigError, match="a transform that watches its source"),
    ):
        run.append(run.select())


def test_lost_file_stops_the_commit(source, table, monkeypatch):
    with monkeypatch.context() as patch:
        _kill_at(patch, "before the commit")
        with pytest.raises(Killed):
            _run(source, table)
    next(iter(table.glob("headrace-*/part-00001.parquet"))).unlink()
    with pytest.raises(CountMismatchError):
        _run(source, table, resume=True)
    assert not (table / "_delta_log").exists()


def test_statistics_bound_the_columns(tmp_path, table):
    _run(_write_source(tmp_path / "in", [3, 1, 2]), table)
    log = (table / "_delta_log" / "00000000000000000000.json").read_text().splitlines()
    stats = json.loads(next(json.loads(line)["add"]["stats"] for line in log if '"add"' in line))
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {"number": 1, "score": 0.25, "label": "row 1"}
    assert stats["maxValues"] == {"number": 3, "label": "row 3"}
    assert stats["nullCount"]["number"] == 0


def test_rows_with_nan_are_found_by_a_reader_that_skips_files(tmp_path, table):
    (tmp_path / "in.csv").write_text("1,nan\n2,1\n")
    _run(str(tmp_path / "in.csv"), table)
    polars = pytest.importorskip("polars")
    assert polars.scan_delta(str(table)).filter(polars.col("score") > 5).collect()["number"].to_list() == [1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"number": pa.int64()}, "has no such column"),
        ({"number": pa.string()}, "has this column as"),
    ],
)
def test_output_that_does_not_fit_the_table_is_refused_and_kept(source, table, columns, message):
    deltalake.DeltaTable.create(table, deltalake.Schema.from_arrow(pa.schema(columns)))
    with pytest.raises(ConfigError, match=message):
        _run(source, table)
    assert deltalake.DeltaTable(table).to_pyarrow_table().num_rows == 0
    with pytest.raises(OutputExistsError):
        _run(source, table)


def test_column_that_the_run_lacks_is_null(source, table):
    columns = [("number", pa.float64()), ("note", pa.string())]
    deltalake.DeltaTable.create(table, deltalake.Schema.from_arrow(pa.schema(columns)))
    _run(source, table, Other)
    assert deltalake.DeltaTable(table).to_pyarrow_table().column("note").null_count == 40


def test_type_that_the_table_format_lacks_is_refused(source, table):
    with pytest.raises(ConfigError, match=r"column 'number' of .* is uint8, a type that Delta tables do not"):
        _run(source, table, Unsigned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": ["number"]}, "partitioned by number"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "columnMapping|maps the names"),
    ],
)
def test_table_with_rules_is_refused_before_the_run(source, table, options, message):
    schema = deltalake.Schema.from_arrow(pa.schema([("number", pa.int64())]))
    deltalake.DeltaTable.create(table, schema, **options)
    with pytest.raises(ConfigError, match=message):
        _run(source, table)
    assert not list(table.glob("headrace-*"))


@pytest.mark.parametrize(
    ("output", "settings", "message"),
    [
        ("delta:", SETTINGS, "write delta:FOLDER"),
        ("delta:https://host/table", SETTINGS, "write delta:FOLDER"),
        (
            "delta:t",
            headrace.StreamSettings(output=headrace.OutputSettings(format="csv")),
            "a table has Parquet files, not csv",
        ),
    ],
)
def test_wrong_output_is_refused(source, output, settings, message):
    with pytest.raises(ConfigError, match=message):
        headrace.run_sync(source, output=output, model=Outputs, settings=settings)


def test_failed_records_of_a_table_are_not_retried(table):
    with pytest.raises(ConfigError, match="score the repaired objects in a new run"):
        headrace.retry_failed(f"delta:{table}")
