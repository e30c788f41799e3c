"""A server put together from files: what it serves, what it refuses."""

import asyncio
import json
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.app.serving import DrainSettings, ServerOptions, TlsFiles, open_repository, open_server
from headrace.core.errors import ConfigError, ModelLoadError
from headrace.engine.settings import ServeSettings
from headrace.server.listen import new_event_loop
from headrace.testing import EchoModel, HeldModel

FREE = ServerOptions(rest_port=0, grpc_port=0, metrics_port=0, drain=DrainSettings(grace_s=5))
WAIT_S = 30.0
MODEL = "from headrace import Model\n\n\nclass Twice(Model):\n    def predict(self, x):\n        return x * {factor}\n"


@contextmanager
def served(models, options=FREE, **settings):
    """A running server in a thread, as (REST address, what stops it)."""
    ready, over, errors = threading.Event(), threading.Event(), []
    opened = {}

    async def main():
        opened["server"] = server = open_server(models, options, **settings)
        try:
            await server.serving.run(ready.set, signals=False)
        except BaseException as error:
            errors.append(error)
        finally:
            ready.set()

    def run():
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())
        over.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(WAIT_S)
    if errors:
        thread.join()
        raise errors[0]
    server = opened["server"]
    try:
        yield server.addresses["rest"], server.serving.stop_soon
    finally:
        server.serving.stop_soon()
        thread.join(WAIT_S)
        assert over.is_set()


def post(url: str, document: object) -> dict:
    request = urllib.request.Request(url, json.dumps(document).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.loads(answer.read() or b"null")


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def infer(url: str, model: str, *values: float) -> list[float]:
    tensor = {"name": "x", "shape": [len(values), 1], "datatype": "FP32", "data": list(values)}
    return post(f"{url}/v2/models/{model}/infer", {"inputs": [tensor]})["outputs"][0]["data"]


@pytest.fixture
def folder(tmp_path):
    """Two models, one of them in two versions."""
    for place, factor in (("twice/1", 2), ("twice/10", 20), ("thrice", 3)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.py").write_text(MODEL.format(factor=factor))
        (tmp_path / place / "model.toml").write_text('model = "model.py"\n')
    return tmp_path


def test_a_folder_of_models_is_served_with_its_versions(folder):
    with served([str(folder)]) as (url, _):
        assert infer(url, "twice", 1, 2) == [20, 40]
        assert infer(url, "twice/versions/1", 1, 2) == [2, 4]
        assert infer(url, "thrice", 5) == [15]


def test_a_model_is_loaded_again_as_it_lies_there_and_unloaded(folder):
    with served([str(folder)]) as (url, _):
        (folder / "thrice" / "model.py").write_text(MODEL.format(factor=33))
        assert infer(url, "thrice", 1) == [3]
        post(f"{url}/v2/repository/models/thrice/load", {})
        assert infer(url, "thrice", 1) == [33]
        post(f"{url}/v2/repository/models/thrice/unload", {})
        assert status(f"{url}/v2/models/thrice/ready") == 503
        assert status(f"{url}/v2/health/ready") == 200


def test_files_are_served_under_names_of_ones_own(tmp_path):
    (tmp_path / "model.py").write_text(MODEL.format(factor=2))
    with served([f"double={tmp_path / 'model.py'}"]) as (url, _):
        assert infer(url, "double", 4) == [8]
        assert status(f"{url}/v2/repository/models/double/load") == 405


def test_a_class_is_served_under_its_name():
    with served([EchoModel], settings=ServeSettings(isolation="thread")) as (url, _):
        assert infer(url, "EchoModel", 4) == [4]


def test_a_model_that_does_not_load_ends_the_server():
    class Broken(EchoModel):
        def load(self):
            raise OSError("no weights")

    with pytest.raises(ModelLoadError, match="no weights"), served([Broken]):
        pass


def test_stopping_finishes_what_is_under_way_and_says_not_ready_meanwhile():
    model = HeldModel()
    options = ServerOptions(
        rest_port=0, grpc_port=0, metrics_port=0, drain=DrainSettings(notice_s=30.0, grace_s=30.0)
    )

    def held():
        return model

    with served([held], options, settings=ServeSettings(isolation="thread", warm_up=False)) as (
        url,
        stop,
    ):
        answers = []
        asking = threading.Thread(target=lambda: answers.append(infer(url, "held", 7)))
        asking.start()
        model.wait_for_calls(1)
        stop()
        while status(f"{url}/v2/health/ready") != 503:
            pass
        assert status(f"{url}/v2/health/live") == 200
        model.release()
        asking.join(WAIT_S)
        assert answers == [[7]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (ServerOptions(host="0.0.0.0"), "can be reached by others"),
        (ServerOptions(rest_port=None, grpc_port=None), "needs a door"),
        (ServerOptions(rest_port=0, api_keys=Path("missing.txt")), "cannot be read"),
        (ServerOptions(rest_port=0, tls=TlsFiles(Path("no.pem"), Path("no.key"))), "TLS cannot be set up"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(options, why):
    with pytest.raises(ConfigError, match=why):
        open_server([EchoModel], options)


def test_nothing_to_serve_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing to serve"):
        open_repository([], ServeSettings())
    with pytest.raises(ConfigError, match="is no model"):
        open_repository([str(tmp_path / "nothing.here")], ServeSettings())
