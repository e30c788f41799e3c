"""Tables of records with their predictions: the record's own columns, typed, before the outputs."""

import io
from datetime import UTC, datetime
from decimal import Decimal

import orjson
import pyarrow as pa
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from cases import for_each
from headrace.app.runs import run_sync, transform_sync
from headrace.core.errors import ConfigError
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.settings import FlowSettings, StreamSettings, TransformSettings
from headrace.storage.resolve import Stores

duckdb = pytest.importorskip("duckdb")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

IN, OUT = "memory://b/in/", "memory://b/out/"
MOMENT = datetime(2024, 2, 29, 12, tzinfo=UTC)


class Double(Model):
    """Twice the value of the column `x`."""

    inputs = (TensorSpec("x", "FP64", (-1,)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)

    def predict(self, x):
        return {"y": 2 * x}


def written(objects, *, preset=TransformSettings, format="parquet", model=Double, **settings):
    """Return the bytes of the tables of a run by name, and its report."""
    stores = Stores()
    store = stores.for_uri(IN)
    for name, data in objects.items():
        store.put(IN + name, data)
    chosen = preset(output=OutputSettings(format=format, join="input"), **settings)
    if preset is TransformSettings:
        report = transform_sync(IN, OUT, model=model, settings=chosen, stores=stores)
    else:
        report = run_sync(IN, output=OUT, model=model, settings=chosen, stores=stores)
    found = {info.uri.removeprefix(OUT): store.get(info.uri) for info in store.list(OUT)}
    return {name: data for name, data in found.items() if name.endswith(f".{format}")}, report


def scored(objects, *, format="parquet", **settings):
    """Return the tables of a run by name, and its report."""
    files, report = written(objects, format=format, **settings)
    return {name: read(format, data) for name, data in files.items()}, report


def read(format, data):
    if format == "arrow":
        return pa.ipc.open_file(io.BytesIO(data)).read_all()
    return pq.read_table(io.BytesIO(data))


def parquet(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def typed_table(rows=5):
    numbers = list(range(rows))
    return pa.table(
        {
            "x": pa.array(numbers, pa.int32()),
            "price": pa.array([Decimal("1.10"), None] + [Decimal("2.25")] * (rows - 2), pa.decimal128(20, 2)),
            "at": pa.array([MOMENT] * rows, pa.timestamp("us", "Europe/Berlin")),
            "day": pa.array([MOMENT.date()] * rows, pa.date32()),
            "color": pa.array(["red", None] + ["blue"] * (rows - 2)).dictionary_encode(),
            "who": pa.array([{"id": n, "tags": [str(n)]} for n in numbers]),
            "vector": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.float32(), 2)),
            "raw": pa.array([b"\xff"] * rows),
        }
    )


@for_each("format", ["parquet", "arrow"])
@for_each("preset", [TransformSettings, StreamSettings])
def test_tables_keep_their_columns_and_exact_types(format, preset):
    source = typed_table()
    tables, _ = scored({"a.parquet": parquet(source)}, format=format, preset=preset)
    (found,) = tables.values()
    expected = source.append_column("y", pa.array([0.0, 2, 4, 6, 8]))
    if format == "arrow":
        plain = source.schema.field("color").with_type(pa.string())
        expected = expected.cast(expected.schema.set(4, plain))
    assert found.schema == expected.schema
    assert found.equals(expected)


def test_failed_rows_of_tables_are_left_out():
    source = pa.table({"x": [1.0, None, 3.0], "id": ["a", "b", "c"]})
    tables, report = scored({"a.parquet": parquet(source)})
    assert tables["a.parquet.out.parquet"].to_pylist() == [
        {"x": 1.0, "id": "a", "y": 2.0},
        {"x": 3.0, "id": "c", "y": 6.0},
    ]
    assert report.rows_failed == 1


def test_extension_types_and_field_metadata_are_kept_but_not_pandas_index():
    frame = pd.DataFrame({"x": [1.0, 2.0], "id": [7, 8]}, index=[5, 6])
    source = pa.Table.from_pandas(frame)
    field = pa.field("id", pa.int64(), metadata={b"unit": b"one"})
    source = source.set_column(1, field, source["id"])
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), (2,)), pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))
    )
    source = source.append_column("image", tensors)
    ((_, found),) = scored({"a.parquet": parquet(source)})[0].items()
    assert found.schema.field("image").type == tensors.type
    assert found.schema.field("id").metadata[b"unit"] == b"one"
    assert b"pandas" not in (found.schema.metadata or {})


CSV = b'x,zip,ok,name\n1.5,00501,true,Jo\n2,10001,FALSE,\n,3,true,x\n4,10002,true,"a,b"\n'
CSV_TYPES = {"x": "double", "zip": "string", "ok": "bool", "name": "string", "y": "double"}


@for_each("format", ["parquet", "arrow"])
@for_each("preset", [TransformSettings, StreamSettings])
def test_csv_with_names_has_columns_of_the_schema(format, preset):
    tables, report = scored({"a.csv": CSV}, format=format, preset=preset)
    (found,) = tables.values()
    assert {field.name: str(field.type) for field in found.schema} == CSV_TYPES
    assert found.to_pylist() == [
        {"x": 1.5, "zip": "00501", "ok": True, "name": "Jo", "y": 3.0},
        {"x": 2.0, "zip": "10001", "ok": False, "name": None, "y": 4.0},
        {"x": 4.0, "zip": "10002", "ok": True, "name": "a,b", "y": 8.0},
    ]
    assert report.rows_failed == 1


def test_csv_dialect_and_null_words_apply_to_columns():
    read = ReadOptions(header="names", delimiter=";", decimal=",", null_words=("NA",), quote="'")
    text = b"x;n;t\n'1,5';7;'a;b'\n2;NA;NA\n"
    tables, _ = scored({"a.csv": text}, read=read)
    assert tables["a.csv.out.parquet"].to_pylist() == [
        {"x": 1.5, "n": 7, "t": "a;b", "y": 3.0},
        {"x": 2.0, "n": None, "t": None, "y": 4.0},
    ]


def test_csv_columns_are_found_by_name_in_every_object():
    objects = {"a.csv": b"x,id\n1,7\n2,8\n", "b.csv": b"id,x\n9,3\n"}
    ((_, part),) = scored(objects, preset=StreamSettings)[0].items()
    assert part.to_pylist() == [{"x": x, "id": i, "y": 2.0 * x} for x, i in ((1, 7), (2, 8), (3, 9))]
    assert scored(objects)[0]["b.csv.out.parquet"].column_names == ["id", "x", "y"]


@for_each(
    ("cells", "good", "bad", "why"),
    [
        ("integer", b"7", b"seven", '"seven" is not an integer'),
        ("zeros", b"7", b"007", '"007" is not an integer without leading zeros'),
        ("large", b"7", b"9223372036854775808", "too large for int64"),
        ("number", b"7.5", b"1_0", '"1_0" is not a number'),
        ("boolean", b"true", b"maybe", '"maybe" is not a boolean'),
    ],
)
def test_cell_of_another_type_fails_its_record_alone(cells, good, bad, why):
    """The sample does not have the cell, so the type of the column does not fit."""
    lines = [b"1," + good] * 1200
    lines[1100] = b"1," + bad
    text = b"x,v\n" + b"\n".join(lines) + b"\n"
    read = ReadOptions(header="names")
    tables, report = scored({"a.csv": text}, read=read)
    assert (report.rows_out, report.rows_failed) == (1199, 1)
    assert tables["a.csv.out.parquet"].num_rows == 1199
    (reason,) = report.failures
    assert why.split('"')[-1] in reason
    assert "--schema" in reason or "correct the record" in reason


JSON_LINES = (
    b'{"x": 1, "tags": ["a"], "v": [1, 2], "who": {"id": 1}, "n": null, "t": "q"}\n'
    b'{"x": 2.5, "tags": ["b", "c"], "v": [3, 4], "t": 5}\n'
    b'{"x": 3, "tags": [], "v": [5], "who": {"id": 2}, "t": "r"}\n'
)


@for_each("format", ["parquet", "arrow"])
@for_each("preset", [TransformSettings, StreamSettings])
def test_json_objects_have_columns_of_the_schema(format, preset):
    ((_, found),) = scored({"a.jsonl": JSON_LINES}, format=format, preset=preset)[0].items()
    types = {field.name: field.type for field in found.schema}
    assert types == {
        "x": pa.float64(),
        "tags": pa.list_(pa.string()),
        "v": pa.list_(pa.int64()),
        "who": pa.string(),
        "n": pa.string(),
        "t": pa.string(),
        "y": pa.float64(),
    }
    first, second, third = found.to_pylist()
    assert orjson.loads(first["who"]) == {"id": 1}
    assert second == {"x": 2.5, "tags": ["b", "c"], "v": [3, 4], "who": None, "n": None, "t": "5", "y": 5.0}
    assert third["v"] == [5]


@for_each(
    ("record", "why"),
    [
        (b'{"x": 1, "k": "q"}', "not an integer"),
        (b'{"x": 1, "k": 1.5}', "not an integer"),
        (b'{"x": 1, "k": true}', "not an integer"),
        (b'{"x": 1, "k": 9223372036854775808}', "not an integer"),
        (b'{"x": 1, "k": [1]}', "not an integer"),
        (b'{"x": 1, "new": 1}', "has no column"),
    ],
)
def test_json_value_without_a_fitting_column_fails_its_record_alone(record, why):
    text = b'{"x": 1, "k": 2}\n' * 1100 + record + b"\n"
    tables, report = scored({"a.jsonl": text})
    assert (report.rows_out, report.rows_failed) == (1100, 1)
    assert why in next(iter(report.failures))
    assert tables["a.jsonl.out.parquet"].num_rows == 1100


def test_json_records_that_are_not_objects_stay_text():
    class First(Model):
        def predict(self, x):
            return {"y": x[:, 0]}

    ((_, found),) = scored({"a.jsonl": b"[1, 2]\n[3,4]\n"}, model=First)[0].items()
    assert found["input"].to_pylist() == ["[1, 2]", "[3,4]"]
    assert found.column_names == ["input", "y"]


@for_each("format", ["parquet", "arrow"])
def test_empty_objects_have_a_table_with_the_columns_of_records(format):
    objects = {
        "a.csv": CSV,
        "b.csv": b"zip,x,ok,name\n",
        "c.parquet": parquet(typed_table().slice(0, 0)),
        "d.parquet": parquet(typed_table()),
    }
    tables, _ = scored(objects, format=format, read=ReadOptions(header="names"))
    csv, table = tables[f"b.csv.out.{format}"], tables[f"c.parquet.out.{format}"]
    assert csv.num_rows == table.num_rows == 0
    assert {field.name: str(field.type) for field in csv.schema} == CSV_TYPES
    assert table.schema == tables[f"d.parquet.out.{format}"].schema


@for_each("format", ["parquet", "arrow"])
def test_parts_cast_columns_to_the_types_of_their_first_records(format):
    later = pa.table({"k": pa.array([1 << 40], pa.int64()), "x": pa.array([3], pa.float32())})
    first = pa.table({"x": pa.array([1, 2], pa.float64()), "k": pa.array([5, 6], pa.int32())})
    objects = {"a.parquet": parquet(first), "b.parquet": parquet(later)}
    tables, report = scored(objects, preset=StreamSettings, format=format)
    ((_, part),) = tables.items()
    assert part.to_pylist() == [{"x": 1.0, "k": 5, "y": 2.0}, {"x": 2.0, "k": 6, "y": 4.0}]
    assert report.rows_failed == 1
    assert "not exact as int32" in next(iter(report.failures))
    objects = {"a.parquet": parquet(later), "b.parquet": parquet(first)}
    ((_, part),) = scored(objects, preset=StreamSettings, format=format)[0].items()
    assert part["k"].to_pylist() == [1 << 40, 5, 6]


@for_each(
    "later",
    [
        pa.table({"x": [1.0], "k": ["a"]}),
        pa.table({"x": [1.0], "k": [MOMENT]}),
        pa.table({"x": [1.0], "other": [1]}),
    ],
)
def test_part_refuses_other_columns_and_names_the_object(later):
    objects = {"a.parquet": parquet(pa.table({"x": [1.0], "k": [5]})), "b.parquet": parquet(later)}
    with pytest.raises(ConfigError, match=r"b\.parquet"):
        scored(objects, preset=StreamSettings)


def test_output_with_the_name_of_a_column_is_refused():
    with pytest.raises(ConfigError, match=r"the name 'y': .*--rename y=NEW"):
        scored({"a.csv": b"x,y\n1,2\n3,4\n"})


@for_each("format", ["parquet", "arrow"])
@for_each("rows_max", [1, 7, 100])
def test_bytes_do_not_depend_on_batches(rows_max, format):
    source = {"a.parquet": parquet(typed_table(40), row_group_size=9)}
    one, other = (
        written(source, format=format, flow=FlowSettings(batch_rows_max=rows))[0] for rows in (13, rows_max)
    )
    assert one == other


WRITTEN = {"a.csv": CSV, "b.jsonl": JSON_LINES, "c.parquet": parquet(typed_table().drop(["raw"]))}


@for_each("format", ["parquet", "arrow"])
@for_each("name", list(WRITTEN))
def test_other_libraries_read_equal_types_and_values(format, name, tmp_path):
    ((_, data),) = written({name: WRITTEN[name]}, format=format)[0].items()
    path = tmp_path / f"out.{format}"
    path.write_bytes(data)
    found = read(format, data)
    if format == "arrow":
        frame, query = pl.read_ipc(path), duckdb.from_arrow(found)
        pandas = pd.read_feather(path, dtype_backend="pyarrow")
    else:
        frame, query = pl.read_parquet(path), duckdb.read_parquet(str(path))
        pandas = pd.read_parquet(path, dtype_backend="pyarrow")
    for other in (
        frame.to_arrow(),
        query.to_arrow_table(),
        pa.Table.from_pandas(pandas, preserve_index=False),
    ):
        assert other.column_names == found.column_names
        assert list(map(plain_type, other.schema.types)) == list(map(plain_type, found.schema.types))
        assert plain(other.to_pylist()) == plain(found.to_pylist())


def plain_type(kind):
    """Return the name of a type without the differences in how libraries hold the same values in memory."""
    types = pa.types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_timestamp(kind):
        return "time" if kind.tz is None else "time with zone"
    if types.is_struct(kind):
        return {field.name: plain_type(field.type) for field in kind}
    return [plain_type(kind.value_type)] if types.is_nested(kind) else str(kind)


def plain(rows):
    """Return the rows with times in UTC, which libraries show in their own zones."""
    return [{k: v.astimezone(UTC) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


# Partitions

CITIES = ["New York", "Genève", "a/b=c%d:e", None]


def divided(tmp_path):
    """Write a table that is divided by a day, a number and a text. Return its folder and its rows."""
    rows = [
        {"id": n, "day": MOMENT.date(), "shop": n % 2, "city": CITIES[n % 4], "x": n / 2} for n in range(12)
    ]
    stores = Stores()
    stores.for_uri(IN).put(f"{IN}a.parquet", parquet(pa.Table.from_pylist(rows)))
    output = OutputSettings(format="parquet", join="input", partition_by=("day", "shop", "city"))
    out = tmp_path / "out"
    transform_sync(IN, f"{out}/", model=Double, settings=TransformSettings(output=output), stores=stores)
    return out, [row | {"y": row["x"] * 2} for row in rows]


def test_polars_duckdb_pandas_and_pyarrow_read_partitions(tmp_path):
    out, rows = divided(tmp_path)
    files = f"{out}/**/*.parquet"
    assert len(list(out.glob("day=2024-02-29/shop=[01]/city=*/a.parquet.out.parquet"))) == 4
    frame = pl.scan_parquet(files, hive_partitioning=True, try_parse_hive_dates=True).collect().sort("id")
    assert frame.select(list(rows[0])).to_dicts() == rows
    types = {"day": pl.Date, "shop": pl.Int64, "city": pl.String, "id": pl.Int64, "y": pl.Float64}
    assert {name: frame.schema[name] for name in types} == types
    query = duckdb.sql(f"SELECT * FROM read_parquet('{files}', hive_partitioning = true) ORDER BY id")
    found = {name: str(kind) for name, kind in zip(query.columns, query.types, strict=True)}
    assert {name: found[name] for name in types} == {
        "day": "DATE",
        "shop": "BIGINT",
        "city": "VARCHAR",
        "id": "BIGINT",
        "y": "DOUBLE",
    }
    assert query.select(", ".join(rows[0])).fetchall() == [tuple(row.values()) for row in rows]
    days = pa.schema([("day", pa.date32()), ("shop", pa.int64()), ("city", pa.string())])
    hive = pa.dataset.HivePartitioning(days, segment_encoding="uri")
    table = pa.dataset.dataset(out, partitioning=hive, exclude_invalid_files=True).to_table()
    assert table.sort_by("id").select(list(rows[0])).to_pylist() == rows
    # Without the types of the folders, pyarrow unifies no dictionaries with nulls.
    in_pandas = pd.read_parquet(out, partitioning=hive, dtype_backend="pyarrow").sort_values("id")
    assert pa.Table.from_pandas(in_pandas, preserve_index=False).select(list(rows[0])).to_pylist() == rows
