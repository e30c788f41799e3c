"""Sequences over REST, by both paths of a request: start, continue, end, cancel, and refusals."""

import http.client
import json
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

from cases import for_each
from headrace.jobs.access import Scope
from headrace.protocols.sse import EventDecoder
from server.support import HEADER_LENGTH, WAIT_S, EchoAll, Linear, definition, key_of, serving, tensor
from server.support_sequences import BLOCKED, FAILS, RESCHEDULED, DyingSum, RunningSum, TextSoFar
from servers.polling import wait_until

USER, ADMIN = "a-key-that-is-long-enough-to-be-one", "another-key-that-is-long-enough"


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["direct", "exchange"])
def served(request):
    model = RunningSum()
    models = [
        definition(model, "sum", isolation="thread"),
        definition(TextSoFar, "letters", isolation="thread"),
        definition(Linear, "linear"),
        definition(EchoAll, "inline", isolation="inline"),
    ]
    with serving(models, direct=request.param) as server:
        server.model = model
        try:
            yield server
        finally:
            model.gate.set()


def send_step(server, *values, model="sum", **parameters):
    return server.infer(model, tensor(data=values, shape=[len(values), 1]), parameters=parameters)


def end(server, model="sum", **parameters):
    """Send a request without a tensor."""
    return server.post(f"/v2/models/{model}/infer", {"inputs": [], "parameters": parameters})


def sums(answer):
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


def test_failed_checkpoint_store_discloses_nothing(tmp_path, caplog):
    """Clients learn that it failed; the log has its address and the reason."""
    path = tmp_path / "secret.db"
    models = [definition(RunningSum, "sum", isolation="thread", checkpoints=f"sqlite:///{path}")]
    with serving(models) as served:
        assert sums(send_step(served, 2, sequence_id="a", sequence_start=True)) == [2]
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DROP TABLE checkpoints")
        response = send_step(served, 2, sequence_id="a")
        wait_until(lambda: served.get("/v2/health/ready").status == 503)
        assert served.get("/v2/health/ready").json == {"ready": False}
        assert served.get("/v2/models/sum/ready").json == {"name": "sum", "ready": False}
    assert response.status == 503
    assert response.error == "the checkpoint store of model sum/1: it failed; try again later"
    (record, *_) = (r for r in caplog.records if r.name == "headrace.checkpoints")
    assert (record.store, record.why) == (str(path), "OperationalError: no such table: checkpoints")


@for_each("id", ["a", "s3://bucket/a b.wav", 7, 2**63 - 1])
def test_sequence_is_started_continued_and_ended(served, id):
    first = send_step(served, 2, sequence_id=id, sequence_start=True)
    assert sums(first) == [2]
    assert first.json["parameters"] == {"sequence_id": id}
    assert sums(send_step(served, 4, 6, sequence_id=id)) == [6, 12]
    last = send_step(served, 1, sequence_id=id, sequence_end=True)
    assert sums(last) == [13]
    assert last.json["parameters"] == {"sequence_id": id, "sequence_end": True}
    assert send_step(served, 1, sequence_id=id).status == 410
    served.model.wait_for_end(str(id), "ended")


def test_start_without_id_generates_one(served):
    received = send_step(served, 2, sequence_start=True).json["parameters"]["sequence_id"]
    assert sums(send_step(served, 5, sequence_id=received)) == [7]


def test_request_without_sequence_parameters_is_a_single_step(served):
    response = served.infer("sum", tensor(data=[2], shape=[1, 1]))
    assert sums(response) == [2]
    assert "parameters" not in response.json


def test_end_and_cancel_need_no_inputs(served):
    send_step(served, 2, sequence_id="a", sequence_start=True)
    send_step(served, 2, sequence_id="b", sequence_start=True)
    ended = end(served, sequence_id="a", sequence_end=True)
    assert ended.status == 200, ended.body
    assert ended.json["outputs"] == []
    assert ended.json["parameters"] == {"sequence_id": "a", "sequence_end": True}
    cancelled = served.post(
        "/v2/models/sum/infer", {"parameters": {"sequence_id": "b", "sequence_cancel": True}}
    )
    assert cancelled.json["parameters"] == {"sequence_id": "b", "sequence_end": True}
    served.model.wait_for_end("a", "ended")
    served.model.wait_for_end("b", "cancelled")
    assert end(served, sequence_id="a", sequence_end=True).status == 410


@for_each("model", ["linear", "inline"])
def test_stateless_model_ignores_sequence_parameters(served, model):
    response = end(served, model, sequence_id="a", sequence_end=True)
    assert response.status == 400, response.body


@for_each(
    "parameters",
    [
        {},
        {"sequence_id": "a"},
        {"sequence_end": True},
        {"sequence_id": 0, "sequence_end": True},
        {"sequence_cancel": True},
        {"sequence_id": "a", "sequence_end": 1},
        {"sequence_id": 1.5, "sequence_end": True},
    ],
)
def test_other_requests_need_inputs(served, parameters):
    assert end(served, **parameters).status == 400


def test_one_request_may_have_many_sequences(served):
    ids = {"name": "sequence_id", "shape": [3], "datatype": "BYTES", "data": ["p", "q", "p"]}
    starts = {"name": "sequence_start", "shape": [3], "datatype": "BOOL", "data": [True, True, False]}
    x = tensor(data=[1, 2, 4], shape=[3, 1])
    assert sums(served.infer("sum", x, ids, starts)) == [1, 2, 5]


def test_binary_tensors_work_with_sequences(served):
    head = json.dumps(
        {
            "parameters": {"sequence_id": 5, "sequence_start": True, "binary_data_output": True},
            "inputs": [
                {"name": "x", "shape": [1, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}
            ],
        }
    ).encode()
    body = head + np.float32(2).tobytes()
    response = served.post("/v2/models/sum/infer", body, {HEADER_LENGTH: str(len(head))})
    assert response.json["parameters"]["sequence_id"] == 5
    assert response.body[-4:] == np.float32(2).tobytes()


# Refusals


def test_unknown_sequence_is_gone(served):
    response = send_step(served, 1, sequence_id="nobody")
    assert response.status == 410
    assert response.json["kind"] == "sequence_gone"
    assert response.json["error"].startswith("sequence 'nobody': ")
    assert "retry-after" not in response.headers


def test_sequence_with_too_many_waiting_requests_is_full(served):
    send_step(served, 1, sequence_id="a", sequence_start=True)
    responses, requested = [], []
    for _ in range(4):
        thread = threading.Thread(
            target=lambda: responses.append(send_step(served, BLOCKED, sequence_id="a"))
        )
        thread.start()
        requested.append(thread)
        assert served.model.entered.wait(WAIT_S)
    wait_for_sequence(served, lambda info: info["requests"] == 4)
    full = send_step(served, 1, sequence_id="a")
    assert full.status == 429
    assert full.json["kind"] == "sequence_full"
    assert int(full.headers["retry-after"]) >= 1
    served.model.gate.set()
    for thread in requested:
        thread.join(WAIT_S)
    assert sorted(sums(response)[0] for response in responses) == [1001, 2001, 3001, 4001]


def wait_for_sequence(served, condition):
    def is_met():
        listed = served.get("/v2/models/sum/sequences").json["sequences"]
        return listed and condition(listed[0])

    wait_until(is_met, "the state of the sequence")


def test_live_sequences_are_limited(served):
    for i in range(8):
        assert send_step(served, 1, sequence_id=f"s{i}", sequence_start=True).status == 200
    for parameters in ({"sequence_id": "one more", "sequence_start": True}, {}):
        refused = send_step(served, 1, **parameters)
        assert refused.status == 503
        assert refused.json["kind"] == "too_many_sequences"
        assert int(refused.headers["retry-after"]) >= 1
    assert end(served, sequence_id="s3", sequence_end=True).status == 200
    assert send_step(served, 1, sequence_id="one more", sequence_start=True).status == 200


def test_failed_step_keeps_the_state(served):
    send_step(served, 2, sequence_id="a", sequence_start=True)
    failed = send_step(served, FAILS, sequence_id="a")
    assert failed.status == 500
    assert set(failed.json) == {"error", "type", "request_id"}
    assert sums(send_step(served, 1, sequence_id="a")) == [3]


@pytest.mark.slow
def test_state_of_a_dead_process_is_lost():
    with serving([definition(DyingSum, "sum", isolation="process")]) as server:
        send_step(server, 1, sequence_id="a", sequence_start=True)
        send_step(server, 1, sequence_id="b", sequence_start=True)
        assert send_step(server, -1, sequence_id="b").status == 409
        lost = send_step(server, 1, sequence_id="a")
        assert lost.status == 409
        assert lost.json["kind"] == "sequence_lost"
        assert "retry-after" not in lost.headers
        x = tensor(data=[1], shape=[1, 1])
        streamed = server.post(
            "/v2/models/sum/infer_stream", {"inputs": [x], "parameters": {"sequence_id": "a"}}
        )
        assert (streamed.status, streamed.json["kind"]) == (409, "sequence_lost")
        assert sums(send_step(server, 5, sequence_id="a", sequence_start=True)) == [5]


# Streams and generation


def events(server, path, document):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request("POST", path, json.dumps(document).encode())
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return [json.loads(event) for event in EventDecoder().feed(response.read())]
    finally:
        connection.close()


def test_each_step_of_a_sequence_is_an_event(served):
    x = tensor(data=[RESCHEDULED], shape=[1, 1])
    document = {"inputs": [x], "parameters": {"sequence_id": 9, "sequence_start": True}}
    received = events(served, "/v2/models/sum/infer_stream", document)
    assert [event["outputs"][0]["data"] for event in received] == [[3], [6]]
    assert [event["parameters"] for event in received] == [{"sequence_id": 9}] * 2
    assert sums(send_step(served, 1, sequence_id=9)) == [7]


def test_event_stream_of_an_unknown_sequence_has_an_error_status(served):
    x = tensor(data=[1], shape=[1, 1])
    response = served.post(
        "/v2/models/sum/infer_stream", {"inputs": [x], "parameters": {"sequence_id": "no"}}
    )
    assert (response.status, response.json["kind"]) == (410, "sequence_gone")


def test_later_error_event_has_its_kind(served):
    send_step(served, 1, sequence_id="a", sequence_start=True)
    x = tensor(data=[1, BLOCKED, 1], shape=[3, 1])
    found = []
    document = {"inputs": [x], "parameters": {"sequence_id": "a"}}
    stream = threading.Thread(
        target=lambda: found.extend(events(served, "/v2/models/sum/infer_stream", document))
    )
    stream.start()
    assert served.model.entered.wait(WAIT_S)
    assert served.request("DELETE", "/v2/models/sum/sequences/a").status == 204
    served.model.gate.set()
    stream.join(WAIT_S)
    assert found[0]["outputs"][0]["data"] == [2]
    assert found[-1]["kind"] == "sequence_gone"
    assert "cancelled" in found[-1]["error"]


def test_reconnected_client_continues_its_sequence(served):
    send_step(served, 1, sequence_id="a", sequence_start=True)
    body = {"inputs": [tensor(data=[BLOCKED], shape=[1, 1])], "parameters": {"sequence_id": "a"}}
    with served.socket() as lost:
        lost.post("/v2/models/sum/infer", json.dumps(body).encode())
        assert served.model.entered.wait(WAIT_S)
        lost.abort()
    served.model.gate.set()
    # The step had begun, so it was completed.
    assert sums(send_step(served, 1, sequence_id="a")) == [1002]


@for_each("beside", [True, False])
def test_generation_continues_in_a_sequence(served, beside):
    def generate(text, **parameters):
        document = {"text_input": text, **(parameters if beside else {"parameters": parameters})}
        return served.post("/v2/models/letters/generate", document).json

    path = "/v2/models/letters/generate"
    first = generate("ab", sequence_id="g", sequence_start=True)
    assert first["text_output"] == ["A", "AB"]
    assert first["sequence_id"] == "g"
    assert generate("c", sequence_id="g")["text_output"] == "ABC"
    last = served.post(path, {"parameters": {"sequence_id": "g", "sequence_end": True}})
    assert last.json["sequence_end"] is True
    assert served.post(path, {"text_input": "d", "sequence_id": "g"}).status == 410
    assert served.post(path, {"sequence_id": "g"}).status == 400


def test_text_is_generated_event_by_event(served):
    received = events(served, "/v2/models/letters/generate_stream", {"text_input": "abc"})
    assert [event["text_output"] for event in received] == ["A", "AB", "ABC"]
    assert all("sequence_id" not in event for event in received)


# Administration


def test_sequences_are_listed(served):
    send_step(served, 1, 2, sequence_id="a", sequence_start=True)
    send_step(served, 1, sequence_id=7, sequence_start=True)
    send_step(served, 1, sequence_id=7, sequence_end=True)
    for path in ("/v2/models/sum/sequences", "/v2/models/sum/versions/1/sequences"):
        received = served.get(path).json
        assert (received["model_name"], received["model_version"]) == ("sum", "1")
        assert (received["live"], received["live_max"]) == (1, 8)
        assert received["ends"]["ended"] == 1
        (one,) = received["sequences"]
        assert one["age_s"] >= one["idle_s"] > 0
        del one["age_s"], one["idle_s"]
        assert one == {"id": "a", "namespace": "", "state": "idle", "instance": 0, "steps": 2, "requests": 0}


def test_listing_honours_its_limit(served):
    for i in range(3):
        send_step(served, 1, sequence_id=f"s{i}", sequence_start=True)
    received = served.get("/v2/models/sum/sequences?limit=2").json
    assert [one["id"] for one in received["sequences"]] == ["s0", "s1"]
    assert received["live"] == 3
    for limit in ("-1", "x", "1e3", "100001", ""):
        assert served.get(f"/v2/models/sum/sequences?limit={limit or '%20'}").status == 400


def test_stateless_model_lists_no_sequences(served):
    received = served.get("/v2/models/linear/sequences").json
    assert (received["live"], received["live_max"], received["sequences"]) == (0, 0, [])
    assert served.get("/v2/models/nobody/sequences").status == 404


@for_each("id", ["a", "s3://bucket/a b.wav", "ü"])
def test_admin_cancels_a_sequence(served, id):
    from urllib.parse import quote

    send_step(served, 1, sequence_id=id, sequence_start=True)
    path = f"/v2/models/sum/sequences/{quote(id)}"
    done = served.request("DELETE", path)
    assert (done.status, done.body) == (204, b"")
    assert "content-length" not in done.headers
    served.model.wait_for_end(id, "cancelled")
    again = served.request("DELETE", path.replace("/sum/", "/sum/versions/1/"))
    assert again.status == 404
    assert send_step(served, 1, sequence_id=id).status == 410


def test_listing_needs_the_scope_models():
    keys = (key_of("user", USER, Scope.INFER), key_of("boss", ADMIN, Scope.MODELS))
    with serving({"sum": RunningSum}, keys=keys) as server:
        for method, path in (("GET", "/v2/models/sum/sequences"), ("DELETE", "/v2/models/sum/sequences/a")):
            assert server.request(method, path).status == 401
            assert server.request(method, path, headers={"authorization": f"Bearer {USER}"}).status == 403
            assert server.request(method, path, headers={"authorization": f"Bearer {ADMIN}"}).status in (
                200,
                404,
            )


@pytest.mark.parametrize("direct", [True, False])
def test_tenants_have_sequences_of_their_own(direct):
    """With one id, whether it is a parameter or a tensor."""
    keys = (key_of("shop", USER, Scope.INFER), key_of("farm", ADMIN, Scope.MODELS))
    shop, farm = ({"Authorization": f"Bearer {key}"} for key in (USER, ADMIN))
    x = tensor(data=[1], shape=[1, 1])

    def send(headers, *tensors, **parameters):
        return server.infer("sum", x, *tensors, parameters=parameters, headers=headers)

    with serving({"sum": RunningSum}, keys=keys, direct=direct) as server:
        first = send(shop, sequence_id="a", sequence_start=True)
        assert (sums(first), first.json["parameters"]) == ([1], {"sequence_id": "a"})
        gone = send(farm, sequence_id="a")
        assert gone.status == 410
        assert "sequence 'a': there is no such sequence" in gone.error
        assert send(farm, tensor("sequence_id", ["a"], "BYTES", [1])).status == 410
        assert send(farm, sequence_id="a", sequence_cancel=True).status == 410
        assert server.request("DELETE", "/v2/models/sum/sequences/a", headers=farm).status == 404
        assert sums(send(farm, sequence_id="a", sequence_start=True)) == [1]
        received = send(shop, sequence_start=True).json["parameters"]["sequence_id"]
        assert send(farm, sequence_id=received).status == 410
        assert sums(send(shop, sequence_id=received, sequence_end=True)) == [2]
        assert sums(send(shop, sequence_id="a")) == [2]
        listed = server.get("/v2/models/sum/sequences", **farm).json["sequences"]
        assert [(one["namespace"], one["id"]) for one in listed] == [("shop", "a"), ("farm", "a")]
        other = "/v2/models/sum/sequences/a?namespace=shop"
        assert server.request("DELETE", other, headers=farm).status == 204
        assert send(shop, sequence_id="a").status == 410
        assert sums(send(farm, sequence_id="a")) == [2]


def test_generated_texts_are_of_the_tenant():
    keys = (key_of("shop", USER, Scope.INFER), key_of("farm", ADMIN, Scope.INFER))
    shop, farm = ({"Authorization": f"Bearer {key}"} for key in (USER, ADMIN))
    with serving({"letters": TextSoFar}, keys=keys) as server:
        for verb in ("generate", "generate_stream", "infer_stream"):
            inputs = {"inputs": [tensor("text_input", ["a"], "BYTES", [1])]}
            body = inputs if verb == "infer_stream" else {"text_input": "a"}

            def send(headers, path=f"/v2/models/letters/{verb}", body=body, **parameters):
                return server.post(path, {**body, "parameters": parameters}, headers)

            assert send(shop, sequence_id=verb, sequence_start=True).status == 200
            assert send(farm, sequence_id=verb).status == 410, verb
            assert send(shop, sequence_id=verb).status == 200


def test_unsupported_method_responds_405(served):
    response = served.request("GET", "/v2/models/sum/sequences/a")
    assert (response.status, response.headers["allow"]) == (405, "DELETE")


def test_server_metadata_lists_the_sequence_extension(served):
    assert "sequence" in served.get("/v2").json["extensions"]
