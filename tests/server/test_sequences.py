"""Sequences over REST, by every way that a request goes: start, go on, end, cancel, and what is refused."""

import http.client
import json
import threading

import numpy as np
import pytest

from headrace.protocols.sse import EventDecoder
from headrace.server.security import ApiKey
from server.support import HEADER_LENGTH, WAIT_S, Any1, Linear, definition, serving, tensor
from server.support_sequences import FAILS, GOES_ON, HELD, Dies, Letters, RunningSum

USER, ADMIN = "a-key-that-is-long-enough-to-be-one", "another-key-that-is-long-enough"


@pytest.fixture(params=[True, False], ids=["direct", "exchange"])
def served(request):
    model = RunningSum()
    models = [
        definition(model, "sum", isolation="thread"),
        definition(Letters, "letters", isolation="thread"),
        definition(Linear, "linear"),
        definition(Any1, "inline", isolation="inline"),
    ]
    with serving(models, direct=request.param) as server:
        server.model = model
        try:
            yield server
        finally:
            model.gate.set()


def ask(server, *values, model="sum", **parameters):
    return server.infer(model, tensor(data=values, shape=[len(values), 1]), parameters=parameters)


def end(server, model="sum", **parameters):
    """A request without a tensor."""
    return server.post(f"/v2/models/{model}/infer", {"inputs": [], "parameters": parameters})


def sums(answer):
    assert answer.status == 200, answer.body
    return answer.json["outputs"][0]["data"]


@pytest.mark.parametrize("id", ["a", "s3://bucket/a b.wav", 7, 2**63 - 1])
def test_a_sequence_is_started_goes_on_and_is_ended(served, id):
    first = ask(served, 2, sequence_id=id, sequence_start=True)
    assert sums(first) == [2]
    assert first.json["parameters"] == {"sequence_id": id}
    assert sums(ask(served, 4, 6, sequence_id=id)) == [6, 12]
    last = ask(served, 1, sequence_id=id, sequence_end=True)
    assert sums(last) == [13]
    assert last.json["parameters"] == {"sequence_id": id, "sequence_end": True}
    assert ask(served, 1, sequence_id=id).status == 410
    served.model.wait_for_end(str(id), "ended")


def test_an_id_is_made_up_for_whoever_starts_without_one(served):
    told = ask(served, 2, sequence_start=True).json["parameters"]["sequence_id"]
    assert sums(ask(served, 5, sequence_id=told)) == [7]


def test_a_request_that_says_nothing_of_sequences_is_answered_as_ever(served):
    answer = served.infer("sum", tensor(data=[2], shape=[1, 1]))
    assert sums(answer) == [2]
    assert "parameters" not in answer.json


def test_an_end_and_a_cancel_need_no_inputs(served):
    ask(served, 2, sequence_id="a", sequence_start=True)
    ask(served, 2, sequence_id="b", sequence_start=True)
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


@pytest.mark.parametrize("model", ["linear", "inline"])
def test_a_model_without_a_step_is_asked_with_inputs_whatever_is_said_of_sequences(served, model):
    answer = end(served, model, sequence_id="a", sequence_end=True)
    assert answer.status == 400, answer.body


@pytest.mark.parametrize(
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
def test_what_ends_nothing_needs_inputs(served, parameters):
    assert end(served, **parameters).status == 400


def test_rows_of_many_sequences_go_in_one_request(served):
    ids = {"name": "sequence_id", "shape": [3], "datatype": "BYTES", "data": ["p", "q", "p"]}
    starts = {"name": "sequence_start", "shape": [3], "datatype": "BOOL", "data": [True, True, False]}
    x = tensor(data=[1, 2, 4], shape=[3, 1])
    assert sums(served.infer("sum", x, ids, starts)) == [1, 2, 5]


def test_binary_tensors_go_with_sequences_too(served):
    head = json.dumps(
        {
            "parameters": {"sequence_id": 5, "sequence_start": True, "binary_data_output": True},
            "inputs": [
                {"name": "x", "shape": [1, 1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}
            ],
        }
    ).encode()
    body = head + np.float32(2).tobytes()
    answer = served.post("/v2/models/sum/infer", body, {HEADER_LENGTH: str(len(head))})
    assert answer.json["parameters"]["sequence_id"] == 5
    assert answer.body[-4:] == np.float32(2).tobytes()


# What is refused


def test_a_sequence_that_is_not_there_is_gone(served):
    answer = ask(served, 1, sequence_id="nobody")
    assert answer.status == 410
    assert answer.json["kind"] == "sequence_gone"
    assert answer.json["error"].startswith("sequence 'nobody': ")
    assert "retry-after" not in answer.headers


def test_a_sequence_that_has_too_much_waiting_is_full(served):
    ask(served, 1, sequence_id="a", sequence_start=True)
    answers, asked = [], []
    for _ in range(4):
        thread = threading.Thread(target=lambda: answers.append(ask(served, HELD, sequence_id="a")))
        thread.start()
        asked.append(thread)
        assert served.model.entered.wait(WAIT_S)
    wait_until(served, lambda info: info["requests"] == 4)
    full = ask(served, 1, sequence_id="a")
    assert full.status == 429
    assert full.json["kind"] == "sequence_full"
    assert int(full.headers["retry-after"]) >= 1
    served.model.gate.set()
    for thread in asked:
        thread.join(WAIT_S)
    assert sorted(sums(answer)[0] for answer in answers) == [1001, 2001, 3001, 4001]


def wait_until(served, so):
    """Polls, since what waits is known to the server alone."""
    for _ in range(3000):
        listed = served.get("/v2/models/sum/sequences").json["sequences"]
        if listed and so(listed[0]):
            return
        threading.Event().wait(0.01)
    raise AssertionError(listed)


def test_no_more_sequences_live_than_may(served):
    for i in range(8):
        assert ask(served, 1, sequence_id=f"s{i}", sequence_start=True).status == 200
    for parameters in ({"sequence_id": "one more", "sequence_start": True}, {}):
        refused = ask(served, 1, **parameters)
        assert refused.status == 503
        assert refused.json["kind"] == "too_many_sequences"
        assert int(refused.headers["retry-after"]) >= 1
    assert end(served, sequence_id="s3", sequence_end=True).status == 200
    assert ask(served, 1, sequence_id="one more", sequence_start=True).status == 200


def test_a_step_that_fails_leaves_its_sequence_as_it_was(served):
    ask(served, 2, sequence_id="a", sequence_start=True)
    failed = ask(served, FAILS, sequence_id="a")
    assert failed.status == 500
    assert set(failed.json) == {"error"}
    assert sums(ask(served, 1, sequence_id="a")) == [3]


def test_a_state_that_died_with_its_process_is_lost():
    with serving([definition(Dies, "sum", isolation="process")]) as server:
        ask(server, 1, sequence_id="a", sequence_start=True)
        ask(server, 1, sequence_id="b", sequence_start=True)
        assert ask(server, -1, sequence_id="b").status == 409
        lost = ask(server, 1, sequence_id="a")
        assert lost.status == 409
        assert lost.json["kind"] == "sequence_lost"
        assert "retry-after" not in lost.headers
        x = tensor(data=[1], shape=[1, 1])
        streamed = server.post(
            "/v2/models/sum/infer_stream", {"inputs": [x], "parameters": {"sequence_id": "a"}}
        )
        assert (streamed.status, streamed.json["kind"]) == (409, "sequence_lost")
        assert sums(ask(server, 5, sequence_id="a", sequence_start=True)) == [5]


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
    x = tensor(data=[GOES_ON], shape=[1, 1])
    document = {"inputs": [x], "parameters": {"sequence_id": 9, "sequence_start": True}}
    came = events(served, "/v2/models/sum/infer_stream", document)
    assert [event["outputs"][0]["data"] for event in came] == [[3], [6]]
    assert [event["parameters"] for event in came] == [{"sequence_id": 9}] * 2
    assert sums(ask(served, 1, sequence_id=9)) == [7]


def test_an_event_stream_of_a_sequence_that_is_not_there_is_refused_with_a_status(served):
    x = tensor(data=[1], shape=[1, 1])
    answer = served.post("/v2/models/sum/infer_stream", {"inputs": [x], "parameters": {"sequence_id": "no"}})
    assert (answer.status, answer.json["kind"]) == (410, "sequence_gone")


def test_an_error_on_the_way_says_its_kind_in_an_event(served):
    ask(served, 1, sequence_id="a", sequence_start=True)
    x = tensor(data=[1, HELD, 1], shape=[3, 1])
    found = []
    document = {"inputs": [x], "parameters": {"sequence_id": "a"}}
    stream = threading.Thread(
        target=lambda: found.extend(events(served, "/v2/models/sum/infer_stream", document))
    )
    stream.start()
    assert served.model.entered.wait(WAIT_S)
    assert served.ask("DELETE", "/v2/models/sum/sequences/a").status == 204
    served.model.gate.set()
    stream.join(WAIT_S)
    assert found[0]["outputs"][0]["data"] == [2]
    assert found[-1]["kind"] == "sequence_gone"
    assert "cancelled" in found[-1]["error"]


def test_a_client_that_lost_its_connection_comes_back_with_the_same_id(served):
    ask(served, 1, sequence_id="a", sequence_start=True)
    body = {"inputs": [tensor(data=[HELD], shape=[1, 1])], "parameters": {"sequence_id": "a"}}
    with served.socket() as lost:
        lost.post("/v2/models/sum/infer", json.dumps(body).encode())
        assert served.model.entered.wait(WAIT_S)
        lost.abort()
    served.model.gate.set()
    # Its step had begun, so it was done.
    assert sums(ask(served, 1, sequence_id="a")) == [1002]


@pytest.mark.parametrize("beside", [True, False])
def test_generation_goes_on_in_a_sequence(served, beside):
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


def test_a_text_is_generated_event_by_event_without_a_sequence(served):
    came = events(served, "/v2/models/letters/generate_stream", {"text_input": "abc"})
    assert [event["text_output"] for event in came] == ["A", "AB", "ABC"]
    assert all("sequence_id" not in event for event in came)


# Looking after them


def test_sequences_are_listed(served):
    ask(served, 1, 2, sequence_id="a", sequence_start=True)
    ask(served, 1, sequence_id=7, sequence_start=True)
    ask(served, 1, sequence_id=7, sequence_end=True)
    for path in ("/v2/models/sum/sequences", "/v2/models/sum/versions/1/sequences"):
        told = served.get(path).json
        assert (told["model_name"], told["model_version"]) == ("sum", "1")
        assert (told["live"], told["live_max"]) == (1, 8)
        assert told["ends"]["ended"] == 1
        (one,) = told["sequences"]
        assert one["age_s"] >= one["idle_s"] > 0
        del one["age_s"], one["idle_s"]
        assert one == {"id": "a", "state": "idle", "instance": 0, "steps": 2, "requests": 0}


def test_no_more_are_listed_than_are_asked_for(served):
    for i in range(3):
        ask(served, 1, sequence_id=f"s{i}", sequence_start=True)
    told = served.get("/v2/models/sum/sequences?limit=2").json
    assert [one["id"] for one in told["sequences"]] == ["s0", "s1"]
    assert told["live"] == 3
    for limit in ("-1", "x", "1e3", "100001", ""):
        assert served.get(f"/v2/models/sum/sequences?limit={limit or '%20'}").status == 400


def test_a_model_without_a_step_has_none(served):
    told = served.get("/v2/models/linear/sequences").json
    assert (told["live"], told["live_max"], told["sequences"]) == (0, 0, [])
    assert served.get("/v2/models/nobody/sequences").status == 404


@pytest.mark.parametrize("id", ["a", "s3://bucket/a b.wav", "ü"])
def test_a_sequence_is_cancelled_by_whoever_looks_after_the_server(served, id):
    from urllib.parse import quote

    ask(served, 1, sequence_id=id, sequence_start=True)
    path = f"/v2/models/sum/sequences/{quote(id)}"
    done = served.ask("DELETE", path)
    assert (done.status, done.body) == (204, b"")
    assert "content-length" not in done.headers
    served.model.wait_for_end(id, "cancelled")
    again = served.ask("DELETE", path.replace("/sum/", "/sum/versions/1/"))
    assert again.status == 404
    assert ask(served, 1, sequence_id=id).status == 410


def test_the_listing_is_for_admins_alone():
    keys = (ApiKey.of("user", "infer", USER), ApiKey.of("boss", "admin", ADMIN))
    with serving({"sum": RunningSum}, keys=keys) as server:
        for method, path in (("GET", "/v2/models/sum/sequences"), ("DELETE", "/v2/models/sum/sequences/a")):
            assert server.ask(method, path).status == 401
            assert server.ask(method, path, headers={"authorization": f"Bearer {USER}"}).status == 403
            assert server.ask(method, path, headers={"authorization": f"Bearer {ADMIN}"}).status in (200, 404)


def test_another_method_is_told_which_there_is(served):
    answer = served.ask("GET", "/v2/models/sum/sequences/a")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE")


def test_the_server_says_that_it_has_sequences(served):
    assert "sequence" in served.get("/v2").json["extensions"]
