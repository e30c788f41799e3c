"""Models written for MLServer run unchanged: codecs, parameters, streams and life cycle.

mlserver cannot be installed beside headrace's other tools: run ``make test-mlserver``.
"""

import asyncio
import json
import textwrap

import numpy as np
import pytest

from headrace.core.errors import ConfigError, ModelContractError, ModelInputError, ModelLoadError
from headrace.core.model import overrides
from headrace.core.tensor import InferRequest, Tensor, TensorSpec, text_array
from headrace.runtimes.load import model_factory
from runtimes.loaded import LoadedModel


class LoadedInstance(LoadedModel):
    """A model loaded as in an engine, whose own methods are called too."""

    def __init__(self, make, name):
        super().__init__(make, name)
        self.model = self._backend._model

    def run(self, coroutine):
        """Return the result of a coroutine of the model, run in the model's event loop."""
        return self._backend._run_locked(lambda: coroutine)


MODELS = """
    import asyncio
    from typing import AsyncIterator, List
    import numpy as np
    import pandas as pd
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec, NumpyRequestCodec, PandasCodec, StringCodec, decode_args
    from mlserver.errors import InferenceError, MLServerError
    from mlserver.types import InferenceRequest, InferenceResponse, Parameters, ResponseOutput

    class Total(MLModel):
        async def load(self) -> bool:
            parameters = self.settings.parameters
            self.offset = (parameters.extra or {}).get("offset", 0) if parameters else 0
            return True

        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            total = sum(self.decode(i, default_codec=NumpyCodec).sum() for i in payload.inputs)
            return InferenceResponse(
                model_name=self.name,
                model_version=self.version,
                outputs=[NumpyCodec.encode_output("total", np.array([total + self.offset]))],
            )

    class Rows(MLModel):
        @decode_args
        async def predict(self, x: np.ndarray, names: List[str]) -> np.ndarray:
            return x.sum(axis=1) * len(names)

    class Upper(MLModel):
        @decode_args
        async def predict(self, names: List[str]) -> List[str]:
            return [n.upper() for n in names]

    class Frames(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            frame = self.decode_request(payload, default_codec=PandasCodec)
            frame["sum"] = frame["a"] + frame["b"]
            frame["who"] = frame["who"].str.title()
            return self.encode_response(frame[["sum", "who"]], default_codec=PandasCodec)

    class Words(MLModel):
        async def load(self) -> bool:
            self.closed = False
            return True

        async def predict_stream(
            self, payloads: AsyncIterator[InferenceRequest]
        ) -> AsyncIterator[InferenceResponse]:
            try:
                async for payload in payloads:
                    for text in self.decode(payload.inputs[0], default_codec=StringCodec):
                        for word in text.split():
                            yield InferenceResponse(
                                model_name=self.name,
                                id="of the model",
                                parameters=Parameters(seen=payload.id),
                                outputs=[StringCodec.encode_output("word", [word])],
                            )
            finally:
                self.closed = True

    class Headers(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            parameters = payload.parameters
            kind = payload.inputs[0].parameters.content_type if payload.inputs[0].parameters else None
            headers = {"x-seen": parameters.headers["x-who"]}
            output = ResponseOutput(
                name="y", shape=[2], datatype="FP32", data=[1, None], parameters=Parameters(unit="m")
            )
            return InferenceResponse(
                model_name=self.name,
                parameters=Parameters(headers=headers, mood=parameters.mood, kind=kind),
                outputs=[output],
            )

    class Raw(MLModel):
        async def predict(self, payload: InferenceRequest) -> InferenceResponse:
            kind = payload.inputs[0].data[0]
            outputs = {
                "nested": ResponseOutput(name="y", shape=[2, 2], datatype="INT32", data=[[1, 2], [3, 4]]),
                "buffer": NumpyCodec.encode_output("y", np.array([b"ab", b"c"])),
                "short": ResponseOutput(name="y", shape=[3], datatype="INT32", data=[1]),
            }
            if kind == "client":
                raise MLServerError("no such thing")
            if kind == "server":
                raise MLServerError("broken", 500)
            return InferenceResponse(model_name=self.name, outputs=[outputs[kind]])

    class Refuses(MLModel):
        async def load(self) -> bool:
            return False
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "user_models.py"
    path.write_text(textwrap.dedent(MODELS))
    return path


@pytest.fixture
def serve(file):
    """A function that returns loaded instances, closed at the end of the test."""
    opened = []

    def serve(class_name, **settings):
        source = model_factory(f"{file}:{class_name}", settings)
        opened.append(LoadedInstance(source.make, source.name))
        return opened[-1]

    yield serve
    for instance in opened:
        instance.close()


def predict_request(instance, *tensors, **request):
    """Predict a whole request, as MLServer's own data plane does."""
    whole = InferRequest(tuple(Tensor(n, *rest) for n, *rest in tensors), **request)
    return instance.run(instance.model.predict_request(whole))


def collect_stream(instance, *requests, take=None):
    """Return the responses to a stream of requests."""

    async def send():
        for request in requests:
            yield request

    async def receive():
        received = []
        responses = instance.model.predict_stream(send())
        async for response in responses:
            received.append(response)
            if len(received) == take:
                break
        await responses.aclose()
        return received

    return instance.run(receive())


def words(text, **more):
    return InferRequest((Tensor("text", text_array([text])),), **more)


def test_numpy_codec_model(serve):
    instance = serve("Total", parameters={"version": "v3", "extra": {"offset": 10}})
    response = predict_request(instance, ("a", np.ones((2, 3), np.float32)), ("b", np.array([4])), id="r1")
    assert response["total"].tolist() == [[20]]
    assert response.outputs[0].parameters == {"content_type": "np"}
    assert (response.model_name, response.model_version, response.id) == ("user_models", "v3", "r1")


def test_batches_pass_through_decode_args(serve):
    """An engine passes batched rows without request and parameters."""
    instance = serve("Rows")
    tensors = (Tensor("x", np.arange(6.0).reshape(3, 2)), Tensor("names", text_array(["a", b"b", "c"])))
    response = instance.predict(InferRequest(tensors))
    assert response["output-0"].tolist() == [[3], [15], [27]]


def test_string_codec_model(serve):
    assert predict_request(serve("Upper"), ("names", text_array(["ann", b"bo"])))["output-0"].tolist() == [
        [b"ANN"],
        [b"BO"],
    ]


def test_pandas_codec_model(serve):
    response = predict_request(
        serve("Frames"),
        ("a", np.array([[1], [2]])),
        ("b", np.array([[10], [20]])),
        ("who", text_array(["ann", "bo"])[:, None], {"content_type": "str"}),
        parameters={"content_type": "pd"},
    )
    assert response["sum"].tolist() == [[11], [22]]
    assert response["who"].tolist() == [[b"Ann"], [b"Bo"]]
    assert response.parameters == {"content_type": "pd"}


def test_parameters_and_headers_pass_both_ways(serve):
    response = predict_request(
        serve("Headers"),
        ("x", np.ones(2), {"content_type": "np"}),
        parameters={"headers": {"x-who": "ann"}, "mood": "good"},
    )
    assert response.parameters == {"headers": {"x-seen": "ann"}, "mood": "good", "kind": "np"}
    assert np.isnan(response["y"][1])
    assert response["y"].dtype == np.float32
    assert response.outputs[0].parameters == {"unit": "m"}


def test_stream_only_model(serve):
    instance = serve("Words")
    assert overrides(instance.model, "predict_stream")
    assert not overrides(instance.model, "predict")
    responses = collect_stream(instance, words("a b", id="s1"), words("c", id="other"))
    assert [r["word"].tolist() for r in responses] == [[[b"a"]], [[b"b"]], [[b"c"]]]
    # As in MLServer, all responses of a stream have its first request's id.
    assert {(r.id, r.parameters["seen"]) for r in responses} == {("s1", "s1")}
    assert instance.model._model.closed


def test_disconnect_closes_the_stream(serve):
    instance = serve("Words")
    assert len(collect_stream(instance, words("a b c"), take=1)) == 1
    assert instance.model._model.closed


def test_unary_model_streams_one_response(serve):
    (response,) = collect_stream(serve("Total"), InferRequest((Tensor("x", np.ones(3)),), id="s"))
    assert (response["total"].tolist(), response.id) == ([[3]], "s")


@pytest.mark.parametrize(("kind", "values"), [("nested", [[1, 2], [3, 4]]), ("buffer", [[b"ab"], [b"c"]])])
def test_output_data_in_any_layout(serve, kind, values):
    assert predict_request(serve("Raw"), ("x", text_array([kind])))["y"].tolist() == values


def test_errors_map_to_client_or_server_fault(serve):
    instance = serve("Raw")
    with pytest.raises(ModelInputError, match="no such thing"):
        predict_request(instance, ("x", text_array(["client"])))
    with pytest.raises(Exception, match="broken") as caught:
        predict_request(instance, ("x", text_array(["server"])))
    assert not isinstance(caught.value, ModelInputError)
    with pytest.raises(ModelContractError, match=r"output 'y' has 1 values, but its shape is \[3\]"):
        predict_request(instance, ("x", text_array(["short"])))
    with pytest.raises(ModelInputError):
        predict_request(serve("Rows"), ("z", np.ones(3)))


def test_settings_define_metadata_and_batches(serve):
    instance = serve(
        "Total",
        name="sums",
        max_batch_size=16,
        max_batch_time=0.25,
        inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    )
    metadata = instance.metadata
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 2)),)
    assert (metadata.max_batch_rows, metadata.max_batch_delay_ms) == (16, 250)
    assert instance.model._model.name == "sums"


def test_mlserver_folder(file, tmp_path):
    """The folder has settings, code and artefacts. A relative uri is relative to the settings."""
    code = """
        from mlserver import MLModel
        from mlserver.codecs import NumpyCodec, decode_args
        from mlserver.utils import get_model_uri
        import numpy as np

        class Weighted(MLModel):
            async def load(self) -> bool:
                self.weights = np.loadtxt(await get_model_uri(self.settings))
                return True

            @decode_args
            async def predict(self, x: np.ndarray) -> np.ndarray:
                return x @ self.weights
    """
    folder = tmp_path / "weighted"
    folder.mkdir()
    (folder / "weighted.py").write_text(textwrap.dedent(code))
    (folder / "weights.txt").write_text("1\n2\n")
    settings = {"name": "w", "implementation": "weighted.Weighted", "parameters": {"uri": "./weights.txt"}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    source = model_factory(str(folder))
    assert source.name == "w"
    instance = LoadedInstance(source.make, source.name)
    try:
        response = instance.predict(InferRequest((Tensor("x", np.ones((3, 2))),)))
        assert response["output-0"].tolist() == [[3], [3], [3]]
    finally:
        instance.close()


def test_model_can_be_made_in_another_process(file):
    source = model_factory(f"{file}:Total", {"parameters": {"extra": {"offset": 1}}})
    spec, options = json.loads(json.dumps([source.spec, source.options]))
    model = model_factory(spec, options).make()
    asyncio.run(model.load())
    outputs = asyncio.run(model.predict(x=np.ones(2)))
    assert outputs["total"].tolist() == [[3]]
    asyncio.run(model.close())
    asyncio.run(model.close())


def test_model_that_is_not_ready_fails_to_load(serve):
    with pytest.raises(ModelLoadError, match=r"Refuses\.load returned False, not True"):
        serve("Refuses")


def test_invalid_settings_are_refused(file):
    with pytest.raises(ConfigError, match="Total: MLServer refuses the settings: ValidationError"):
        model_factory(f"{file}:Total", {"max_batch_size": "many"}).make()
