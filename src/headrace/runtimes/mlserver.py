"""Unchanged subclasses of ``mlserver.MLModel`` as models, with MLServer's own codecs.

The only module that imports mlserver.
"""

import math
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from typing_extensions import override

from headrace.core.errors import (
    ConfigError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    ModelLoadError,
)
from headrace.core.model import Model
from headrace.core.tensor import Array, InferRequest, InferResponse, Tensor, TensorSpec, dtype_of, text_array
from headrace.runtimes.model_io import summarize_error

try:
    import mlserver as _mlserver  # pyright: ignore[reportMissingImports] - it needs an environment of its own
    import mlserver.context as _context  # pyright: ignore[reportMissingImports]
    import mlserver.errors as _errors  # pyright: ignore[reportMissingImports]
    import mlserver.types as _types  # pyright: ignore[reportMissingImports]
except ImportError as _error:
    raise MissingExtraError("mlserver", "a model written for MLServer") from _error

context: Any = _context
errors: Any = _errors
mlserver: Any = _mlserver
types: Any = _types


def mlserver_model(model_class: type[Any], settings: Mapping[str, Any], source: Path | None = None) -> Model:
    """Return the class as a Model, one of streams only if the class has no ``predict`` of its own.

    `settings` are its ModelSettings: ``name``, ``parameters`` (``uri``, ``version``, ``extra``) and
    so on. `source` is the settings' file; MLServer reads a relative ``uri`` relative to it.

    Raises:
        ConfigError: MLServer refuses the settings.
    """
    try:
        made = mlserver.ModelSettings(**{"implementation": model_class, **settings})
    except ValueError as error:
        raise ConfigError(
            f"{model_class.__name__}: MLServer refuses the settings: {summarize_error(error)}"
        ) from error
    if source is not None:
        made._source = str(source)  # noqa: SLF001 - where MLServer's own loader writes it
    has_predict = model_class.predict is not mlserver.MLModel.predict
    return (MlserverModel if has_predict else MlserverStreamModel)(model_class, made)


class MlserverStreamModel(Model):
    """An MLModel with streams: its own `predict_stream` or MLServer's default over ``predict``.

    Requests are converted to MLServer's types. Ids and parameters (``content_type`` and ``headers``
    among them) of the request, its inputs and the response pass in both directions. All requests
    and responses of a stream carry the id of its first request. An MLServer error with a 4xx status
    becomes a ModelInputError.
    """

    writes_inputs = False
    bytes_as = "sent"  # MLServer's codecs take both

    def __init__(self, model_class: type[Any], settings: Any) -> None:
        self._class = model_class
        self._settings = settings
        self._model: Any = None
        if settings.max_batch_size > 0:
            self.max_batch_rows = settings.max_batch_size
            self.max_batch_delay_ms = settings.max_batch_time * 1000

    # An engine awaits what these methods return.
    @override
    async def load(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Make and load the MLModel. Raises ModelLoadError if its ``load`` does not return True."""
        with self._context():
            model = self._class(self._settings)
            ready = await model.load()
        if not ready:
            raise ModelLoadError(
                self._settings.name, f"{self._class.__name__}.load returned {ready!r}, not True"
            )
        model.ready = True
        self._model = model
        self.inputs = tuple(_spec(m) for m in model.inputs or ())
        self.outputs = tuple(_spec(m) for m in model.outputs or ())

    @override
    async def close(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Unload the MLModel."""
        model, self._model = self._model, None
        if model is not None:
            model.ready = False
            with self._context():
                await model.unload()

    @override
    async def predict_stream(self, requests: AsyncIterator[InferRequest], /) -> AsyncIterator[InferResponse]:
        """Yield the responses of the MLModel's own stream. Closing this generator closes it."""
        first = ""

        async def payloads() -> AsyncIterator[Any]:
            nonlocal first
            async for request in requests:
                first = first or request.id
                payload = self._payload(request)
                payload.id = first or None
                yield payload

        with self._context(), self._client_errors():
            async with aclosing(self._model.predict_stream(payloads())) as responses:
                async for response in responses:
                    yield self._response(response, first)

    def _context(self) -> Any:
        """Return the context in which MLServer's metrics and logs find the current model."""
        return context.model_context(self._settings)

    @contextmanager
    def _client_errors(self) -> Generator[None]:
        try:
            yield
        except errors.MLServerError as error:
            if error.status_code >= 500:
                raise
            raise ModelInputError(self._settings.name, summarize_error(error)) from error

    def _payload(self, request: InferRequest) -> Any:
        return types.InferenceRequest(
            id=request.id or None,
            parameters=_parameters(request.parameters),
            inputs=[
                types.RequestInput(
                    name=tensor.name,
                    shape=list(tensor.data.shape),
                    datatype=tensor.datatype,
                    parameters=_parameters(tensor.parameters),
                    data=tensor.data.ravel().tolist(),
                )
                for tensor in request.inputs
            ],
            outputs=[types.RequestOutput(name=n) for n in request.outputs] or None,
        )

    def _response(self, response: Any, id: str) -> InferResponse:
        return InferResponse(
            tuple(Tensor(o.name, self._array(o), _plain(o.parameters)) for o in response.outputs),
            response.model_name or self._settings.name,
            response.model_version,
            id or response.id or "",
            _plain(response.parameters),
        )

    def _array(self, output: Any) -> Array:
        """Return an output's data, flat or nested, in its shape."""
        datatype, shape = str(getattr(output.datatype, "value", output.datatype)), list(output.shape)
        data: Any = getattr(output.data, "root", output.data)
        values = _flat(cast("list[Any]", data) if isinstance(data, list) else [data])
        size = math.prod(shape)
        if datatype != "BYTES":
            # None stands for NaN.
            has_nulls = any(v is None for v in values)
            array = np.array(values, np.float64 if has_nulls else dtype_of(datatype)).astype(
                dtype_of(datatype)
            )
        else:
            if len(values) == 1 and size > 1 and isinstance(values[0], bytes) and not len(values[0]) % size:
                # NumpyCodec joins byte strings, padded with zeros to one width, in one buffer.
                buffer, width = values[0], len(values[0]) // size
                values = [buffer[at : at + width].rstrip(b"\0") for at in range(0, len(buffer), width)]
            array = text_array(values)
        if array.size != math.prod(shape):
            why = f"output {output.name!r} has {array.size} values, but its shape is {list(output.shape)}"
            raise ModelContractError(self._settings.name, why)
        return array.reshape(shape)


class MlserverModel(MlserverStreamModel):
    """An MLModel that serves single requests too.

    `predict` is called with batches of rows that have no request parameters. `predict_request`
    works as in MLServer: one call per request.
    """

    @override
    async def predict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, /, **tensors: Array
    ) -> Mapping[str, Array]:
        """Predict a batch as one request without id and parameters."""
        request = InferRequest(tuple(Tensor(n, d) for n, d in tensors.items()))
        return {t.name: t.data for t in (await self.predict_request(request)).outputs}

    async def predict_request(self, request: InferRequest) -> InferResponse:
        """Return the response to one request with its parameters.

        The outputs may have any number of rows.
        """
        with self._context(), self._client_errors():
            return self._response(await self._model.predict(self._payload(request)), request.id)


def _spec(metadata: Any) -> TensorSpec:
    datatype = str(getattr(metadata.datatype, "value", metadata.datatype))
    shape = tuple(int(size) for size in metadata.shape)
    return TensorSpec(metadata.name, datatype, (-1, *shape[1:]) if shape else None)


def _parameters(parameters: Mapping[str, Any]) -> Any:
    return types.Parameters(**parameters) if parameters else None


def _plain(parameters: Any) -> dict[str, Any]:
    """Return parameters as plain values, without the private entries of codecs."""
    if parameters is None:
        return {}
    return {k: v for k, v in parameters.model_dump(exclude_none=True).items() if not k.startswith("_")}


def _flat(values: list[Any]) -> list[Any]:
    """Return nested lists as one list."""
    while values and isinstance(values[0], list):
        values = [v for inner in values for v in cast("list[Any]", inner)]
    return values
