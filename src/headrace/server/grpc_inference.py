"""Inference over gRPC: decode a request, call the dataplane, encode the response."""

import time
from collections.abc import Awaitable, Callable

from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import InferResponse, ModelMetadata
from headrace.jobs.access import Access, ApiKey, Scope
from headrace.protocols.oip_grpc.requests import GrpcWireRequest, decode_request
from headrace.protocols.oip_grpc.responses import encode_response
from headrace.server.dataplane import Dataplane
from headrace.server.listener import GrpcCall
from headrace.server.observation import CURRENT, RequestObservation


class GrpcInference:
    """The parts that unary calls and streams share.

    Args:
        dataplane: The models.
        access: The API keys, checked before a request is decoded; None requires no key.
        now: Monotonic seconds of the dataplane's clock.
    """

    def __init__(
        self, dataplane: Dataplane, access: Access | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.dataplane = dataplane
        self._access = access or Access()
        self._now = now
        self._bf16_outputs: dict[tuple[str, str], tuple[ModelMetadata, dict[str, str]]] = {}

    def check(self, call: GrpcCall, scope: Scope = Scope.INFER) -> ApiKey:
        """Return the key of the client.

        Raises:
            UnauthenticatedError: The key is missing or unknown.
            ForbiddenError: The key lacks the scope.
        """
        key = self._access.check(call.metadata("authorization"), scope)
        observation = CURRENT.get()
        if observation is not None:
            observation.client = key.name
        return key

    def decode(self, call: GrpcCall, data: bytes, key: ApiKey) -> GrpcWireRequest:
        """Return a decoded request with the deadline of its call.

        Raises:
            DataError: The message is malformed.
            ForbiddenError: The key may not use the model.
        """
        remaining_s, now = call.remaining_s(), self._now()
        wire = decode_request(data, now=now, deadline=None if remaining_s is None else now + remaining_s)
        # Later messages of a stream may leave the model out.
        if wire.model and key.models is not None:
            key.require_model(wire.model)
        return wire

    def encode(self, wire: GrpcWireRequest, response: InferResponse, *, final: bool | None = None) -> bytes:
        """Return the encoded response, with raw contents if the request had them.

        Raises:
            ModelContractError: An output cannot be encoded.
        """
        try:
            return encode_response(
                response,
                raw=wire.raw,
                id=wire.request.id,
                datatypes=self._bf16(wire.model, wire.version),
                final=final,
            )
        except (DataError, TypeError) as error:
            raise ModelContractError(wire.model, f"its response cannot be encoded: {error}") from error

    def _bf16(self, model: str, version: str) -> dict[str, str]:
        """Return the BF16 outputs that the model declares, cached for each metadata object."""
        metadata = self.dataplane.metadata(model, version)
        cached = self._bf16_outputs.get((model, version))
        if cached is None or cached[0] is not metadata:
            # Only names of known models arrive here, so the cache cannot grow without bound.
            cached = (metadata, {s.name: s.datatype for s in metadata.outputs if s.datatype == "BF16"})
            self._bf16_outputs[model, version] = cached
        return cached[1]

    def model_infer(self, call: GrpcCall, data: bytes) -> bytes | Awaitable[bytes]:
        """Handle ModelInfer."""
        key = self.check(call)
        wire = self.decode(call, data, key)
        observation = CURRENT.get()
        if observation is not None:
            observation.model, observation.version = wire.model, wire.version
            observation.on_request(wire.request)
        times = None if observation is None else observation.times
        response = self.dataplane.infer_now(wire.model, wire.version, wire.request, times)
        if response is None:
            return self._model_infer(wire, observation)
        return self._encode_response(wire, response, observation)

    async def _model_infer(self, wire: GrpcWireRequest, observation: RequestObservation | None) -> bytes:
        times = None if observation is None else observation.times
        response = await self.dataplane.infer(wire.model, wire.version, wire.request, times)
        return self._encode_response(wire, response, observation)

    def _encode_response(
        self, wire: GrpcWireRequest, response: InferResponse, observation: RequestObservation | None
    ) -> bytes:
        if observation is not None:
            observation.version = response.model_version or wire.version
        return self.encode(wire, response)
