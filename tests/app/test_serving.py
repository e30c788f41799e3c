"""Model servers built from files and classes: models, drain, metrics, traces, invalid options."""

import dataclasses
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from app.served import ALL_PORTS, REST_PORT, WAIT_S, served
from cases import for_each
from headrace.app.models import open_repository
from headrace.app.serving import DrainSettings, ServerOptions, TlsFiles, open_server
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.engine.settings import ServeSettings
from headrace.testing import EchoModel, HeldModel
from servers.polling import wait_until

MODEL = """\
from headrace import Model


class Twice(Model):
    def predict(self, x):
        return x * {factor}
"""


def post(url: str, document: object) -> dict:
    request = urllib.request.Request(url, json.dumps(document).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        return json.loads(response.read() or b"null")


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def infer(url: str, model: str, *values: float) -> list[float]:
    tensor = {"name": "x", "shape": [len(values), 1], "datatype": "FP32", "data": list(values)}
    return post(f"{url}/v2/models/{model}/infer", {"inputs": [tensor]})["outputs"][0]["data"]


@pytest.fixture
def folder(tmp_path):
    """Two models, one of them with two versions."""
    for place, factor in (("twice/1", 2), ("twice/10", 20), ("thrice", 3)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.py").write_text(MODEL.format(factor=factor))
        (tmp_path / place / "model.toml").write_text('model = "model.py"\n')
    return tmp_path


def test_models_folder_is_served_with_its_versions(folder):
    with served([str(folder)]) as server:
        url = server.addresses["rest"]
        assert infer(url, "twice", 1, 2) == [20, 40]
        assert infer(url, "twice/versions/1", 1, 2) == [2, 4]
        assert infer(url, "thrice", 5) == [15]


def test_changed_model_is_reloaded_and_unloaded(folder):
    with served([str(folder)]) as server:
        url = server.addresses["rest"]
        (folder / "thrice" / "model.py").write_text(MODEL.format(factor=33))
        assert infer(url, "thrice", 1) == [3]
        post(f"{url}/v2/repository/models/thrice/load", {})
        assert infer(url, "thrice", 1) == [33]
        post(f"{url}/v2/repository/models/thrice/unload", {})
        assert status(f"{url}/v2/models/thrice/ready") == 503
        assert status(f"{url}/v2/health/ready") == 200


def test_file_is_served_under_a_chosen_name(tmp_path):
    (tmp_path / "model.py").write_text(MODEL.format(factor=2))
    with served([f"double={tmp_path / 'model.py'}"]) as server:
        url = server.addresses["rest"]
        assert infer(url, "double", 4) == [8]
        assert status(f"{url}/v2/repository/models/double/load") == 405


def test_class_is_served_under_its_name():
    with served([EchoModel], settings=ServeSettings(isolation="thread")) as server:
        url = server.addresses["rest"]
        assert infer(url, "EchoModel", 4) == [4]


def test_model_that_does_not_load_stops_the_server():
    class Broken(EchoModel):
        def load(self):
            raise OSError("no weights")

    with pytest.raises(ModelLoadError, match="no weights"), served([Broken]):
        pass


def test_drain_finishes_running_requests_and_reports_not_ready():
    model = HeldModel()
    options = dataclasses.replace(REST_PORT, drain=DrainSettings(notice_s=30.0, grace_s=30.0))

    def held():
        return model

    with served([held], options, settings=ServeSettings(isolation="thread", warm_up=False)) as server:
        url = server.addresses["rest"]
        results = []
        client = threading.Thread(target=lambda: results.append(infer(url, "held", 7)))
        client.start()
        model.wait_for_calls(1)
        server.serving.stop_threadsafe()
        while status(f"{url}/v2/health/ready") != 503:
            pass
        assert status(f"{url}/v2/health/live") == 200
        model.release()
        client.join(WAIT_S)
        assert results == [[7]]


def test_instances_of_a_served_model_follow_its_load():
    model = HeldModel()
    settings = ServeSettings(
        instances_max=3,
        isolation="thread",
        max_batch_rows=1,
        warm_up=False,
        scaling={"scale_out_window_s": 0.0},
    )

    def held():
        return model

    with served([held], settings=settings) as server:
        url = server.addresses["rest"]
        results = []
        clients = [threading.Thread(target=lambda: results.append(infer(url, "held", 7))) for _ in range(4)]
        for client in clients:
            client.start()
        model.wait_for_calls(1)
        wait_until(lambda: server.dataplane.statistics()[0].instances == 3, "the third instance")
        model.release(4)
        for client in clients:
            client.join(WAIT_S)
        assert results == [[7]] * 4


def test_invalid_scaling_is_refused_before_models_load():
    settings = ServeSettings(scaling={"workers": "1..3"})
    with pytest.raises(ConfigError, match="model EchoModel: scaling: unknown key 'workers'"):
        open_server([EchoModel], REST_PORT, settings=settings)


@for_each(
    ("options", "why"),
    [
        (ServerOptions(host="0.0.0.0"), "reachable from other machines"),
        (ServerOptions(rest_port=None, grpc_port=None), "no port to listen on"),
        (ServerOptions(rest_port=0, api_keys=Path("missing.txt")), "cannot read the API keys"),
        (ServerOptions(rest_port=0, tls=TlsFiles(Path("no.pem"), Path("no.key"))), "TLS cannot be set up"),
    ],
)
def test_invalid_options_are_refused_before_models_load(options, why):
    with pytest.raises(ConfigError, match=why):
        open_server([EchoModel], options)


def test_key_file_of_earlier_versions_is_read_with_a_warning(tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("infer web 0123456789abcdef\n")
    options = dataclasses.replace(REST_PORT, api_keys=keys)
    with pytest.warns(FutureWarning, match="headrace keys new"), served([EchoModel], options) as server:
        assert status(f"{server.addresses['rest']}/v2/models") == 401


def test_server_without_models_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no model to serve"):
        open_repository([], ServeSettings())
    with pytest.raises(ConfigError, match="is not a model"):
        open_repository([str(tmp_path / "nothing.here")], ServeSettings())


# Metrics, logs and traces


def test_rest_and_grpc_requests_are_in_metrics_and_access_log(caplog):
    import grpc
    from prometheus_client.parser import text_string_to_metric_families

    from headrace.protocols.protobuf import message_class

    options = dataclasses.replace(ALL_PORTS, access_log=True)
    with caplog.at_level("INFO", logger="headrace.access"), served([EchoModel], options) as server:
        url = server.addresses["rest"]
        for _ in range(3):
            infer(url, "EchoModel", 1.0)
        assert status(f"{url}/v2/models/nobody") == 404
        with grpc.insecure_channel(server.addresses["grpc"].removeprefix("grpc://")) as channel:
            model_infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            request = message_class("ModelInferRequest")(model_name="EchoModel", id="g-1")
            tensor = request.inputs.add(name="x", datatype="FP32", shape=[2, 1])
            tensor.contents.fp32_contents.extend([1.0, 2.0])
            model_infer(request.SerializeToString(), timeout=WAIT_S)
        with urllib.request.urlopen(f"{server.addresses['metrics']}/metrics", timeout=WAIT_S) as response:
            text = response.read().decode()
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


def test_server_without_metrics_port_has_no_metrics_listener():
    with served([EchoModel], dataclasses.replace(ALL_PORTS, metrics_port=None)) as server:
        assert set(server.addresses) == {"rest", "grpc"}


def test_environment_enables_traces(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    with served([EchoModel]) as server:
        infer(server.addresses["rest"], "EchoModel", 1.0)
    assert '"POST /v2/models/{model}/infer"' in capsys.readouterr().out


def test_unknown_trace_exporter_is_refused(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ConfigError, match="zipkin"):
        open_server([EchoModel], REST_PORT)
