"""Inference over gRPC: bytes to a request, the dataplane's answer to bytes; one call at a time, and as streams."""

import time
from collections.abc import Awaitable, Callable

from headrace.core.errors import DataError, ModelContractError
from headrace.core.tensor import InferResponse, ModelMetadata
from headrace.protocols.oip_grpc.requests import WireRequest, decode_request
from headrace.protocols.oip_grpc.responses import encode_response
from headrace.server.dataplane import Dataplane
from headrace.server.grpc_contract import Call
from headrace.server.observation import CURRENT, Observation
from headrace.server.security import Access, Role


class Inference:
    """What unary calls and streams share.

    Args:
        dataplane: What answers.
        access: Asked before a request is even read; None lets everybody in.
        now: Monotonic seconds, on the dataplane's clock.
    """

    def __init__(
        self, dataplane: Dataplane, access: Access | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.dataplane = dataplane
        self._access = access
        self._now = now
        self._bf16_outputs: dict[tuple[str, str], tuple[ModelMetadata, dict[str, str]]] = {}

    def check(self, call: Call, role: Role = Role.INFER) -> None:
        """Raises UnauthenticatedError or ForbiddenError."""
        if self._access is not None:
            client = self._access.check(call.metadata("authorization"), role)
            seen = CURRENT.get()
            if seen is not None:
                seen.client = client

    def decoded(self, call: Call, data: bytes) -> WireRequest:
        """A request, due when its caller's patience ends; DataError where the message is malformed."""
        remaining_s, now = call.remaining_s(), self._now()
        return decode_request(data, now=now, deadline=None if remaining_s is None else now + remaining_s)

    def encoded(self, wire: WireRequest, response: InferResponse, *, final: bool | None = None) -> bytes:
        """The answer to a request, raw if that was; ModelContractError for what cannot travel."""
        try:
            return encode_response(
                response,
                raw=wire.raw,
                id=wire.request.id,
                datatypes=self._bf16(wire.model, wire.version),
                final=final,
            )
        except (DataError, TypeError) as error:
            raise ModelContractError(wire.model, f"its answer cannot be sent: {error}") from error

    def _bf16(self, model: str, version: str) -> dict[str, str]:
        """The outputs that the model declares as BF16, worked out once for each metadata."""
        metadata = self.dataplane.metadata(model, version)
        known = self._bf16_outputs.get((model, version))
        if known is None or known[0] is not metadata:
            # Only names of models that exist come here, so that this cannot grow without bound.
            known = (metadata, {s.name: s.datatype for s in metadata.outputs if s.datatype == "BF16"})
            self._bf16_outputs[model, version] = known
        return known[1]

    def model_infer(self, call: Call, data: bytes) -> bytes | Awaitable[bytes]:
        """ModelInfer."""
        self.check(call)
        wire = self.decoded(call, data)
        seen = CURRENT.get()
        if seen is not None:
            seen.model, seen.version = wire.model, wire.version
            seen.asked(wire.request)
        times = None if seen is None else seen.times
        response = self.dataplane.infer_now(wire.model, wire.version, wire.request, times)
        if response is None:
            return self._model_infer(wire, seen)
        return self._answered(wire, response, seen)

    async def _model_infer(self, wire: WireRequest, seen: Observation | None) -> bytes:
        times = None if seen is None else seen.times
        response = await self.dataplane.infer(wire.model, wire.version, wire.request, times)
        return self._answered(wire, response, seen)

    def _answered(self, wire: WireRequest, response: InferResponse, seen: Observation | None) -> bytes:
        if seen is not None:
            seen.version = response.model_version or wire.version
        return self.encoded(wire, response)
