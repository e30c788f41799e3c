"""The number of instances over REST: read, changed while requests run, and refused."""

import http.client
import threading
from urllib.parse import urlsplit

import pytest

from cases import for_each
from headrace.core import Model
from headrace.engine.settings import INSTANCES_MAX
from server.support import WAIT_S, Linear, Response, definition, request_on, serving, tensor
from server.test_rest import ROW
from servers import served
from servers.polling import wait_until

PATH = "/v2/models/linear/instances"
TWICE = """\
from headrace import Model


class Twice(Model):
    max_batch_rows = 1

    def predict(self, x):
        sum(range(200_000))  # some time, so that requests are waiting and running at any moment
        return x * 2
"""


def put(server, body, path=PATH) -> Response:
    return server.request("PUT", path, body)


def infer_all(server, model, count) -> list[int]:
    """Send `count` requests at once, and return their statuses."""
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(server.infer(model, tensor("x", [1.0])).status))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return statuses


@pytest.fixture(scope="module")
def server():
    """Serve two versions without a models folder."""
    models = [definition(Linear, "linear", version, isolation="thread") for version in ("1", "2")]
    with serving(models) as opened:
        yield opened


def test_number_is_changed_and_reported(server):
    changed = put(server, {"instances": 3})
    assert changed.status == 200, changed.body
    assert changed.json == {
        "name": "linear",
        "version": "2",
        "instances": 3,
        "ready": 3,
        "draining": changed.json["draining"],
        "instances_min": 3,
        "instances_max": None,
    }
    ranged = put(server, {"instances": 1.0, "instances_max": 4}).json
    assert (ranged["instances_min"], ranged["instances_max"]) == (1, 4)
    assert server.get(PATH).json["instances_max"] == 4
    fixed = put(server, {"instances": 1, "instances_max": None}).json
    assert (fixed["instances"], fixed["instances_min"], fixed["instances_max"]) == (1, 1, None)
    assert server.infer("linear", ROW).status == 200


def test_versions_have_numbers_of_their_own(server):
    first, second = (f"/v2/models/linear/versions/{version}/instances" for version in "12")
    changed = put(server, {"instances": 2}, first).json
    assert (changed["version"], changed["instances"]) == ("1", 2)
    put(server, {"instances": 1}, second)
    assert [server.get(path).json["instances"] for path in (first, second, PATH)] == [2, 1, 1]


@for_each(
    ("body", "reason"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        ([2], "Expected `object`"),
        ({}, "missing required field `instances`"),
        ({"instances": 0}, "instances: Expected `int` >= 1"),
        ({"instances": INSTANCES_MAX + 1}, f"instances: Expected `int` <= {INSTANCES_MAX}"),
        ({"instances": 1, "instances_max": INSTANCES_MAX + 1}, "instances_max: Expected `int` <= "),
        ({"instances": "2"}, "instances: Expected `int`"),
        ({"instances": True}, "instances: Expected `int`"),
        ({"instances": 3, "instances_max": 2}, "instances_max must be at least instances, 3, not 2"),
        ({"instances": 2, "min_worker": 2}, "unknown field `min_worker`"),
    ],
)
def test_impossible_number_is_refused(server, body, reason):
    before = server.get(PATH).json
    response = put(server, body)
    assert (response.status, reason in response.error) == (400, True), response.body
    assert server.get(PATH).json == before


def test_unknown_and_unloaded_models_have_no_instances(server):
    for path in ("/v2/models/nobody/instances", "/v2/models/linear/versions/9/instances"):
        assert (server.get(path).status, put(server, {"instances": 2}, path).status) == (404, 404)
    with serving({"linear": Linear}, changeable=True) as other:
        other.post("/v2/repository/models/linear/unload")
        assert (other.get(PATH).status, put(other, {"instances": 2}).status) == (503, 503)
    assert server.post(PATH).headers["allow"] == "GET, HEAD, PUT"


def test_each_instance_runs_a_request():
    together = threading.Barrier(3)

    class Meeting(Model):
        """A model whose calls end once three of them run."""

        max_batch_rows = 1

        def predict(self, x):
            together.wait(WAIT_S)
            return x

    with serving({"meeting": Meeting}, isolation="thread", warm_up=False) as server:
        assert put(server, {"instances": 3}, "/v2/models/meeting/instances").status == 200
        assert infer_all(server, "meeting", 3) == [200] * 3


def test_failed_load_keeps_the_number_of_before():
    class Growing(Model):
        """A model that does not load while `is_broken`."""

        is_broken = False

        def load(self):
            if self.is_broken:
                raise ValueError("no memory left")

        def predict(self, x):
            return x

    path = "/v2/models/growing/instances"
    with serving({"growing": Growing}, isolation="thread") as server:
        put(server, {"instances": 2}, path)
        Growing.is_broken = True
        response = put(server, {"instances": 3}, path)
        assert (response.status, response.json["type"]) == (503, "ModelLoadError")
        assert "no memory left" in response.error
        assert [server.get(path).json[name] for name in ("instances", "ready", "instances_min")] == [2, 2, 2]
        assert infer_all(server, "growing", 4) == [200] * 4


def test_requests_are_answered_while_an_instance_loads():
    loading, loaded = threading.Event(), threading.Event()
    loaded.set()

    class Slow(Model):
        """A model whose `load` waits for an event."""

        def load(self):
            loading.set()
            assert loaded.wait(WAIT_S)

        def predict(self, x):
            return x

    path = "/v2/models/slow/instances"
    changes: list[Response] = []
    with serving({"slow": Slow}, isolation="thread") as server:
        loading.clear()
        loaded.clear()
        change = threading.Thread(target=lambda: changes.append(put(server, {"instances": 2}, path)))
        change.start()
        try:
            assert loading.wait(WAIT_S)
            assert infer_all(server, "slow", 4) == [200] * 4
            assert server.get(path).status == 200
            assert changes == []
        finally:
            loaded.set()
            change.join(WAIT_S)
    assert [response.status for response in changes] == [200]


def test_no_request_fails_while_the_number_changes(tmp_path):
    """Eight clients of a server process send requests while the number goes from 1 to 3 and back."""
    (tmp_path / "twice.py").write_text(TWICE)
    counts, wrong = [0] * 8, []
    over = threading.Event()

    def client(number: int, port: int):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        body = {"inputs": [tensor("x", [number])]}
        while not over.is_set():
            response = request_on(connection, "POST", "/v2/models/twice/infer", body)
            if response.status != 200 or response.json["outputs"][0]["data"] != [2.0 * number]:
                wrong.append(response)
            counts[number] += 1
        connection.close()

    with served.serving(tmp_path / "twice.py", "--isolation", "thread") as server:
        port = urlsplit(server.rest).port
        assert port is not None
        control = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        threads = [threading.Thread(target=client, args=(i, port)) for i in range(8)]
        for thread in threads:
            thread.start()
        try:
            for instances in (3, 1):
                before = list(counts)
                wait_until(lambda n=before: wrong or all(a > b for a, b in zip(counts, n, strict=True)))
                changed = request_on(control, "PUT", "/v2/models/twice/instances", {"instances": instances})
                assert (changed.status, changed.json["ready"]) == (200, instances)
            before = list(counts)
            wait_until(lambda: wrong or all(a > b for a, b in zip(counts, before, strict=True)))
        finally:
            over.set()
            for thread in threads:
                thread.join(WAIT_S)
            control.close()
    assert wrong == []
