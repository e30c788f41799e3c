"""`Predict` as Ray's actors call it, without Ray: options, what is asked at once, whose rows fail, who closes."""

import gc
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace import PredictorOptions, TensorSpec
from headrace.core.errors import (
    ConfigError,
    EndpointUnavailableError,
    ModelContractError,
    ModelInputError,
    RefusedRowsError,
)
from headrace.core.tensor import InferResponse, ModelMetadata, RowFailure, Tensor
from headrace.ray import Predict
from servers.served import serving

MODELS = Path(__file__).parent / "models_for_ray.py"
A, B = np.array([1.0, 2.0, -3.0]), np.array([1, 1, 1])


def predict(model="Sums", **options):
    return Predict(f"{MODELS}:{model}", **{"columns": ["a", "b"], **options})


def values(column):
    return column.to_pylist() if isinstance(column, pa.Array) else column.tolist()


class Asked:
    """A predictor that answers `y`, as many rows as `answer` says, once `of` requests were asked."""

    name = "asked"
    in_flight_max = 8
    metadata = ModelMetadata("asked", inputs=(TensorSpec("x", "FP32", (-1,)),), max_batch_rows=4)

    def __init__(self, of=1, answer=lambda rows: rows, failures=()):
        self.of, self.answer, self.failures = of, answer, failures
        self.futures: list[tuple[int, Future]] = []
        self.stopped = 0

    def start(self):
        pass

    def stop(self, *, drain=True):
        self.stopped += 1

    def submit(self, request):
        self.futures.append((request.rows, Future()))
        if len(self.futures) == self.of:
            for rows, future in self.futures:
                given = np.ones(self.answer(rows), np.float32)
                future.set_result(InferResponse((Tensor("y", given),), failures=self.failures))
        return self.futures[-1][1]


def test_predictions_stand_beside_the_columns():
    with predict() as made:
        out = made({"a": A[:2], "b": B[:2], "c": np.array(["x", "y"], object)})
    assert list(out) == ["a", "b", "c", "sum", "share", "whole"]
    assert all(isinstance(column, np.ndarray) for column in out.values())
    assert out["sum"].tolist() == [2.0, 3.0]
    assert out["a"].tolist() == [1.0, 2.0]


def test_a_failed_row_raises_with_its_place_and_reason():
    with predict() as made, pytest.raises(RefusedRowsError) as error:
        made({"a": np.array([1.0, -2.0, 3.0]), "b": np.array([1, 1, None], object)})
    assert error.value.why.startswith(
        "2 of 3 rows of a batch failed: row 1 (a=-2.0, b=1): a value is negative; row 2 (a=3.0, b=None): column 'b' is null."
    )


@pytest.mark.parametrize("arrow", [False, True])
def test_a_failed_row_costs_itself(arrow):
    batch = {"a": np.array([1.0, -2.0, 3.0]), "b": np.array([1, 1, None], object)}
    with predict(failures="column", keep=["a"]) as made:
        out = made(pa.table(batch) if arrow else batch)
        assert values(made({name: column[1:] for name, column in batch.items()})["whole"]) == [None, None]
    assert list(out) == ["a", "sum", "share", "whole", "headrace_failure"]
    assert values(out["sum"]) == [2.0, None, None]
    assert values(out["headrace_failure"]) == [None, "a value is negative", "column 'b' is null"]
    assert np.isnan(out["share"]).any(axis=1).tolist() == [False, True, True]


@pytest.mark.parametrize("failures", ["raise", "column"])
def test_no_rows(failures):
    with predict(failures=failures) as made:
        out = made({"a": A[:0], "b": B[:0]})
        assert made({}).keys() == out.keys() - {"a", "b"}
    assert {name: len(column) for name, column in out.items()} == dict.fromkeys(out, 0)


def test_a_model_that_declares_nothing():
    batch = {"x": np.array([1, 2]), "text": np.array(["a", ""], object)}
    with predict("Lossless", columns=None, failures="column") as made:
        out = made(batch)
    assert values(out["twice"]) == [2, None]
    assert values(out["upper"]) == ["A", None]


@pytest.mark.parametrize("failures", ["raise", "column"])
def test_a_model_that_loses_a_row_is_an_error_whatever_failures_cost(failures):
    with (
        predict("Lossy", failures=failures) as made,
        pytest.raises(ModelContractError, match="1 rows for 2 rows"),
    ):
        made({"a": A[:2], "b": B[:2]})


@pytest.mark.parametrize(
    "options", [{"answer": lambda rows: rows - 1}, {"failures": (RowFailure(0, "why"),)}]
)
def test_a_predictor_that_loses_or_doubles_a_row_is_one_too(options):
    with (
        Predict(Asked(**options), failures="column") as made,
        pytest.raises(ModelContractError, match="asked for 2 rows"),
    ):
        made({"x": np.arange(2.0)})


@pytest.mark.parametrize(("request_rows", "sizes"), [(None, [4, 4, 2]), (3, [3, 3, 3, 1]), (10, [10])])
def test_a_large_batch_is_several_requests_that_are_under_way_together(request_rows, sizes):
    """Nothing is answered before all are asked: whoever waited for the first would wait for ever."""
    asked = Asked(of=len(sizes))
    with Predict(asked, request_rows=request_rows) as made:
        assert made({"x": np.arange(10.0)})["y"].tolist() == [1.0] * 10
    assert [rows for rows, _ in asked.futures] == sizes


def test_what_was_asked_beside_a_request_that_fails_is_taken_back():
    asked = Asked(of=99)
    with Predict(asked, request_rows=1) as made:
        threading.Thread(target=lambda: _fail_first(asked, 3)).start()
        with pytest.raises(ModelContractError):
            made({"x": np.arange(3.0)})
    assert [future.cancelled() for _, future in asked.futures] == [False, True, True]


def _fail_first(asked, count):
    while len(asked.futures) < count:
        pass
    asked.futures[0][1].set_exception(ModelContractError("asked", "no"))


def test_outputs_are_chosen_and_renamed():
    with predict(outputs={"sum": "score"}, keep=[]) as made:
        assert list(made({"a": A[:2], "b": B[:2]})) == ["score"]
    with predict(outputs=["none"]) as made, pytest.raises(ModelInputError, match="no output 'none'"):
        made({"a": A[:2], "b": B[:2]})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"failures": "drop"}, '"raise" or "column", not \'drop\''),
        ({"request_rows": 0}, "1 or more, not 0"),
        ({"keep": "a"}, r'keep=\["a"\]'),
        ({"columns": {"y": "a"}}, "no input 'y'"),
        ({"outputs": []}, "names no output"),
        ({"endpoint": "http://localhost:1/v2/models/m"}, "not both"),
    ],
)
def test_options_that_cannot_be(options, says):
    with pytest.raises(ConfigError, match=says):
        predict(**options)


@pytest.mark.parametrize(
    ("options", "more", "says"),
    [
        ({}, {"sum": A}, "'sum' would be a column twice"),
        ({"failures": "column"}, {"headrace_failure": A}, "'headrace_failure' would be"),
        ({"outputs": {"sum": "a"}}, {}, "'a' would be"),
        (
            {"outputs": {"sum": "why"}, "failures": "column", "failure_column": "why"},
            {},
            "column of failures",
        ),
        ({"keep": ["z"]}, {}, "keep names 'z'.*it has 'a', 'b'"),
    ],
)
def test_columns_that_cannot_be(options, more, says):
    with predict(**options) as made, pytest.raises(ConfigError, match=says):
        made({"a": A, "b": B, **more})


def test_an_output_that_nobody_declared_may_clash_too():
    with Predict(Asked()) as made, pytest.raises(ConfigError, match="'y' would be a column twice"):
        made({"x": np.arange(1.0), "y": np.arange(1.0)})


def test_threads_end_with_close_and_with_the_object(tmp_path):
    """Ray tells its instances nothing when an actor goes: it drops them."""
    log = tmp_path / "log"
    options = PredictorOptions(model_options={"log": str(log)})
    made = predict("Closing", columns=["a"], options=options)
    del made
    gc.collect()
    assert log.read_text() == "loaded\nclosed\n"
    made = predict("Closing", columns=["a"], options=options)
    made.close()
    made.close()
    assert log.read_text() == "loaded\nclosed\n" * 2


def test_a_model_that_does_not_suit_is_closed_again():
    asked = Asked()
    with pytest.raises(ConfigError, match="no input"):
        Predict(asked, columns={"z": "a"})
    assert asked.stopped


def test_an_endpoint_and_one_that_is_gone():
    """Rows that it refuses fail; that nobody answers is no row's fault."""
    options = PredictorOptions(endpoint_model="models", retry_s=0.0)
    with serving(f"models={MODELS}:Sums") as served:
        made = Predict(
            endpoint=served.rest, columns=["a", "b"], failures="column", request_rows=1, options=options
        )
        out = made({"a": A, "b": B})
        assert values(out["sum"]) == [2.0, 3.0, None]
        assert "a value is negative" in values(out["headrace_failure"])[2]
    with made, pytest.raises(EndpointUnavailableError):
        made({"a": A, "b": B})
