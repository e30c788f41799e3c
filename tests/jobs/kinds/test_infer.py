"""One payload in, one result out: requests as they stand, anything else record by record."""

import json
import threading

import numpy as np
import pytest

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
from headrace.jobs.attempt import AttemptStoppedError, StopReason
from headrace.jobs.cause import Cause, cause_of
from headrace.jobs.job import NewJob
from headrace.jobs.kinds import infer
from headrace.jobs.kinds.infer import InferKind
from headrace.jobs.places import Places
from headrace.protocols.oip_json import decode_response, encode_request
from headrace.storage.resolve import Stores
from jobs.raising_model import Raises
from jobs.support import attempt_at, one_model

REQUEST = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, 3, 4]}]}


@pytest.fixture
def places(tmp_path):
    return Places(f"{tmp_path}/store/")


@pytest.fixture
def stores():
    with Stores() as made:
        yield made


def payload(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def run(stores, places, spec, **settings):
    with one_model(**settings) as models:
        kind = InferKind(models, stores, places)
        attempt = attempt_at(spec)
        return kind.run(attempt), attempt


def test_a_request_is_answered_in_the_protocol(tmp_path, stores, places):
    uri = payload(tmp_path, "in.json", json.dumps(REQUEST))
    result, _ = run(stores, places, NewJob(model="m", input_uri=uri))
    answer = json.loads(stores.for_uri(result.uri).get(result.uri))
    assert answer["outputs"][0]["data"] == [6.0, 14.0]
    assert result.uri == f"{places.store_uri}attempts/job-1/1/result.out"
    assert result.content_type == "application/json"
    assert result.size_bytes == len(stores.for_uri(result.uri).get(result.uri))


@pytest.mark.parametrize(
    "text", ["[[1, 2], [3, 4]]", '{"x": [[1, 2], [3, 4]]}', '{"x": [[1.0, 2], [3, 4e0]]}']
)
def test_plain_json_goes_to_the_inputs_of_the_model(tmp_path, stores, places, text):
    uri = payload(tmp_path, "in", text)
    result, _ = run(stores, places, NewJob(model="m", input_uri=uri, content_type="application/json"))
    answer = json.loads(stores.for_uri(result.uri).get(result.uri))
    assert answer["outputs"][0]["data"] == [6.0, 14.0]


def test_plain_json_that_fits_no_input_says_what_the_model_takes(tmp_path, stores, places):
    uri = payload(tmp_path, "in.json", "[[1, 2, 3]]")
    with pytest.raises(DataError, match=r"has shape \[1, 3\], but the model takes \[-1, 2\]"):
        run(stores, places, NewJob(model="m", input_uri=uri))


def test_json_that_is_a_list_of_objects_or_wanted_in_another_form_is_records(tmp_path, stores, places):
    uri = payload(tmp_path, "in.json", "[1, 2]")
    result, _ = run(stores, places, NewJob(model="m", input_uri=uri, accept="text/csv"))
    assert (stores.for_uri(result.uri).get(result.uri), result.content_type) == (b"6.0\n", "text/csv")
    objects = payload(tmp_path, "objects.json", '[{"x": [1, 2]}]')
    with pytest.raises(DataError, match="all 1 records failed"):
        run(stores, places, NewJob(model="m", input_uri=objects))


def test_a_binary_request_gets_a_binary_answer(tmp_path, stores, places):
    request = InferRequest((Tensor("x", np.array([[1.0, 2.0]])),))
    body = encode_request(request, binary=True)
    uri = payload(tmp_path, "in.bin", body.body)
    content_type = f"application/octet-stream; inference-header-content-length={body.json_bytes}"
    result, _ = run(stores, places, NewJob(model="m", input_uri=uri, content_type=content_type))
    json_bytes = int(result.content_type.rpartition("=")[2])
    answer = decode_response(stores.for_uri(result.uri).get(result.uri), json_bytes)
    assert answer.outputs[0].data.tolist() == [6.0]


def test_rows_that_the_model_refuses_fail_the_request_and_name_the_row(tmp_path, stores, places):
    bad = {"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP64", "data": [1, 2, -3, 4]}]}
    uri = payload(tmp_path, "in.json", json.dumps(bad))
    with pytest.raises(Exception, match=r"row 1: negative"):
        run(stores, places, NewJob(model="m", input_uri=uri))


@pytest.mark.parametrize(("what", "cause"), [*enumerate((Cause.MODEL, Cause.OOM, Cause.MODEL, Cause.INPUT))])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_a_model_raises_is_its_own_fault_and_what_it_refuses_the_payloads(
    tmp_path, stores, places, *, isolation, what, cause
):
    """So that only the first is tried again; whether the payload has one row, or more."""
    for rows in (1, 2):
        x = {"name": "x", "shape": [rows, 2], "datatype": "FP64", "data": [1, what] * rows}
        uri = payload(tmp_path, "in.json", json.dumps({"inputs": [x]}))
        with one_model(Raises, isolation=isolation) as models, pytest.raises(ModelError) as raised:
            InferKind(models, stores, places).run(attempt_at(NewJob(model="m", input_uri=uri)))
        assert cause_of(raised.value) is cause


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"inputs": [', DataError),
        ('{"inputs": []}', DataError),
        ('{"inputs": [{"name": "z", "shape": [1], "datatype": "FP64", "data": [1]}]}', ModelInputError),
    ],
)
def test_a_request_that_is_none_says_what_is_wrong(tmp_path, stores, places, text, error):
    uri = payload(tmp_path, "in.json", text)
    with pytest.raises(error):
        run(stores, places, NewJob(model="m", input_uri=uri, content_type="application/json"))


def test_records_get_their_predictions_in_order_and_bad_ones_stand_beside(tmp_path, stores, places):
    uri = payload(tmp_path, "in.csv", "1,2\n3,4\n-1,0\n5,x\n6,7\n")
    result, attempt = run(stores, places, NewJob(model="m", input_uri=uri, content_type="text/csv"))
    assert stores.for_uri(result.uri).get(result.uri) == b"6.0\n14.0\n26.0\n"
    failed = stores.for_uri(result.uri).get(result.uri + ".failed").splitlines()
    assert [json.loads(line)["record"] for line in failed] == [2, 3]
    assert attempt.progress.done == attempt.progress.total == 5
    assert attempt.progress.note == "2 records failed"
    assert result.content_type == "text/csv"


def test_options_are_the_words_of_a_transform(tmp_path, stores, places):
    uri = payload(tmp_path, "in.csv", "a,b\n1,2\n3,4\n")
    spec = NewJob(model="m", input_uri=uri, options={"header": "names", "join": "input"})
    result, _ = run(stores, places, spec)
    assert stores.for_uri(result.uri).get(result.uri).splitlines()[1:] == [b"1,2,6.0", b"3,4,14.0"]


def test_a_payload_of_which_every_record_fails_fails_the_job(tmp_path, stores, places):
    uri = payload(tmp_path, "in.csv", "x,y\nz,w\n")
    with pytest.raises(DataError, match="all 2 records failed"):
        run(stores, places, NewJob(model="m", input_uri=uri))


def test_what_a_job_lacks_is_said(tmp_path, stores, places):
    with pytest.raises(EmptySourceError):
        run(stores, places, NewJob(model="m"))
    uri = payload(tmp_path, "in.json", json.dumps(REQUEST))
    with pytest.raises(ModelNotFoundError):
        run(stores, places, NewJob(model="other", input_uri=uri))


def test_a_request_beyond_the_bound_is_refused_and_told_what_to_do(tmp_path, stores, places, monkeypatch):
    monkeypatch.setattr(infer, "REQUEST_BYTES_MAX", 64)
    uri = payload(tmp_path, "in.json", json.dumps(REQUEST) + " " * 64)
    with pytest.raises(LimitError, match="JSON Lines"):
        run(stores, places, NewJob(model="m", input_uri=uri))


class Waits(Model):
    """Answers when the test lets it."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    called = threading.Event()
    go_on = threading.Event()

    def warm_up(self):
        """Not in a test that waits."""

    def predict(self, x):
        """Wait."""
        Waits.called.set()
        Waits.go_on.wait(20)
        return x[:, 0]


@pytest.mark.parametrize(("name", "data"), [("in.json", json.dumps(REQUEST)), ("in.csv", "1,2\n" * 200)])
def test_an_attempt_that_is_stopped_lets_go_at_once(tmp_path, stores, places, name, data):
    Waits.called.clear()
    Waits.go_on.clear()
    uri = payload(tmp_path, name, data)
    with one_model(Waits) as models:
        kind = InferKind(models, stores, places)
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


def test_what_does_not_count_is_removed(tmp_path, stores, places):
    uri = payload(tmp_path, "in.csv", "1,2\n")
    with one_model() as models:
        kind = InferKind(models, stores, places)
        old, new = (attempt_at(NewJob(model="m", input_uri=uri), lease=n) for n in (1, 2))
        first, second = kind.run(old), kind.run(new)
        kind.discard(old)
    assert list(stores.for_uri(first.uri).list(places.attempt("job-1", 1))) == []
    assert stores.for_uri(second.uri).get(second.uri) == b"6.0\n"


def test_several_objects_are_no_payload(tmp_path, stores, places):
    """One of them would be the result, and the others would be gone without a word."""
    for name in ("a.csv", "b.csv"):
        payload(tmp_path, name, "1,2\n")
    with one_model() as models:
        spec = NewJob(model="m", input_uri=f"{tmp_path}/*.csv", content_type="text/csv")
        with pytest.raises(DataError, match="names 2 objects"):
            InferKind(models, stores, places).run(attempt_at(spec))
