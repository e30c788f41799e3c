"""`headrace.transform` of dataframes: the same kind with new columns, all rows, and types as they were."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

import headrace

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")
dataframes = pytest.importorskip("headrace.app.dataframes")

ROWS = 20_000
KEEP = headrace.TransformSettings(failures=headrace.FailurePolicy(on_error="record"))


class Lengths(headrace.Model):
    inputs = (headrace.TensorSpec("a", "FP64", (-1,)), headrace.TensorSpec("text", "BYTES", (-1,)))
    outputs = (
        headrace.TensorSpec("length", "INT64", (-1,)),
        headrace.TensorSpec("pair", "FP32", (-1, 2)),
        headrace.TensorSpec("upper", "BYTES", (-1,)),
        headrace.TensorSpec("even", "BOOL", (-1,)),
    )

    def predict(self, a, text):
        lengths = np.array([len(value) for value in text], np.int64)
        return {
            "length": lengths,
            "pair": np.stack([a, 2 * a], axis=1).astype(np.float32),
            "upper": np.array([value.upper() for value in text], object),
            "even": lengths % 2 == 0,
        }


class Total(headrace.Model):
    inputs = (headrace.TensorSpec("x", "FP64", (-1, -1)),)
    outputs = (headrace.TensorSpec("total", "FP64", (-1,)),)

    def predict(self, x):
        return {"total": x.sum(axis=1)}


def _pandas(rows=ROWS):
    return pd.DataFrame({"a": np.arange(rows) / 2, "text": [f"x{i}" for i in range(rows)]})


def _polars(rows=ROWS):
    return pl.DataFrame({"a": [i / 2 for i in range(rows)], "text": [f"x{i}" for i in range(rows)]})


KINDS = {
    "pandas": _pandas,
    "polars": _polars,
    "pyarrow": lambda rows=ROWS: _polars(rows).to_arrow(),
    "datasets": lambda rows=ROWS: datasets.Dataset.from_dict(_polars(rows).to_dict(as_series=False)),
}


def _arrow(frame):
    """Return a dataframe of any kind as an Arrow table."""
    if isinstance(frame, pd.DataFrame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if isinstance(frame, datasets.Dataset):
        return frame.with_format("arrow")[:]
    return frame if isinstance(frame, pa.Table) else frame.to_arrow()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", [headrace.transform, headrace.transform_sync])
def test_dataframe_gets_the_outputs_as_typed_columns(kind, function):
    frame = KINDS[kind]()
    scored = function(frame, model=Lengths)
    assert type(scored) is type(frame)
    table = _arrow(scored)
    assert table.column_names == ["a", "text", "length", "pair", "upper", "even"]
    assert table.column("length").to_pylist() == [len(f"x{i}") for i in range(ROWS)]
    assert table.column("pair").to_pylist() == [[i / 2, i] for i in range(ROWS)]
    assert table.column("upper").to_pylist() == [f"X{i}" for i in range(ROWS)]
    assert (table.schema.field("length").type, table.schema.field("even").type) == (pa.int64(), pa.bool_())
    assert _arrow(frame).column_names == ["a", "text"], "the source is not changed"


@pytest.mark.parametrize("kind", KINDS)
def test_dataframe_without_rows_gets_the_declared_columns(kind):
    scored = headrace.transform(KINDS[kind](0), model=Lengths)
    assert _arrow(scored).column_names == ["a", "text", "length", "pair", "upper", "even"]
    assert scored.shape[0] == 0


def test_pandas_keeps_the_index_and_all_types():
    zone = datetime(2026, 1, 1, tzinfo=UTC)
    frame = pd.DataFrame(
        {
            "a": pd.array([1.5, 2.5, 3.5], "Float64"),
            "text": np.array(["x", "yy", "zzz"], object),
            "kind": pd.Categorical(["u", "v", "u"], categories=["v", "u"], ordered=True),
            "count": pd.array([1, None, 3], "Int64"),
            "flag": pd.array([True, None, False], "boolean"),
            "when": pd.DatetimeIndex([zone + timedelta(days=i) for i in range(3)]).tz_convert(
                "Europe/Berlin"
            ),
            "price": [Decimal("1.10"), None, Decimal("3.30")],
            7: [1, 2, 3],
        },
        index=pd.MultiIndex.from_tuples([("b", 1), ("a", 1), ("b", 1)], names=["one", "two"]),
    )
    before = frame.copy()
    scored = headrace.transform(frame, model=Lengths)
    pd.testing.assert_frame_equal(scored[list(frame.columns)], before)
    pd.testing.assert_frame_equal(frame, before)
    assert scored["length"].dtype == np.int64
    assert scored["length"].tolist() == [1, 2, 3]
    assert scored["pair"].iloc[2].tolist() == [3.5, 7.0]


@pytest.mark.parametrize("kind", KINDS)
def test_failed_row_raises_with_its_number_and_reason(kind):
    table = _arrow(KINDS[kind](10))
    texts = pa.array([None if i == 7 else f"x{i}" for i in range(10)], pa.string())
    broken = _as_kind(kind, table.set_column(1, "text", texts))
    with pytest.raises(
        headrace.HeadraceError, match=r"1 of the first 10 rows .* row 7: column .text. is not"
    ):
        headrace.transform(broken, model=Lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_failed_rows_can_be_nulls_with_a_reason(kind):
    rows = 3000
    table = _arrow(KINDS[kind](rows))
    texts = pa.array([None if i % 1000 == 7 else f"x{i}" for i in range(rows)], pa.string())
    scored = headrace.transform(
        _as_kind(kind, table.set_column(1, "text", texts)), model=Lengths, settings=KEEP
    )
    found = _arrow(scored)
    assert found.num_rows == rows
    assert found.column_names[2:] == ["length", "pair", "upper", "even", "error"]
    assert found.schema.field("length").type == pa.int64()
    for row in found.slice(5, 5).to_pylist():
        failed = row["text"] is None
        assert (row["length"], row["upper"], row["even"]) == (
            (None, None, None) if failed else (2, row["text"].upper(), True)
        )
        assert row["error"] == ('column "text" is not text, but null' if failed else None)
    assert found.column("error").null_count == rows - 3


def _as_kind(kind, table):
    match kind:
        case "pandas":
            return table.to_pandas()
        case "polars":
            return pl.DataFrame(table)
        case "pyarrow":
            return table
        case _:
            return datasets.Dataset(datasets.table.InMemoryTable(table))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_kept_failed_rows_always_have_a_column_of_reasons(kind):
    scored = headrace.transform(KINDS[kind](3), model=Lengths, settings=KEEP)
    assert _arrow(scored).column("error").null_count == 3


def test_pandas_has_nullable_integers_when_failed_rows_are_kept():
    dtypes = headrace.transform(_pandas(3), model=Lengths, settings=KEEP).dtypes
    assert (dtypes["length"], dtypes["even"]) == (pd.Int64Dtype(), pd.BooleanDtype())


def test_nan_of_pandas_reaches_the_model_and_null_does_not():
    scored = headrace.transform(pd.DataFrame({"x": [1.0, np.nan]}), model=Total)
    assert np.isnan(scored["total"].iloc[1])
    with pytest.raises(headrace.HeadraceError, match=r"row 1: column .x. is not float64, but null"):
        headrace.transform(pl.DataFrame({"x": [1.0, None]}), model=Total)


def test_columns_of_the_mapping_select_the_inputs():
    frame = pl.DataFrame({"id": [10, 20], "b": [1, 2], "a": [0.5, 0.25]})
    settings = headrace.TransformSettings(mapping=headrace.MappingOptions(columns=("a", "b")))
    scored = headrace.transform(frame, model=Total, settings=settings)
    assert scored.columns == ["id", "b", "a", "total"]
    assert scored["total"].to_list() == [1.5, 2.25]


def test_selected_rows_of_a_dataset_are_scored_in_its_order():
    dataset = datasets.Dataset.from_dict({"x": [float(i) for i in range(10)]}).select([7, 3, 5])
    assert headrace.transform(dataset, model=Total)["total"][:] == [7.0, 3.0, 5.0]


def test_rows_of_many_bytes_are_converted_in_small_blocks(monkeypatch):
    frame = pd.DataFrame({"a": np.arange(3000.0), "text": ["x" * 4000] * 3000})
    converted = []
    rows = dataframes._PandasFrame.rows

    def watched(self, start, count):
        table = rows(self, start, count)
        converted.append(table.nbytes)
        return table

    monkeypatch.setattr(dataframes._PandasFrame, "rows", watched)
    assert headrace.transform(frame, model=Lengths)["length"].tolist() == [4000] * 3000
    # The first block has the sample; its rows tell the size of the later ones.
    assert max(converted[1:]) <= 2 << 20


def test_model_that_fails_every_row_raises_its_own_error():
    class Broken(Total):
        def predict(self, x):
            raise KeyError("weights")

    with pytest.raises(headrace.HeadraceError, match="weights"):
        headrace.transform(_pandas(100)[["a"]], model=Broken)


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (pl.DataFrame({"total": [1.0]}), None, "a column 'total', the name of a new column"),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), None, "two columns of the same name"),
        (pd.DataFrame({"x": [1], "y": [object()]}), None, "column 'y' .* has no type in Arrow"),
        (pl.LazyFrame({"x": [1.0]}), None, r"LazyFrame is no source.*collect\(\)"),
        (5, None, "int is no source"),
        (
            pl.DataFrame({"x": [1.0]}),
            headrace.TransformSettings(subset=headrace.SubsetSettings(limit=1)),
            "select its rows",
        ),
        (
            pl.DataFrame({"x": [1.0]}),
            headrace.TransformSettings(failures=headrace.FailurePolicy(failed_rows_max=1)),
            "limits of failed rows have no meaning",
        ),
        (
            pl.DataFrame({"x": [1.0]}),
            headrace.TransformSettings(output=headrace.OutputSettings(partition_by=("a",))),
            "partition_by divides files",
        ),
    ],
)
def test_unsuitable_source_is_refused(source, settings, message):
    with pytest.raises(headrace.HeadraceError, match=message):
        headrace.transform(source, model=Total, settings=settings)
