"""A whole server, watched: over real REST, gRPC and its metrics port."""

import asyncio
import dataclasses
import json
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.app.serving import DrainSettings, ServerOptions, open_server
from headrace.core.errors import ConfigError
from headrace.protocols.oip_grpc.messages import message_class
from headrace.server.listen import new_event_loop
from headrace.testing import EchoModel

FREE = ServerOptions(rest_port=0, grpc_port=0, metrics_port=0, drain=DrainSettings(grace_s=5))
WAIT_S = 30.0


@contextmanager
def served(models, options=FREE):
    """A running server in a thread."""
    ready, opened, errors = threading.Event(), [], []

    async def main():
        try:
            opened.append(open_server(models, options))
            await opened[0].serving.run(ready.set, signals=False)
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    def run():
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(WAIT_S)
    if errors:
        thread.join()
        raise errors[0]
    try:
        yield opened[0]
    finally:
        opened[0].serving.stop_soon()
        thread.join(WAIT_S)
        opened[0].watch.close()
        assert not thread.is_alive()


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def infer(url: str) -> None:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/EchoModel/infer", body, timeout=WAIT_S) as answer:
        assert answer.status == 200


def test_both_doors_are_in_the_metrics_and_in_the_access_log(caplog):
    """A whole server: what was sent over REST and gRPC is what is scraped, and a line each in the log."""
    options = dataclasses.replace(FREE, access_log=True)
    with caplog.at_level("INFO", logger="headrace.access"), served([EchoModel], options) as server:
        url = server.addresses["rest"]
        for _ in range(3):
            infer(url)
        assert status(f"{url}/v2/models/nobody") == 404
        with grpc.insecure_channel(server.addresses["grpc"].removeprefix("grpc://")) as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            request = message_class("ModelInferRequest")(model_name="EchoModel", id="g-1")
            tensor = request.inputs.add(name="x", datatype="FP32", shape=[2, 1])
            tensor.contents.fp32_contents.extend([1.0, 2.0])
            ask(request.SerializeToString(), timeout=WAIT_S)
        with urllib.request.urlopen(f"{server.addresses['metrics']}/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["headrace_requests_total", "EchoModel", "success", "1"] == 4
    assert found["headrace_rows_total", "EchoModel", "success", "1"] == 5
    assert found["headrace_answers_total", "infer", "rest", "200"] == 3
    assert found["headrace_answers_total", "model_metadata", "rest", "404"] == 1
    assert found["headrace_answers_total", "ModelInfer", "grpc", "OK"] == 1
    lines = [record for record in caplog.records if record.name == "headrace.access"]
    assert [line.status for line in lines] == [200, 200, 200, 404, "OK"]
    last = lines[-1]
    assert (last.model, last.version, last.rows, last.request_id) == ("EchoModel", "1", 2, "g-1")


def test_no_metrics_port_no_metrics():
    with served([EchoModel], dataclasses.replace(FREE, metrics_port=None)) as server:
        assert set(server.addresses) == {"rest", "grpc"}


def test_traces_are_made_where_the_environment_asks(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    with served([EchoModel]) as server:
        infer(server.addresses["rest"])
    assert '"POST /v2/models/{model}/infer"' in capsys.readouterr().out


def test_traces_that_cannot_leave_are_refused_before_anything_is_opened(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ConfigError, match="zipkin"):
        open_server([EchoModel], FREE)
