"""Infer jobs: a request becomes a response, any other payload a result for each record."""

import json
import threading

import numpy as np
import pytest

from cases import for_each
from headrace import Model
from headrace.core.errors import (
    DataError,
    EmptySourceError,
    LimitError,
    ModelError,
    ModelInputError,
    ModelNotFoundError,
)
from headrace.core.tensor import InferRequest, Tensor, TensorSpec
from headrace.jobs.job import NewJob
from headrace.jobs.kinds import AttemptStoppedError, StopReason, runners
from headrace.jobs.kinds.runners import InferKind
from headrace.jobs.paths import JobPaths
from headrace.jobs.state import Cause, cause_of
from headrace.protocols.oip_json import decode_response, encode_request
from headrace.storage.resolve import Stores
from headrace.testing import EchoModel
from jobs.raising_model import Raises
from jobs.support import attempt_at, one_model

REQUEST = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, 3, 4]}]}


@pytest.fixture
def paths(tmp_path):
    return JobPaths(f"{tmp_path}/store/")


@pytest.fixture
def stores():
    with Stores() as stores:
        yield stores


def payload(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def run(stores, paths, spec, **settings):
    with one_model(**settings) as models:
        kind = InferKind(models, stores, paths)
        attempt = attempt_at(spec)
        return kind.run(attempt), attempt


def test_request_gets_a_protocol_response(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.json", json.dumps(REQUEST))
    result, _ = run(stores, paths, NewJob(model="m", input_uri=uri))
    response = json.loads(stores.for_uri(result.uri).get(result.uri))
    assert response["outputs"][0]["data"] == [6.0, 14.0]
    assert result.uri == f"{paths.store_uri}attempts/job-1/1/result.out"
    assert result.content_type == "application/json"
    assert result.size_bytes == len(stores.for_uri(result.uri).get(result.uri))


class Counting(Model):
    def step(self, states, x):
        steps = states.stack("steps") + 1
        states.keep("steps", steps)
        return steps


def test_sequences_of_requests_belong_to_the_tenant(tmp_path, stores, paths):
    uri = payload(
        tmp_path,
        "in.json",
        json.dumps({**REQUEST, "parameters": {"sequence_id": "a", "sequence_start": "auto"}}),
    )
    steps: list[list[float]] = []
    with one_model(Counting) as models:
        kind = InferKind(models, stores, paths)
        for number, tenant in enumerate(("shop", "farm", "shop")):
            spec = NewJob(model="m", input_uri=uri, tenant=tenant)
            result = kind.run(attempt_at(spec, job_id=f"job-{number}"))
            response = json.loads(stores.for_uri(result.uri).get(result.uri))
            assert response["parameters"] == {"sequence_id": "a"}
            steps.append(response["outputs"][0]["data"])
    assert steps == [[1, 2], [1, 2], [3, 4]]


@for_each("text", ["[[1, 2], [3, 4]]", '{"x": [[1, 2], [3, 4]]}', '{"x": [[1.0, 2], [3, 4e0]]}'])
def test_plain_json_fills_the_model_inputs(tmp_path, stores, paths, text):
    uri = payload(tmp_path, "in", text)
    result, _ = run(stores, paths, NewJob(model="m", input_uri=uri, content_type="application/json"))
    response = json.loads(stores.for_uri(result.uri).get(result.uri))
    assert response["outputs"][0]["data"] == [6.0, 14.0]


def test_unsuitable_plain_json_names_the_model_inputs(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.json", "[[1, 2, 3]]")
    with pytest.raises(DataError, match=r"has shape \[1, 3\], but the model takes \[-1, 2\]"):
        run(stores, paths, NewJob(model="m", input_uri=uri))


def test_json_list_of_objects_is_records(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.json", "[1, 2]")
    result, _ = run(stores, paths, NewJob(model="m", input_uri=uri, accept="text/csv"))
    assert (stores.for_uri(result.uri).get(result.uri), result.content_type) == (b"6.0\n", "text/csv")
    objects = payload(tmp_path, "objects.json", '[{"x": [1, 2]}, {"x": [3, 4]}]')
    result, _ = run(stores, paths, NewJob(model="m", input_uri=objects, accept="text/csv"))
    assert stores.for_uri(result.uri).get(result.uri) == b"6.0\n14.0\n"
    as_document = NewJob(model="m", input_uri=objects, content_type="application/json", accept="text/csv")
    with pytest.raises(DataError, match="all 1 records failed"):
        run(stores, paths, as_document)


def test_tensor_without_axes_is_one_row(tmp_path, stores, paths):
    uri = payload(
        tmp_path, "in.json", json.dumps({"inputs": [{**REQUEST["inputs"][0], "shape": [], "data": 5}]})
    )
    result, _ = run(stores, paths, NewJob(model="m", input_uri=uri), make=EchoModel)
    response = decode_response(stores.for_uri(result.uri).get(result.uri))
    assert (response["output"].shape, response["output"].tolist()) == ((1,), [5.0])


def test_binary_request_gets_a_binary_response(tmp_path, stores, paths):
    request = InferRequest((Tensor("x", np.array([[1.0, 2.0]])),))
    body = encode_request(request, binary=True)
    uri = payload(tmp_path, "in.bin", body.body)
    content_type = f"application/octet-stream; inference-header-content-length={body.json_bytes}"
    result, _ = run(stores, paths, NewJob(model="m", input_uri=uri, content_type=content_type))
    json_bytes = int(result.content_type.rpartition("=")[2])
    response = decode_response(stores.for_uri(result.uri).get(result.uri), json_bytes)
    assert response.outputs[0].data.tolist() == [6.0]


def test_refused_row_fails_the_request_and_is_named(tmp_path, stores, paths):
    bad = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, -3, 4]}]}
    uri = payload(tmp_path, "in.json", json.dumps(bad))
    with pytest.raises(Exception, match=r"row 1: negative"):
        run(stores, paths, NewJob(model="m", input_uri=uri))


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_model_error_and_refused_rows_have_different_causes(tmp_path, stores, paths, isolation):
    # Only model errors and missing memory are retried.
    for error, cause in enumerate((Cause.MODEL, Cause.OOM, Cause.MODEL, Cause.INPUT)):
        for rows in (1, 2):
            x = {"name": "x", "shape": [rows, 2], "datatype": "FP64", "data": [1, error] * rows}
            uri = payload(tmp_path, "in.json", json.dumps({"inputs": [x]}))
            with one_model(Raises, isolation=isolation) as models, pytest.raises(ModelError) as raised:
                InferKind(models, stores, paths).run(attempt_at(NewJob(model="m", input_uri=uri)))
            assert cause_of(raised.value) is cause, (error, rows)


@for_each(
    ("text", "error"),
    [
        ('{"inputs": [', DataError),
        ('{"inputs": []}', DataError),
        ('{"inputs": [{"name": "z", "shape": [1], "datatype": "FP64", "data": [1]}]}', ModelInputError),
    ],
)
def test_invalid_request_names_its_error(tmp_path, stores, paths, text, error):
    uri = payload(tmp_path, "in.json", text)
    with pytest.raises(error):
        run(stores, paths, NewJob(model="m", input_uri=uri, content_type="application/json"))


def test_records_get_predictions_in_order_and_failures_beside(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.csv", "1,2\n3,4\n-1,0\n5,x\n6,7\n")
    result, attempt = run(stores, paths, NewJob(model="m", input_uri=uri, content_type="text/csv"))
    assert stores.for_uri(result.uri).get(result.uri) == b"6.0\n14.0\n26.0\n"
    failed = stores.for_uri(result.uri).get(result.uri + ".failed").splitlines()
    assert [json.loads(line)["record"] for line in failed] == [2, 3]
    assert attempt.progress.done == attempt.progress.total == 5
    assert attempt.progress.note == "2 records failed"
    assert result.content_type == "text/csv"


def test_options_are_transform_options(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.csv", "a,b\n1,2\n3,4\n")
    spec = NewJob(model="m", input_uri=uri, options={"header": "names", "join": "input"})
    result, _ = run(stores, paths, spec)
    assert stores.for_uri(result.uri).get(result.uri).splitlines()[1:] == [b"1,2,6.0", b"3,4,14.0"]


def test_job_fails_if_all_records_fail(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.csv", "x,y\nz,w\n")
    with pytest.raises(DataError, match="all 2 records failed"):
        run(stores, paths, NewJob(model="m", input_uri=uri))


def test_missing_input_is_reported(tmp_path, stores, paths):
    with pytest.raises(EmptySourceError):
        run(stores, paths, NewJob(model="m"))
    uri = payload(tmp_path, "in.json", json.dumps(REQUEST))
    with pytest.raises(ModelNotFoundError):
        run(stores, paths, NewJob(model="other", input_uri=uri))


def test_too_large_request_is_refused_with_advice(tmp_path, stores, paths, monkeypatch):
    monkeypatch.setattr(runners, "REQUEST_BYTES_MAX", 64)
    uri = payload(tmp_path, "in.json", json.dumps(REQUEST) + " " * 64)
    with pytest.raises(LimitError, match="JSON Lines"):
        run(stores, paths, NewJob(model="m", input_uri=uri))


class Waits(Model):
    """A model that blocks in `predict` until the test sets `go_on`."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    called = threading.Event()
    go_on = threading.Event()

    def warm_up(self):
        """Do not block in the warm-up."""

    def predict(self, x):
        """Wait for `go_on`."""
        Waits.called.set()
        Waits.go_on.wait(20)
        return x[:, 0]


@pytest.mark.parametrize(("name", "data"), [("in.json", json.dumps(REQUEST)), ("in.csv", "1,2\n" * 200)])
def test_stopped_attempt_abandons_its_request(tmp_path, stores, paths, name, data):
    Waits.called.clear()
    Waits.go_on.clear()
    uri = payload(tmp_path, name, data)
    with one_model(Waits) as models:
        kind = InferKind(models, stores, paths)
        attempt = attempt_at(NewJob(model="m", input_uri=uri))
        raised = []

        def work():
            try:
                kind.run(attempt)
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        assert Waits.called.wait(20)
        attempt.stop(StopReason.CANCELLED)
        thread.join(20)
        alive = thread.is_alive()
        Waits.go_on.set()
        assert not alive
        assert raised
        if name == "in.json":
            assert isinstance(raised[0], AttemptStoppedError)


def test_discard_removes_the_output(tmp_path, stores, paths):
    uri = payload(tmp_path, "in.csv", "1,2\n")
    with one_model() as models:
        kind = InferKind(models, stores, paths)
        old, new = (attempt_at(NewJob(model="m", input_uri=uri), lease=n) for n in (1, 2))
        first, second = kind.run(old), kind.run(new)
        kind.discard(old)
    assert list(stores.for_uri(first.uri).list(paths.attempt("job-1", 1))) == []
    assert stores.for_uri(second.uri).get(second.uri) == b"6.0\n"


def test_several_input_objects_are_refused(tmp_path, stores, paths):
    # Otherwise all results but one would be lost.
    for name in ("a.csv", "b.csv"):
        payload(tmp_path, name, "1,2\n")
    with one_model() as models:
        spec = NewJob(model="m", input_uri=f"{tmp_path}/*.csv", content_type="text/csv")
        with pytest.raises(DataError, match="names 2 objects"):
            InferKind(models, stores, paths).run(attempt_at(spec))


def test_lines_of_requests_become_lines_of_responses(tmp_path, stores, paths):
    lines = [json.dumps({"id": id, **REQUEST}) for id in "ab"]
    uri = payload(tmp_path, "in.jsonl", "\n".join(lines))
    result, _ = run(stores, paths, NewJob(model="m", input_uri=uri, options={"content_type": "v2"}))
    responses = [json.loads(line) for line in stores.for_uri(result.uri).get(result.uri).splitlines()]
    assert [(one["id"], one["outputs"][0]["data"]) for one in responses] == [
        ("a", [6.0, 14.0]),
        ("b", [6.0, 14.0]),
    ]
