"""The dataplane: ordered streams, and loading while requests run."""

import asyncio
import http.client
import threading
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from headrace.config.model_file import ModelsFolder
from headrace.core import InferRequest, Model, Tensor
from headrace.core.errors import (
    ForbiddenError,
    ModelContractError,
    ModelInputError,
    ModelNotFoundError,
    PredictError,
    UnsupportedError,
)
from headrace.engine.repository import ModelRepository
from headrace.server.dataplane import CONCURRENT_REQUESTS_MAX, Dataplane
from headrace.testing import EchoModel, HeldModel
from server.support import WAIT_S, Linear, Words, definition, request_on, serving, tensor
from server.test_rest import ROW, Both
from servers.polling import wait_until


def text(value: str, **more) -> InferRequest:
    return InferRequest((Tensor("text", np.array([value], object)),), **more)


def rows(*values: float, **more) -> InferRequest:
    return InferRequest((Tensor("x", np.array(values, np.float32)),), **more)


async def arriving(*requests):
    for request in requests:
        yield request


async def responses(plane, model, version, requests):
    """Yield the responses of a stream one by one."""
    async with aclosing(plane.stream_requests(model, version, requests)) as answers:
        async for some in answers:
            assert some
            for response in some:
                yield response


def plane_of(**models):
    repository = ModelRepository([definition(make, name) for name, make in models.items()])
    repository.start()
    return repository, Dataplane(repository)


def run(scenario, **models):
    """Run a scenario over a dataplane with models, then stop them."""
    repository, plane = plane_of(**models)
    try:
        return asyncio.run(asyncio.wait_for(scenario(plane), WAIT_S))
    finally:
        repository.stop(drain=False)


def test_request_streams_are_answered_in_order():
    """The model does not stream itself, and the requests exceed the limit in flight."""
    count = 3 * CONCURRENT_REQUESTS_MAX

    async def scenario(plane):
        requested = arriving(*(rows(i, id=str(i)) for i in range(count)))
        async with aclosing(responses(plane, "echo", "", requested)) as answers:
            return [(r.id, r["output"].tolist()) async for r in answers]

    assert run(scenario, echo=EchoModel) == [(str(i), [i]) for i in range(count)]


def test_stream_responses_have_version_and_id():
    async def scenario(plane):
        async with aclosing(
            responses(plane, "words", "", arriving(text("a b", id="i"), text("c")))
        ) as answers:
            return [(r["word"].tolist(), r.model_name, r.model_version, r.id) async for r in answers]

    assert run(scenario, words=Words) == [([w], "words", "1", "i") for w in "abc"]


def test_empty_request_stream_has_no_response():
    async def scenario(plane):
        return [r async for r in responses(plane, "echo", "", arriving())]

    assert run(scenario, echo=EchoModel) == []


def test_requests_in_flight_are_limited_and_closing_stops_them():
    held = HeldModel()
    taken: list[int] = []

    async def endless():
        i = 0
        while True:
            taken.append(i)
            yield rows(i)
            i += 1

    async def scenario(plane):
        answers = plane.stream_requests("held", "", endless())
        first = asyncio.ensure_future(anext(answers))
        await asyncio.to_thread(held.wait_for_calls, 1)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert CONCURRENT_REQUESTS_MAX <= len(taken) <= CONCURRENT_REQUESTS_MAX + 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await answers.aclose()
        assert plane.statistics("held")[0].waiting_requests == 0
        held.release(1000)

    run(scenario, held=held)


def test_stream_error_follows_earlier_responses():
    class Picky(Model):
        def predict(self, x):
            if (x == 2).any():
                raise ValueError("two")
            return x

    async def scenario(plane):
        answers = responses(plane, "picky", "", arriving(*(rows(i) for i in range(5))))
        seen = [(await anext(answers))["output"].tolist() for _ in range(2)]
        with pytest.raises(PredictError, match="two"):
            await anext(answers)
        return seen

    assert run(scenario, picky=Picky) == [[0.0], [1.0]]


def test_unjoinable_stream_raises():
    class Uneven(Model):
        def predict_stream(self, requests):
            yield {"a": np.zeros((1, 2))}
            yield {"a": np.zeros((1, 3))}

    class Other(Model):
        def predict_stream(self, requests):
            yield {"a": np.zeros(1)}
            yield {"b": np.zeros(1)}

    class Nothing(Model):
        def predict_stream(self, requests):
            yield from ()

    async def scenario(plane):
        for name in ("uneven", "other"):
            with pytest.raises(ModelContractError):
                await plane.infer(name, "", rows(1))
        nothing = await plane.infer("nothing", "", rows(1, id="i"))
        assert (nothing.outputs, nothing.model_version, nothing.id) == ((), "1", "i")
        with pytest.raises(ModelInputError, match="no output 'no'"):
            await plane.infer("words", "", text("a", outputs=("no",)))

    run(scenario, uneven=Uneven, other=Other, nothing=Nothing, words=Words)


def test_joined_stream_has_only_requested_outputs():
    class Streaming(Both):
        predict = Model.predict

    async def scenario(plane):
        response = await plane.infer("both", "", rows(1, 2, outputs=("z",)))
        return {t.name: t.data.tolist() for t in response.outputs}

    assert run(scenario, both=Streaming) == {"z": [1, 2, 1, 2]}


def test_load_and_unload_need_a_models_folder():
    async def scenario(plane):
        for change in (plane.load("echo"), plane.unload("echo")):
            with pytest.raises(ForbiddenError):
                await change
        assert plane.model_ready("echo")

    run(scenario, echo=EchoModel)


def test_load_parameters_with_configuration_are_refused():
    async def scenario(plane):
        plane._changeable = True
        for key in ("config", "file:1/model.onnx"):
            with pytest.raises(UnsupportedError, match=key):
                await plane.load("echo", {key: "{}"})
        await plane.load("echo", {"unload_dependents": True})

    run(scenario, echo=EchoModel)


# Changes over REST during requests


@pytest.fixture
def folder(tmp_path: Path):
    """Create a models folder with two models in Python and a broken one."""
    for name, factor in (("one", 1), ("two", 2)):
        write_model(tmp_path, name, factor)
    (tmp_path / "empty").mkdir()
    return tmp_path


def write_model(root: Path, name: str, factor: int, *, load: str = "pass"):
    (root / name).mkdir(exist_ok=True)
    (root / name / "model.toml").write_text('model = "model.py:M"\n[serve]\nmax_batch_delay_ms = 0\n')
    (root / name / "model.py").write_text(
        "from headrace import Model\n"
        "class M(Model):\n"
        f"    def load(self): {load}\n"
        f"    def predict(self, x): return x * {factor}\n"
    )


def served(folder: Path):
    models = ModelsFolder(folder)
    return serving(models.all(), find=models.find, changeable=True)


def value_of(server, model) -> float:
    return server.infer(model, tensor("x", [1.0])).json["outputs"][0]["data"][0]


def test_load_unload_and_reload(folder):
    with served(folder) as server:
        assert server.post("/v2/repository/models/one/unload").json == {"name": "one", "unload": True}
        assert server.infer("one", tensor("x")).status == 503
        assert server.get("/v2/models/one/ready").status == 503
        assert server.get("/v2/health/ready").status == 200, "unloading on purpose is no failure"
        (entry,) = [e for e in server.post("/v2/repository/index").json if e["name"] == "one"]
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
        write_model(folder, "one", 10)
        assert server.post("/v2/repository/models/one/load", {"parameters": {}}).status == 200
        assert value_of(server, "one") == 10
        write_model(folder, "three", 3)
        assert server.post("/v2/repository/models/three/load").status == 200
        assert value_of(server, "three") == 3


def test_failed_load_keeps_the_model_and_hides_paths(folder):
    with served(folder) as server:
        write_model(folder, "one", 5, load="raise ValueError('no weights')")
        response = server.post("/v2/repository/models/one/load")
        assert response.status == 503
        assert "no weights" in response.error
        assert value_of(server, "one") == 1, "the one before goes on"
        write_model(folder, "new", 5, load="raise ValueError('no weights')")
        assert server.post("/v2/repository/models/new/load").status == 503
        assert server.get("/v2/health/ready").status == 200
        response = server.infer("new", tensor("x"))
        assert response.status == 503
        assert "no weights" not in response.error, "why is for those who load it"
        (folder / "two" / "model.toml").write_text("nonsense = 1\n")
        response = server.post("/v2/repository/models/two/load")
        assert response.status == 400
        assert "nonsense" in response.error
        assert str(folder) not in response.error
        assert server.post("/v2/repository/models/one/load").status == 503, (
            "and not for what is wrong with two"
        )


@pytest.mark.parametrize(
    "name", ["nope", "..", "%2e%2e", "one%2f..%2ftwo", "%00", "é", "model.toml", "x" * 10_000]
)
def test_only_models_of_the_folder_are_loaded(folder, name):
    with served(folder) as server:
        name = "%C3%A9" if name == "é" else name
        for verb in ("load", "unload"):
            response = server.post(f"/v2/repository/models/{name}/{verb}")
            assert response.status == 404
            assert str(folder) not in response.error


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"parameters": 1}'])
def test_malformed_load_bodies_are_refused(folder, body):
    with served(folder) as server:
        for verb in ("load", "unload"):
            assert server.post(f"/v2/repository/models/one/{verb}", body).status == 400
        assert value_of(server, "one") == 1
        response = server.post("/v2/repository/models/one/load", {"parameters": {"config": "{}"}})
        assert response.status == 501


def test_replacing_a_model_loses_no_request(folder):
    """Eight clients send requests while the model is reloaded; each receives its own responses."""
    factors = [1, 2, 3, 4, 5, 6]
    wrong: list[object] = []
    counts = [0] * 8
    over = threading.Event()

    def client(number: int):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        while not over.is_set():
            response = request_on(
                connection, "POST", "/v2/models/one/infer", {"inputs": [tensor("x", [1.0])]}
            )
            if response.status != 200 or response.json["outputs"][0]["data"][0] not in factors:
                wrong.append(response)
            counts[number] += 1
        connection.close()

    with served(folder) as server:
        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for factor in factors[1:]:
            target = sum(counts) + 50
            wait_until(lambda n=target: sum(counts) >= n or wrong)
            write_model(folder, "one", factor)
            assert server.post("/v2/repository/models/one/load").status == 200
            assert value_of(server, "one") == factor
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert wrong == []
        assert min(counts) > 0
        assert server.dataplane.statistics("one")[0].waiting_requests == 0


def test_unload_finishes_pending_requests():
    held = HeldModel()
    answers = []
    with serving({"held": held, "linear": Linear}, changeable=True) as server:
        asking = threading.Thread(target=lambda: answers.append(server.infer("held", tensor("x"))))
        asking.start()
        held.wait_for_calls(1)
        unloading = threading.Thread(target=server.post, args=("/v2/repository/models/held/unload",))
        unloading.start()
        wait_until(lambda: server.get("/v2/models/held/ready").status == 503)
        assert server.infer("held", tensor("x")).status == 503
        assert server.infer("linear", ROW).status == 200, "others go on meanwhile"
        held.release(10)
        asking.join(WAIT_S)
        unloading.join(WAIT_S)
    assert answers[0].status == 200


def test_unknown_models_are_not_found():
    async def scenario(plane):
        for requested in (plane.infer("no", "", rows(1)), anext(plane.stream_request("no", "", rows(1)))):
            with pytest.raises(ModelNotFoundError):
                await requested
        with pytest.raises(ModelNotFoundError):
            plane.metadata("echo", "9")
        assert [m.name for m in plane.ready_metadata()] == ["echo"]

    run(scenario, echo=EchoModel)
