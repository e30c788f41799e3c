"""``headrace sequences`` against a real server."""

import pytest

from cases import for_each
from headrace.jobs.access import Scope
from integration.command import headrace
from server.support import Linear, definition, key_of, serving, tensor
from server.support_sequences import RunningSum


@pytest.fixture
def served():
    models = [
        definition(RunningSum, "sum", isolation="thread"),
        definition(RunningSum, "sum", "2", isolation="thread"),
        definition(Linear, "linear"),
    ]
    with serving(models) as server:
        yield server


def start_sequence(server, id, version="1"):
    x = tensor(data=[1.0], shape=[1, 1])
    body = {"inputs": [x], "parameters": {"sequence_id": id, "sequence_start": True}}
    assert server.post(f"/v2/models/sum/versions/{version}/infer", body).status == 200


def sequences_command(server, *arguments, environ=None):
    url = f"http://127.0.0.1:{server.port}"
    return headrace("sequences", *arguments, "--url", url, environ=environ or {})


def test_live_sequences_are_a_table(served):
    start_sequence(served, "call-17")
    start_sequence(served, "s3://bucket/a.wav", "2")
    done = sequences_command(served)
    assert done.code == 0, done.err
    head, first, second = [line.split() for line in done.out.splitlines()]
    assert head == ["model", "id", "state", "instance", "steps", "requests", "age", "idle"]
    assert first[:6] == ["sum", "call-17", "idle", "0", "1", "0"]
    assert second[:3] == ["sum", "2", "s3://bucket/a.wav"]
    assert done.err.splitlines() == ["sum: 1 of 8 live; 0 ended", "sum 2: 1 of 8 live; 0 ended"]


def test_sequences_of_one_model_or_version_are_listed(served):
    start_sequence(served, "a")
    start_sequence(served, "b", "2")
    (listing,) = sequences_command(served, "sum", "--version", "1", "--json").lines[0]
    assert (listing["model_version"], [s["id"] for s in listing["sequences"]]) == ("1", ["a"])
    assert "of which 0 are listed" in sequences_command(served, "sum", "--limit", "0").err


def test_sequence_of_another_tenant_is_shown_and_cancelled():
    shop, ops = "key-of-the-shop-0123456789", "key-of-operators-0123456789"
    keys = (key_of("shop", shop, Scope.INFER), key_of("ops", ops, Scope.MODELS))
    with serving([definition(RunningSum, "sum", isolation="thread")], keys=keys) as server:
        x = tensor(data=[1.0], shape=[1, 1])
        body = {"inputs": [x], "parameters": {"sequence_id": "a", "sequence_start": True}}
        bearer = {"Authorization": f"Bearer {shop}"}
        assert server.post("/v2/models/sum/infer", body, bearer).status == 200

        def command(*arguments):
            return sequences_command(server, *arguments, environ={"HEADRACE_API_KEY": ops})

        head, row = [line.split() for line in command().out.splitlines()]
        assert (head[-1], row[:2], row[-1]) == ("namespace", ["sum", "a"], "shop")
        assert command("sum", "--cancel", "a").code == 1
        assert command("sum", "--cancel", "a", "--namespace", "shop").out == "a cancelled\n"


def test_sequence_is_cancelled(served):
    start_sequence(served, "s3://bucket/a.wav", "2")
    assert (
        sequences_command(served, "sum", "--cancel", "s3://bucket/a.wav").out
        == "s3://bucket/a.wav cancelled\n"
    )
    assert "1 ended (1 cancelled)" in sequences_command(served, "sum").err
    again = sequences_command(served, "sum", "--cancel", "s3://bucket/a.wav")
    assert again.code == 1
    assert "no sequence has the id 's3://bucket/a.wav'" in again.error
    start_sequence(served, "b", "2")
    assert sequences_command(served, "sum", "--cancel", "b", "--json").lines == [
        {"id": "b", "cancelled": True}
    ]


@for_each(
    ("arguments", "reason"),
    [
        (("nobody",), "no model of this name"),
        (("--cancel", "a"), "needs MODEL"),
        (("--version", "2"), "needs MODEL"),
        (("sum", "--url", "grpc://127.0.0.1:1"), "only over REST"),
    ],
)
def test_invalid_request_is_one_line(served, arguments, reason):
    url = () if "--url" in arguments else ("--url", f"http://127.0.0.1:{served.port}")
    done = headrace("sequences", *arguments, *url, environ={})
    assert done.code != 0
    assert reason in done.error


def test_models_without_step_are_not_listed():
    with serving({"linear": Linear}) as server:
        done = sequences_command(server)
        assert (done.code, done.out) == (0, "")
        assert "no ready model has a step method" in done.err
