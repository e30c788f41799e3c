"""``headrace sequences`` as it is typed, against a real server."""

import pytest

from integration.command import headrace
from server.support import Linear, definition, serving, tensor
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


def begin(server, id, version="1"):
    x = tensor(data=[1.0], shape=[1, 1])
    body = {"inputs": [x], "parameters": {"sequence_id": id, "sequence_start": True}}
    assert server.post(f"/v2/models/sum/versions/{version}/infer", body).status == 200


def asked(server, *arguments):
    return headrace("sequences", *arguments, "--url", f"http://127.0.0.1:{server.port}", environ={})


def test_what_lives_is_a_table(served):
    begin(served, "call-17")
    begin(served, "s3://bucket/a.wav", "2")
    done = asked(served)
    assert done.code == 0, done.err
    head, first, second = [line.split() for line in done.out.splitlines()]
    assert head == ["model", "id", "state", "instance", "steps", "requests", "age", "idle"]
    assert first[:6] == ["sum", "call-17", "idle", "0", "1", "0"]
    assert second[:3] == ["sum", "2", "s3://bucket/a.wav"]
    assert done.err.splitlines() == ["sum: 1 of 8 live; 0 ended", "sum 2: 1 of 8 live; 0 ended"]


def test_one_model_and_one_version_are_listed(served):
    begin(served, "a")
    begin(served, "b", "2")
    (listing,) = asked(served, "sum", "--version", "1", "--json").lines[0]
    assert (listing["model_version"], [s["id"] for s in listing["sequences"]]) == ("1", ["a"])
    assert "of which 0 are listed" in asked(served, "sum", "--limit", "0").err


def test_a_sequence_is_cancelled(served):
    begin(served, "s3://bucket/a.wav", "2")
    assert asked(served, "sum", "--cancel", "s3://bucket/a.wav").out == "s3://bucket/a.wav cancelled\n"
    assert "1 ended (1 cancelled)" in asked(served, "sum").err
    again = asked(served, "sum", "--cancel", "s3://bucket/a.wav")
    assert again.code == 1
    assert "there is no sequence 's3://bucket/a.wav'" in again.error
    begin(served, "b", "2")
    assert asked(served, "sum", "--cancel", "b", "--json").lines == [{"id": "b", "cancelled": True}]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("nobody",), "no model of this name"),
        (("--cancel", "a"), "needs the MODEL"),
        (("--version", "2"), "needs the MODEL"),
        (("sum", "--url", "grpc://127.0.0.1:1"), "over REST alone"),
    ],
)
def test_what_cannot_be_is_told(served, arguments, why):
    url = () if "--url" in arguments else ("--url", f"http://127.0.0.1:{served.port}")
    done = headrace("sequences", *arguments, *url, environ={})
    assert done.code != 0
    assert why in done.error


def test_models_that_keep_nothing_are_not_listed():
    with serving({"linear": Linear}) as server:
        done = asked(server)
        assert (done.code, done.out) == (0, "")
        assert "no model has a step" in done.err
