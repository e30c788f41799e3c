"""The access log of a real server as lines of JSON."""

import json

import pytest

from headrace.cli.logs import configure_server_logs
from headrace.core import Model
from headrace.jobs.access import Access, Scope
from headrace.server.observation import PATH_CHARS_MAX, RequestLog
from headrace.testing import EchoModel, PickyModel
from server.support import key_of
from server.support_observe import EndCounter, definition, infer, serving

KEY = "0123456789abcdef-secret"


@pytest.fixture
def lines(capsys):
    """Return a function that returns the log lines so far."""
    configure_server_logs("json", access=True)
    message: list[dict] = []

    def all_lines():
        message.extend(map(json.loads, capsys.readouterr().err.splitlines()))
        return message

    return all_lines


def requests(lines):
    return [line for line in lines() if line["logger"] == "headrace.access"]


def test_record_has_all_fields_of_a_request(lines):
    ended = EndCounter()
    access = Access(dict([key_of("web", KEY, Scope.INFER)]))
    with serving(definition(EchoModel), access=access, observers=[ended, RequestLog()]) as served:
        body = json.dumps(infer(1.0, 2.0, id="body-7")).encode()
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "edge-9"}
        response = served.request("/v2/models/m/infer?token=hidden", body, headers)
        ended.wait()
    assert response.status == 200
    assert response.headers["x-request-id"] == "edge-9"
    (line,) = requests(lines)
    assert line.pop("time").endswith("+00:00")
    assert 0 < line.pop("duration_ms") < 30_000
    assert line == {
        "level": "info",
        "logger": "headrace.access",
        "message": "request",
        "request_id": "body-7",
        "header_request_id": "edge-9",
        "door": "rest",
        "method": "POST",
        "path": "/v2/models/m/infer",
        "action": "infer",
        "model": "m",
        "version": "1",
        "rows": 2,
        "status": 200,
        "bytes_in": len(body),
        "bytes_out": len(response.body),
        "client": "web",
    }


def test_keys_and_queries_are_never_logged(lines):
    ended = EndCounter()
    access = Access(dict([key_of("web", KEY, Scope.INFER)]))
    with serving(definition(EchoModel), access=access, observers=[ended, RequestLog()]) as served:
        for bearer in (KEY, "wrong-" + KEY):
            served.request("/v2/models/m?key=hidden", headers={"Authorization": f"Bearer {bearer}"})
        ended.wait(2)
    assert [line["status"] for line in requests(lines)] == [200, 401]
    assert not any(hidden in json.dumps(lines()) for hidden in (KEY, "hidden"))


def test_every_request_has_a_record_and_an_id(lines):
    ended = EndCounter()
    with serving(definition(EchoModel), observers=[ended, RequestLog()]) as served:
        response = served.request_all([("/v2/models/m/infer", infer(1.0))] * 100)
        ended.wait(100)
    logged = requests(lines)
    assert {a.headers["x-request-id"] for a in response} == {line["request_id"] for line in logged}
    assert len({line["request_id"] for line in logged}) == 100


def test_request_id_is_echoed_without_observers():
    """An error has an id in any case."""
    with serving(definition(EchoModel)) as served:
        with_id = served.request("/v2/health/live", headers={"X-Request-Id": "abc"})
        bad = served.request("/v2/models/nobody", headers={"X-Request-Id": "a b"})
        without = served.request("/v2/health/live")
        unsafe = served.request("/v2/health/live", headers={"X-Request-Id": "a b"})
    assert with_id.headers["x-request-id"] == "abc"
    assert bad.status == 404
    assert len(bad.headers["x-request-id"]) == 32
    assert "x-request-id" not in without.headers
    assert "x-request-id" not in unsafe.headers


def test_failures_log_error_and_reason(lines):
    ended = EndCounter()
    with serving(definition(PickyModel([7.0])), observers=[ended, RequestLog()]) as served:
        assert served.request("/v2/models/m/infer", infer(7.0)).status == 500
        assert served.request("/v2/models/m/infer", b"{").status == 400
        assert served.request("/v2/nothing").status == 404
        ended.wait(3)
    broken, malformed, nowhere = requests(lines)
    assert (broken["level"], broken["error"]) == ("warning", "PredictError")
    assert "7.0 is refused" in broken["why"]
    assert ".py" not in broken["why"], "clients receive the same text"
    assert (malformed["level"], malformed["status"], malformed["error"]) == ("info", 400, "DataError")
    assert (nowhere["action"], nowhere["status"]) == ("unknown", 404)
    assert "model" not in nowhere


class _Unexpected(Model):
    """A model whose items cannot be encoded as JSON."""

    async def predict_stream(self, requests):
        async for _ in requests:
            yield [1.0]
            yield [2.0]
            raise ValueError("after two")


def test_streams_log_items_and_errors(lines):
    ended = EndCounter()
    with serving(definition(_Unexpected), observers=[ended, RequestLog()]) as served:
        response = served.request("/v2/models/m/infer_stream", infer(1.0), {"X-Request-Id": "s-1"})
        ended.wait()
    (line,) = requests(lines)
    assert response.headers["x-request-id"] == "s-1"
    assert (line["status"], line["items"], line["error"]) == (200, 2, "PredictError")
    assert line["level"] == "warning"
    assert line["bytes_out"] == len(response.body)


@pytest.mark.parametrize("observed", [True, False])
def test_unexpected_error_is_logged_with_the_response_id(lines, monkeypatch, observed):
    """The traceback is in the log with the request's id, and not in the response."""
    ended = EndCounter()
    with serving(definition(EchoModel), observers=[ended] if observed else None) as served:

        def broken(*_args):
            raise KeyError("secret of the server")

        monkeypatch.setattr(served.dataplane, "metadata", broken)
        response = served.request("/v2/models/m")
        if observed:
            ended.wait()
    assert response.status == 500
    assert b"secret" not in response.body
    assert b"Traceback" not in response.body
    (line,) = [line for line in lines() if "exception" in line]
    assert line["request_id"] == response.headers["x-request-id"]
    assert "secret of the server" in line["exception"]


def test_long_path_is_truncated(lines):
    ended = EndCounter()
    with serving(definition(EchoModel), observers=[ended, RequestLog()]) as served:
        served.request("/" + "x" * 2000)
        ended.wait()
    (line,) = requests(lines)
    assert len(line["path"]) == PATH_CHARS_MAX


def test_disabled_log_has_no_records(lines):
    configure_server_logs("json", access=False)
    ended = EndCounter()
    with serving(definition(PickyModel([7.0])), observers=[ended, RequestLog()]) as served:
        served.request("/v2/models/m/infer", infer(7.0))
        ended.wait()
    assert requests(lines) == []
