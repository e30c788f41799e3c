"""Delta Lake tables as sources: the rows of one version, with the columns of the table."""

import json
from base64 import b64encode
from datetime import date

import numpy as np
import pytest

import headrace
from headrace.core.block import Position
from headrace.core.errors import ConfigError, CorruptError, EmptySourceError, StorageError
from headrace.runs.ledger import Ledger
from headrace.runs.objects import select_objects
from headrace.storage.resolve import Stores
from runs.tables import open_tables

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("deltalake.transaction")
pytest.importorskip("pyiceberg")
pa = pytest.importorskip("pyarrow")
record_table = pytest.importorskip("headrace.formats.record_table")


class Sum(headrace.Model):
    """Adds a number of the file and the partition value of its rows."""

    inputs = (headrace.TensorSpec("a", "FP64", (-1,)), headrace.TensorSpec("part", "FP64", (-1,)))

    def predict(self, a, part):
        return {"sum": a + 100 * part}


class Text(headrace.Model):
    inputs = (headrace.TensorSpec("text", "BYTES", (-1,)),)

    def predict(self, text):
        return {"length": np.array([len(value) for value in text])}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table"
    for numbers in ([1, 2], [3, 4]):
        rows = pa.table({"a": pa.array(numbers, pa.int64()), "part": pa.array([7, 8], pa.int32())})
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["part"])
    return path


def _scores(source, model=Sum, **options):
    """Return the outputs of a source in its order, each as a number."""
    with headrace.stream(str(source), model=model, **options) as outcomes:
        return sorted(float(next(iter(outcome.outputs.values()))) for outcome in outcomes if outcome.ok)


ROWS = [701.0, 703.0, 802.0, 804.0]


def test_named_table_is_read_with_its_partitions(table):
    assert _scores(f"delta:{table}") == ROWS


@pytest.mark.parametrize("end", ["", "/"])
def test_folder_of_a_table_is_read_as_the_table(table, end):
    assert _scores(f"{table}{end}") == ROWS


def test_removed_files_do_not_count(table):
    deltalake.DeltaTable(table).delete("a = 3")
    assert _scores(table) == [701.0, 802.0, 804.0]


def test_version_selects_older_files(table):
    assert _scores(f"delta:{table}@0") == [701.0, 802.0]
    with pytest.raises(StorageError, match="the Delta table"):
        _scores(f"delta:{table}@9")


def test_partition_values_of_all_types_and_nulls_are_columns(tmp_path):
    rows = pa.table(
        {
            "text": ["a", "b", "c"],
            "day": [date(2024, 1, 2), None, date(2024, 1, 2)],
            "kind": ["x y/ü%", None, "z"],
            "flag": [True, False, None],
        }
    )
    deltalake.write_deltalake(tmp_path / "t", rows, partition_by=["day", "kind", "flag"])
    settings = headrace.StreamSettings(mapping=headrace.MappingOptions(text_column="text"))
    with headrace.stream(f"delta:{tmp_path / 't'}", model=Text, settings=settings) as outcomes:
        records = [json.loads(outcome.record) for outcome in outcomes if outcome.ok]
    assert sorted(records, key=lambda record: record["text"]) == [
        {"text": "a", "day": "2024-01-02", "kind": "x y/ü%", "flag": True},
        {"text": "b", "day": None, "kind": None, "flag": False},
        {"text": "c", "day": "2024-01-02", "kind": "z", "flag": None},
    ]


def test_column_that_was_added_later_is_null_in_older_files(tmp_path):
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"text": ["a"]}))
    added = pa.table({"text": ["b"], "more": [[1, 2]], "score": [0.5]})
    deltalake.write_deltalake(path, added, mode="append", schema_mode="merge")
    settings = headrace.StreamSettings(mapping=headrace.MappingOptions(text_column="text"))
    with headrace.stream(str(path), model=Text, settings=settings) as outcomes:
        records = sorted(json.loads(outcome.record)["text"] + outcome.record.decode() for outcome in outcomes)
    assert [record[1:] for record in records] == [
        '{"text":"a","more":null,"score":null}',
        '{"text":"b","more":[1,2],"score":0.5}',
    ]


def test_deletion_vectors_are_refused(table, monkeypatch):
    def vectors(_):
        return pa.table({"filepath": ["x"], "selection_vector": [[True, False]]}).to_reader()

    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", vectors)
    with pytest.raises(ConfigError, match="deletion vectors: purge them first"):
        _scores(table)


@pytest.mark.parametrize("path", ["/etc/secret.parquet", "s3://other/secret.parquet", "../secret.parquet"])
def test_file_outside_of_the_table_is_refused(table, path):
    """A job may read the folders that its key permits, and no table may lead it to others."""
    actions = [deltalake.transaction.AddAction("part=7/x.parquet", 1, {"part": "7"}, 0, True, "{}")]
    opened = deltalake.DeltaTable(table)
    opened.create_write_transaction(actions, "append", opened.schema(), ["part"])
    log = table / "_delta_log" / "00000000000000000002.json"
    log.write_text(log.read_text().replace("part=7/x.parquet", path))
    with pytest.raises((ConfigError, StorageError), match="outside of its folder"):
        _scores(table)


def test_table_without_files_and_missing_table_are_errors(tmp_path):
    deltalake.DeltaTable.create(tmp_path / "t", deltalake.Schema.from_arrow(pa.schema([("a", pa.int64())])))
    with pytest.raises(EmptySourceError, match="the table has no data files"):
        _scores(f"delta:{tmp_path / 't'}")
    with pytest.raises(StorageError, match="_delta_log is missing"):
        _scores(f"delta:{tmp_path / 'none'}")


def test_resumed_transform_reads_the_version_that_it_began_with(table, tmp_path, monkeypatch):
    output = f"{tmp_path / 'out'}/"

    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "finish", killed)
        with pytest.raises(Killed):
            headrace.transform_sync(f"delta:{table}", output, model=Sum)
    rows = pa.table({"a": pa.array([5], pa.int64()), "part": pa.array([9], pa.int32())})
    deltalake.write_deltalake(table, rows, mode="append")
    report = headrace.transform_sync(f"delta:{table}", output, model=Sum, resume=True)
    assert (report.records_in, report.objects) == (4, 4)


def test_transform_names_outputs_below_the_table(table, tmp_path):
    headrace.transform_sync(f"delta:{table}", f"{tmp_path / 'out'}/", model=Sum)
    assert {path.parent.name for path in (tmp_path / "out").rglob("*.out")} == {"part=7", "part=8"}


def test_table_can_be_scored_into_another_table(table, tmp_path):
    headrace.run_sync(f"delta:{table}", output=f"delta:{tmp_path / 'scores'}", model=Sum)
    found = deltalake.DeltaTable(tmp_path / "scores").to_pyarrow_table()
    assert sorted(found.column("sum").to_pylist()) == ROWS


def test_table_cannot_be_watched(table, tmp_path):
    with (
        headrace.open_run(str(table), output=f"{tmp_path / 'out'}/", model=Sum) as run,
        pytest.raises(ConfigError, match="cannot be watched"),
    ):
        run.append(run.select())


def test_plan_keeps_the_columns_of_the_files(table, tmp_path):
    with Stores() as stores:
        infos = select_objects(str(table), stores)
        output = f"{tmp_path / 'out'}/"
        headrace.run_sync(str(table), output=output, model=Sum)
        planned = list(Ledger(stores.for_uri(output), output).planned_objects())
    assert [one.info for one in planned] == infos
    assert planned[0].info.table is not None
    assert planned[0].info.table.schema is planned[1].info.table.schema


def test_workers_read_the_partitions(table, tmp_path):
    workers = headrace.Workers(count=2)
    report = headrace.run_sync(str(table), output=f"{tmp_path / 'out'}/", model=Sum, workers=workers)
    assert (report.rows_out, report.rows_failed) == (4, 0)


@pytest.fixture
def iceberg(tmp_path, monkeypatch):
    """Return an Iceberg table of two commits, partitioned by day."""
    tables = open_tables("iceberg", tmp_path, monkeypatch)
    rows = [
        pa.table({"text": ["a", "bb"], "day": [date(2024, 1, 2), None]}),
        pa.table({"text": ["ccc", "dddd"], "day": [date(2024, 1, 3), date(2024, 1, 2)]}),
    ]
    tables.create(rows[0].schema)
    table = tables.table()
    with table.update_spec() as update:
        update.add_identity("day")
    for some in rows:
        table.append(some)
    return tables


def _lengths(source):
    settings = headrace.StreamSettings(mapping=headrace.MappingOptions(text_column="text"))
    return _scores(source, Text, settings=settings)


def test_iceberg_table_is_read(iceberg):
    assert _lengths(iceberg.name) == [1, 2, 3, 4]


def test_metadata_file_of_an_iceberg_table_is_read(iceberg):
    assert _lengths(f"iceberg:{iceberg.table().metadata_location}") == [1, 2, 3, 4]


def test_snapshot_selects_older_files_of_an_iceberg_table(iceberg):
    first = iceberg.table().history()[0].snapshot_id
    assert _lengths(f"{iceberg.name}@{first}") == [1, 2]
    with pytest.raises(StorageError, match="Snapshot not found"):
        _lengths(f"{iceberg.name}@1")


def test_removed_files_of_an_iceberg_table_do_not_count(iceberg):
    iceberg.table().delete("text = 'ccc'")
    assert _lengths(iceberg.name) == [1, 2, 4]


def test_partitions_and_added_columns_of_an_iceberg_table_are_columns(iceberg):
    from pyiceberg.types import DoubleType

    with iceberg.table().update_schema() as update:
        update.add_column("score", DoubleType())
    settings = headrace.StreamSettings(mapping=headrace.MappingOptions(text_column="text"))
    with headrace.stream(iceberg.name, model=Text, settings=settings) as outcomes:
        records = sorted(outcome.record.decode() for outcome in outcomes if outcome.ok)
    assert records[:2] == [
        '{"text":"a","day":"2024-01-02","score":null}',
        '{"text":"bb","day":null,"score":null}',
    ]


def test_partition_values_fill_files_without_the_column():
    """Files of Hive tables that an Iceberg table has adopted have no partition columns."""
    values = {"day": "2024-01-02", "flag": None}
    schema = pa.schema([("text", pa.string()), ("day", pa.date32()), ("flag", pa.bool_())])
    block = next(
        record_table.table_blocks(pa.record_batch({"text": ["a"]}), Position("x"), record_bytes_max=100)
    )
    text = b64encode(schema.serialize().to_pybytes()).decode()
    assert record_table.conform(block, text, values).texts() == [
        b'{"text":"a","day":"2024-01-02","flag":null}'
    ]


def test_values_of_another_type_than_the_table_break_their_file():
    schema = pa.schema([("text", pa.int64())])
    block = next(
        record_table.table_blocks(pa.record_batch({"text": ["a"]}), Position("x"), record_bytes_max=100)
    )
    with pytest.raises(CorruptError, match="column 'text' is not int64 as in its table"):
        record_table.conform(block, b64encode(schema.serialize().to_pybytes()).decode(), {})


def test_renamed_column_of_an_iceberg_table_is_refused(iceberg):
    with iceberg.table().update_schema() as update:
        update.rename_column("text", "words")
    with pytest.raises(ConfigError, match="was renamed"):
        _lengths(iceberg.name)


def test_delete_files_of_an_iceberg_table_are_refused(iceberg, monkeypatch):
    """pyiceberg reads delete files, but does not write them."""
    from pyiceberg.table import DataScan, FileScanTask

    plan_files = DataScan.plan_files
    monkeypatch.setattr(
        DataScan,
        "plan_files",
        lambda scan: [FileScanTask(task.file, {task.file}) for task in plan_files(scan)],
    )
    with pytest.raises(ConfigError, match="deleted by delete files"):
        _lengths(iceberg.name)


def test_missing_iceberg_table_is_an_error(iceberg):
    with pytest.raises(StorageError, match="there is no such table"):
        _lengths("iceberg:lake/scores.none")
