"""`Predict` in real pipelines of Ray Data.

Each test takes some seconds to start its actors, so there are few tests.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import PredictorOptions
from headrace.ray import Predict
from servers.served import serving

MODELS = Path(__file__).parent / "models_for_ray.py"
ROWS = 60
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def scored(ray_data):
    """A function that returns a dataset with predictions of one actor."""

    def score(ds, model, *, batch_format="numpy", **options):
        kwargs = options if model is None else {"model": f"{MODELS}:{model}", **options}
        return ds.map_batches(
            Predict,
            fn_constructor_kwargs=kwargs,
            batch_size=10,
            batch_format=batch_format,
            num_cpus=0.5,  # Two models and the reading task share two cores.
            compute=ray_data.ActorPoolStrategy(size=1),
        )

    return score


@pytest.fixture(scope="module")
def numbers(ray_data):
    """A dataset in four blocks.

    `b` is negative in the first ten rows and in every seventh, and null in row 12. Images have two
    shapes.
    """
    items = [
        {
            "id": i,
            "a": float(i),
            "b": None if i == 12 else -1.0 if i < 10 or i % 7 == 0 else 1.0,
            "name": f"n{i}" if i % 3 else None,
            "image": np.full((2, 2 + i % 2), float(i)),
            "square": np.full((2, 2), float(i)),
        }
        for i in range(ROWS)
    ]
    return ray_data.from_items(items, override_num_blocks=4).materialize()


def test_every_row_has_prediction_or_reason(numbers, scored, tmp_path):
    """A column has the same type in all files, with failed rows or without."""
    ds = scored(numbers, "Sums", columns=["a", "b"], failures="column", keep=["id", "name"])
    ds.write_parquet(str(tmp_path))
    table = pq.read_table(tmp_path)
    assert {n: table.schema.field(n).type for n in ("sum", "whole", "headrace_failure")} == {
        "sum": pa.float32(),
        "whole": pa.int64(),
        "headrace_failure": pa.string(),
    }
    rows = {row["id"]: row for row in table.to_pylist()}
    assert sorted(rows) == list(range(ROWS))
    assert len(rows) == table.num_rows
    for i, row in rows.items():
        assert row["name"] == (f"n{i}" if i % 3 else None)
        if i < 10 or i % 7 == 0:
            assert (row["sum"], row["whole"], row["headrace_failure"]) == (None, None, "a value is negative")
        elif i == 12:
            assert np.isnan(row["sum"])  # Ray passes nulls among numbers to numpy as NaN.
        else:
            assert (row["sum"], row["whole"], row["headrace_failure"]) == (i + 1, i + 1, None)


def test_arrow_tables_keep_nulls_and_columns(numbers, scored):
    """The second of two models gets images of two shapes."""
    ds = scored(numbers, "Sums", columns=["a", "b"], failures="column", batch_format="pyarrow")
    ds = scored(ds, "Means", batch_format="pyarrow")
    rows = {row["id"]: row for row in ds.take_all()}
    assert sorted(rows) == list(range(ROWS))
    for i, row in rows.items():
        assert row["mean"] == i
        assert row["image"].shape == (2, 2 + i % 2)
        assert row["square"].tolist() == [[i, i], [i, i]]
        assert row["name"] == (f"n{i}" if i % 3 else None)
        failed = i < 10 or i % 7 == 0 or i == 12
        assert (row["headrace_failure"] is None, row["sum"] is None) == (not failed, failed)
    assert rows[12]["headrace_failure"] == "column 'b' is null"


@pytest.mark.parametrize(
    ("model", "failures", "message"),
    [
        ("Sums", "raise", r"rows of a batch failed: row \d+ \(id=\d+, a="),
        ("OneRowShort", "column", "9 rows for 10 rows"),
    ],
)
def test_pipeline_fails_with_headrace_message(numbers, scored, model, failures, message):
    import ray.exceptions

    ds = scored(numbers, model, columns=["a", "b"], failures=failures)
    with pytest.raises(ray.exceptions.RayTaskError, match=message):
        ds.materialize()


def test_endpoint_and_models_close_with_their_actors(ray_data, scored, tmp_path):
    """Ray's actors are observable only through files."""
    log = tmp_path / "log"
    with serving(f"doubled={MODELS}:Doubling") as served:
        ds = scored(
            ray_data.range(20), None, endpoint=served.rest, options=PredictorOptions(endpoint_model="doubled")
        )
        ds = scored(
            ds,
            "LoggingLifecycle",
            outputs={"output": "twice"},
            options=PredictorOptions(model_options={"log": str(log)}),
        )
        rows = ds.take_all()
    assert sorted((row["id"], row["doubled"], row["twice"]) for row in rows) == [
        (i, 2 * i, 2 * i) for i in range(20)
    ]
    assert log.read_text() == "loaded\nclosed\n"
