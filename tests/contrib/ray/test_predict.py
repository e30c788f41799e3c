"""`Predict` as Ray's actors call it, without Ray."""

import gc
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cases import for_each
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


class ScriptedPredictor:
    """A predictor with output `y` that responds once `expected_requests` requests are submitted.

    `rows_returned` maps a request's rows to the rows of its response. With `error` the first request
    fails and the others get no response.
    """

    name = "scripted"
    in_flight_max = 8
    metadata = ModelMetadata("scripted", inputs=(TensorSpec("x", "FP32", (-1,)),), max_batch_rows=4)

    def __init__(self, expected_requests=1, rows_returned=lambda rows: rows, failures=(), error=None):
        self.expected_requests, self.rows_returned, self.failures = expected_requests, rows_returned, failures
        self.error = error
        self.futures: list[tuple[int, Future]] = []
        self.stopped = 0

    def start(self):
        pass

    def stop(self, *, drain=True):
        self.stopped += 1

    def submit(self, request):
        self.futures.append((request.rows, Future()))
        if len(self.futures) == self.expected_requests and self.error is not None:
            self.futures[0][1].set_exception(self.error)
        elif len(self.futures) == self.expected_requests:
            for rows, future in self.futures:
                output = np.ones(self.rows_returned(rows), np.float32)
                future.set_result(InferResponse((Tensor("y", output),), failures=self.failures))
        return self.futures[-1][1]


def test_predictions_join_the_columns():
    with predict() as predictor:
        out = predictor({"a": A[:2], "b": B[:2], "c": np.array(["x", "y"], object)})
    assert list(out) == ["a", "b", "c", "sum", "share", "whole"]
    assert all(isinstance(column, np.ndarray) for column in out.values())
    assert out["sum"].tolist() == [2.0, 3.0]
    assert out["a"].tolist() == [1.0, 2.0]


def test_failed_rows_raise_with_place_and_reason():
    with predict() as predictor, pytest.raises(RefusedRowsError) as error:
        predictor({"a": np.array([1.0, -2.0, 3.0]), "b": np.array([1, 1, None], object)})
    assert error.value.why.startswith(
        "2 of 3 rows of a batch failed: row 1 (a=-2.0, b=1): a value is negative; "
        "row 2 (a=3.0, b=None): column 'b' is null."
    )


@for_each("arrow", [False, True])
def test_failed_row_has_nulls_and_reason(arrow):
    batch = {"a": np.array([1.0, -2.0, 3.0]), "b": np.array([1, 1, None], object)}
    with predict(failures="column", keep=["a"]) as predictor:
        out = predictor(pa.table(batch) if arrow else batch)
        assert values(predictor({name: column[1:] for name, column in batch.items()})["whole"]) == [
            None,
            None,
        ]
    assert list(out) == ["a", "sum", "share", "whole", "headrace_failure"]
    assert values(out["sum"]) == [2.0, None, None]
    assert values(out["headrace_failure"]) == [None, "a value is negative", "column 'b' is null"]
    assert np.isnan(out["share"]).any(axis=1).tolist() == [False, True, True]


@for_each("failures", ["raise", "column"])
def test_empty_batch_keeps_columns(failures):
    with predict(failures=failures) as predictor:
        out = predictor({"a": A[:0], "b": B[:0]})
        assert predictor({}).keys() == out.keys() - {"a", "b"}
    assert {name: len(column) for name, column in out.items()} == dict.fromkeys(out, 0)


def test_undeclared_model_predicts():
    batch = {"x": np.array([1, 2]), "text": np.array(["a", ""], object)}
    with predict("Undeclared", columns=None, failures="column") as predictor:
        out = predictor(batch)
    assert values(out["twice"]) == [2, None]
    assert values(out["upper"]) == ["A", None]


@for_each("failures", ["raise", "column"])
def test_model_that_loses_a_row_raises(failures):
    with (
        predict("OneRowShort", failures=failures) as predictor,
        pytest.raises(ModelContractError, match="1 rows for 2 rows"),
    ):
        predictor({"a": A[:2], "b": B[:2]})


@for_each("options", [{"rows_returned": lambda rows: rows - 1}, {"failures": (RowFailure(0, "why"),)}])
def test_predictor_that_loses_or_doubles_a_row_raises(options):
    with (
        Predict(ScriptedPredictor(**options), failures="column") as predictor,
        pytest.raises(ModelContractError, match="for 2 rows it returned"),
    ):
        predictor({"x": np.arange(2.0)})


@for_each(("request_rows", "sizes"), [(None, [4, 4, 2]), (3, [3, 3, 3, 1]), (10, [10])])
def test_large_batch_sends_concurrent_requests(request_rows, sizes):
    """No response comes before all requests are submitted: waiting for the first would never end."""
    scripted = ScriptedPredictor(expected_requests=len(sizes))
    with Predict(scripted, request_rows=request_rows) as predictor:
        assert predictor({"x": np.arange(10.0)})["y"].tolist() == [1.0] * 10
    assert [rows for rows, _ in scripted.futures] == sizes


def test_failed_request_cancels_the_others():
    scripted = ScriptedPredictor(expected_requests=3, error=ModelContractError("scripted", "no"))
    with Predict(scripted, request_rows=1) as predictor, pytest.raises(ModelContractError):
        predictor({"x": np.arange(3.0)})
    assert [future.cancelled() for _, future in scripted.futures] == [False, True, True]


def test_outputs_are_selected_and_renamed():
    with predict(outputs={"sum": "score"}, keep=[]) as predictor:
        assert list(predictor({"a": A[:2], "b": B[:2]})) == ["score"]
    with predict(outputs=["none"]) as predictor, pytest.raises(ModelInputError, match="no output 'none'"):
        predictor({"a": A[:2], "b": B[:2]})


@for_each(
    ("options", "message"),
    [
        ({"failures": "drop"}, '"raise" or "column", not \'drop\''),
        ({"request_rows": 0}, "1 or more, not 0"),
        ({"keep": "a"}, r'keep=\["a"\]'),
        ({"columns": {"y": "a"}}, "no input 'y'"),
        ({"outputs": []}, "names no output"),
        ({"endpoint": "http://localhost:1/v2/models/m"}, "either a model"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        predict(**options)


@for_each(
    ("options", "more", "message"),
    [
        ({}, {"sum": A}, "'sum' would be both a column"),
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
def test_column_name_clashes_are_refused(options, more, message):
    with predict(**options) as predictor, pytest.raises(ConfigError, match=message):
        predictor({"a": A, "b": B, **more})


def test_undeclared_output_may_clash():
    with (
        Predict(ScriptedPredictor()) as predictor,
        pytest.raises(ConfigError, match="'y' would be both a column"),
    ):
        predictor({"x": np.arange(1.0), "y": np.arange(1.0)})


def test_close_and_deletion_stop_the_model(tmp_path):
    """Ray drops its instances without a call when an actor ends."""
    log = tmp_path / "log"
    options = PredictorOptions(model_options={"log": str(log)})
    predictor = predict("LoggingLifecycle", columns=["a"], options=options)
    del predictor
    gc.collect()
    assert log.read_text() == "loaded\nclosed\n"
    predictor = predict("LoggingLifecycle", columns=["a"], options=options)
    predictor.close()
    predictor.close()
    assert log.read_text() == "loaded\nclosed\n" * 2


def test_unsuitable_model_is_closed():
    scripted = ScriptedPredictor()
    with pytest.raises(ConfigError, match="no input"):
        Predict(scripted, columns={"z": "a"})
    assert scripted.stopped


@pytest.mark.slow  # starts a server
def test_endpoint_refuses_rows_and_unreachable_endpoint_raises():
    """A refusal fails its rows. An unreachable endpoint is no fault of a row."""
    options = PredictorOptions(endpoint_model="models", retry_s=0.0)
    with serving(f"models={MODELS}:Sums") as served:
        predictor = Predict(
            endpoint=served.rest, columns=["a", "b"], failures="column", request_rows=1, options=options
        )
        out = predictor({"a": A, "b": B})
        assert values(out["sum"]) == [2.0, 3.0, None]
        assert "a value is negative" in values(out["headrace_failure"])[2]
    with predictor, pytest.raises(EndpointUnavailableError):
        predictor({"a": A, "b": B})
