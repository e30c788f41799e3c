"""`Predict` in real pipelines of Ray Data. Each costs some seconds, in which its actors start: they are few, and do much."""

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
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def scored(ray_data):
    """A dataset with predictions, by one actor."""

    def score(ds, model, *, batch_format="numpy", **options):
        kwargs = options if model is None else {"model": f"{MODELS}:{model}", **options}
        return ds.map_batches(
            Predict,
            fn_constructor_kwargs=kwargs,
            batch_size=10,
            batch_format=batch_format,
            num_cpus=0.5,  # two models and the task that reads have two cores between them
            compute=ray_data.ActorPoolStrategy(size=1),
        )

    return score


@pytest.fixture(scope="module")
def numbers(ray_data):
    """In four blocks: `b` is negative in the first ten rows and in every seventh, and null in row 12; images have two shapes."""
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


def test_every_row_has_its_own_prediction_or_reason(numbers, scored, tmp_path):
    """Also in files: the type of a column is the same in all of them, whether rows failed or not, some or all."""
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
            assert np.isnan(row["sum"])  # Ray tells numpy of no nulls among numbers
        else:
            assert (row["sum"], row["whole"], row["headrace_failure"]) == (i + 1, i + 1, None)


def test_in_arrow_tables_nulls_are_told_and_what_is_kept_stays_as_it_is(numbers, scored):
    """Two models, one behind the other; of the second every row is an image of one of two shapes."""
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
    ("model", "failures", "says"),
    [
        ("Sums", "raise", r"rows of a batch failed: row \d+ \(id=\d+, a="),
        ("Lossy", "column", "9 rows for 10 rows"),
    ],
)
def test_the_pipeline_fails_with_our_message(numbers, scored, model, failures, says):
    import ray.exceptions

    ds = scored(numbers, model, columns=["a", "b"], failures=failures)
    with pytest.raises(ray.exceptions.RayTaskError, match=says):
        ds.materialize()


def test_an_endpoint_and_models_that_are_closed_with_their_actors(ray_data, scored, tmp_path):
    """Of what Ray's actors did only files tell."""
    log = tmp_path / "log"
    with serving(f"doubled={MODELS}:Doubled") as served:
        ds = scored(
            ray_data.range(20), None, endpoint=served.rest, options=PredictorOptions(endpoint_model="doubled")
        )
        ds = scored(
            ds,
            "Closing",
            outputs={"output": "twice"},
            options=PredictorOptions(model_options={"log": str(log)}),
        )
        rows = ds.take_all()
    assert sorted((row["id"], row["doubled"], row["twice"]) for row in rows) == [
        (i, 2 * i, 2 * i) for i in range(20)
    ]
    assert log.read_text() == "loaded\nclosed\n"
