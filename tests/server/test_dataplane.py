"""What every door asks: streams in order, changes while requests go on, and nothing lost."""

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
from headrace.server.dataplane import AHEAD_MAX, Dataplane
from headrace.testing import EchoModel, HeldModel
from server.support import WAIT_S, Linear, Words, ask_on, definition, serving, tensor
from server.test_rest import ROW, Both, wait_for


def text(value: str, **more) -> InferRequest:
    return InferRequest((Tensor("text", np.array([value], object)),), **more)


def rows(*values: float, **more) -> InferRequest:
    return InferRequest((Tensor("x", np.array(values, np.float32)),), **more)


async def arriving(*requests):
    for request in requests:
        yield request


async def responses(plane, model, version, requests):
    """Of a stream, one by one."""
    async with aclosing(plane.stream_some(model, version, requests)) as answers:
        async for some in answers:
            assert some
            for response in some:
                yield response


def plane_of(**models):
    repository = ModelRepository([definition(make, name) for name, make in models.items()])
    repository.start()
    return repository, Dataplane(repository)


def run(scenario, **models):
    """A scenario over a dataplane of models, which are stopped in the end."""
    repository, plane = plane_of(**models)
    try:
        return asyncio.run(asyncio.wait_for(scenario(plane), WAIT_S))
    finally:
        repository.stop(drain=False)


def test_streams_of_requests_are_answered_in_order():
    """More than may be asked at once, of a model that does not stream itself."""
    count = 3 * AHEAD_MAX

    async def scenario(plane):
        asked = arriving(*(rows(i, id=str(i)) for i in range(count)))
        async with aclosing(responses(plane, "echo", "", asked)) as answers:
            return [(r.id, r["output"].tolist()) async for r in answers]

    assert run(scenario, echo=EchoModel) == [(str(i), [i]) for i in range(count)]


def test_a_stream_of_requests_to_a_model_that_streams_carries_version_and_id():
    async def scenario(plane):
        async with aclosing(
            responses(plane, "words", "", arriving(text("a b", id="i"), text("c")))
        ) as answers:
            return [(r["word"].tolist(), r.model_name, r.model_version, r.id) async for r in answers]

    assert run(scenario, words=Words) == [([w], "words", "1", "i") for w in "abc"]


def test_no_request_is_no_response():
    async def scenario(plane):
        return [r async for r in responses(plane, "echo", "", arriving())]

    assert run(scenario, echo=EchoModel) == []


def test_at_most_so_many_are_asked_ahead_and_a_closed_stream_asks_no_more():
    held = HeldModel()
    taken: list[int] = []

    async def endless():
        i = 0
        while True:
            taken.append(i)
            yield rows(i)
            i += 1

    async def scenario(plane):
        answers = plane.stream_some("held", "", endless())
        first = asyncio.ensure_future(anext(answers))
        await asyncio.to_thread(held.wait_for_calls, 1)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert AHEAD_MAX <= len(taken) <= AHEAD_MAX + 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await answers.aclose()
        assert plane.statistics("held")[0].waiting_requests == 0
        held.release(1000)

    run(scenario, held=held)


def test_an_error_in_a_stream_comes_after_what_was_before_it():
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


def test_streams_that_cannot_be_one_response_say_so():
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


def test_outputs_of_a_gathered_stream_are_those_that_were_asked_for():
    class Streaming(Both):
        predict = Model.predict

    async def scenario(plane):
        response = await plane.infer("both", "", rows(1, 2, outputs=("z",)))
        return {t.name: t.data.tolist() for t in response.outputs}

    assert run(scenario, both=Streaming) == {"z": [1, 2, 1, 2]}


def test_a_server_without_a_models_folder_changes_nothing():
    async def scenario(plane):
        for change in (plane.load("echo"), plane.unload("echo")):
            with pytest.raises(ForbiddenError):
                await change
        assert plane.model_ready("echo")

    run(scenario, echo=EchoModel)


def test_configurations_cannot_be_sent_along():
    async def scenario(plane):
        plane._changeable = True
        for key in ("config", "file:1/model.onnx"):
            with pytest.raises(UnsupportedError, match=key):
                await plane.load("echo", {key: "{}"})
        await plane.load("echo", {"unload_dependents": True})

    run(scenario, echo=EchoModel)


# Changes over REST, while requests go on


@pytest.fixture
def folder(tmp_path: Path):
    """A models folder of two models in Python; a third is broken."""
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


def test_what_fails_to_load_changes_nothing_and_tells_no_place(folder):
    with served(folder) as server:
        write_model(folder, "one", 5, load="raise ValueError('no weights')")
        answer = server.post("/v2/repository/models/one/load")
        assert answer.status == 503
        assert "no weights" in answer.error
        assert value_of(server, "one") == 1, "the one before goes on"
        write_model(folder, "new", 5, load="raise ValueError('no weights')")
        assert server.post("/v2/repository/models/new/load").status == 503
        assert server.get("/v2/health/ready").status == 200
        answer = server.infer("new", tensor("x"))
        assert answer.status == 503
        assert "no weights" not in answer.error, "why is for those who load it"
        (folder / "two" / "model.toml").write_text("nonsense = 1\n")
        answer = server.post("/v2/repository/models/two/load")
        assert answer.status == 400
        assert "nonsense" in answer.error
        assert str(folder) not in answer.error
        assert server.post("/v2/repository/models/one/load").status == 503, (
            "and not for what is wrong with two"
        )


@pytest.mark.parametrize(
    "name", ["nope", "..", "%2e%2e", "one%2f..%2ftwo", "%00", "é", "model.toml", "x" * 10_000]
)
def test_nothing_outside_the_folder_is_loaded(folder, name):
    with served(folder) as server:
        name = "%C3%A9" if name == "é" else name
        for verb in ("load", "unload"):
            answer = server.post(f"/v2/repository/models/{name}/{verb}")
            assert answer.status == 404
            assert str(folder) not in answer.error


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"parameters": 1}'])
def test_wrong_bodies_of_changes(folder, body):
    with served(folder) as server:
        for verb in ("load", "unload"):
            assert server.post(f"/v2/repository/models/one/{verb}", body).status == 400
        assert value_of(server, "one") == 1
        answer = server.post("/v2/repository/models/one/load", {"parameters": {"config": "{}"}})
        assert answer.status == 501


def test_not_one_request_is_lost_while_a_model_is_replaced(folder):
    """Eight clients ask without a pause while the model is loaded anew, again and again: each answer is one of theirs."""
    factors = [1, 2, 3, 4, 5, 6]
    wrong: list[object] = []
    counts = [0] * 8
    over = threading.Event()

    def client(number: int):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        while not over.is_set():
            answer = ask_on(connection, "POST", "/v2/models/one/infer", {"inputs": [tensor("x", [1.0])]})
            if answer.status != 200 or answer.json["outputs"][0]["data"][0] not in factors:
                wrong.append(answer)
            counts[number] += 1
        connection.close()

    with served(folder) as server:
        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for factor in factors[1:]:
            target = sum(counts) + 50
            wait_for(lambda n=target: sum(counts) >= n or wrong)
            write_model(folder, "one", factor)
            assert server.post("/v2/repository/models/one/load").status == 200
            assert value_of(server, "one") == factor
        over.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert wrong == []
        assert min(counts) > 0
        assert server.dataplane.statistics("one")[0].waiting_requests == 0


def test_a_request_that_an_unloaded_model_has_is_answered():
    held = HeldModel()
    answers = []
    with serving({"held": held, "linear": Linear}, changeable=True) as server:
        asking = threading.Thread(target=lambda: answers.append(server.infer("held", tensor("x"))))
        asking.start()
        held.wait_for_calls(1)
        unloading = threading.Thread(target=server.post, args=("/v2/repository/models/held/unload",))
        unloading.start()
        wait_for(lambda: server.get("/v2/models/held/ready").status == 503)
        assert server.infer("held", tensor("x")).status == 503
        assert server.infer("linear", ROW).status == 200, "others go on meanwhile"
        held.release(10)
        asking.join(WAIT_S)
        unloading.join(WAIT_S)
    assert answers[0].status == 200


def test_unknown_models_are_not_found_by_any_door():
    async def scenario(plane):
        for asked in (plane.infer("no", "", rows(1)), anext(plane.stream_one("no", "", rows(1)))):
            with pytest.raises(ModelNotFoundError):
                await asked
        with pytest.raises(ModelNotFoundError):
            plane.metadata("echo", "9")
        assert [m.name for m in plane.described()] == ["echo"]

    run(scenario, echo=EchoModel)
