"""A device error over HTTP: not ready while the model is loaded again, then ready with a new process."""

import functools
import os
import threading

import pytest

from engine import device_models as models
from server.support import WAIT_S, serving, tensor
from servers.polling import wait_until


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_server_recovers_from_device_error(tmp_path, monkeypatch, isolation):
    monkeypatch.setattr(models.Context, "broken", False)
    make = functools.partial(models.Embedding, folder=str(tmp_path))
    with serving({"m": make}, isolation=isolation) as server:

        def infer(value):
            return server.infer("m", tensor(data=[value], shape=[1, 1]))

        def readiness():
            paths = ("/v2/health/ready", "/v2/models/m/ready")
            return {server.get(path).status for path in paths}

        assert infer(1.0).status == 200
        assert readiness() == {200}
        gate = tmp_path / "gate"
        os.mkfifo(gate)
        responses = []
        asking = threading.Thread(target=lambda: responses.append(infer(models.POISON)))
        asking.start()
        wait_until(lambda: readiness() == {503}, "not ready")
        assert server.get("/v2/health/live").status == 200
        with gate.open("wb"):
            gate.unlink()
        asking.join(WAIT_S)
        assert responses[0].status == 503
        assert "device-side assert triggered" in responses[0].error
        wait_until(lambda: readiness() == {200}, "ready again")
        assert infer(2.0).json["outputs"][0]["data"] == [2.0]
        pids = (tmp_path / "loads").read_text().split()
        assert len(pids) == len(set(pids)) == 3
