"""The external scaler of KEDA: a gRPC service over the published decisions about pools of workers.

The contract is `externalscaler.proto` of KEDA 2.20, and its reader `pkg/scalers/external_scaler.go`.
KEDA keeps the replicas of a workload if a call fails. It scales down on the values 0 and false.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

from headrace.core.errors import HeadraceError, ResourceNotFoundError
from headrace.jobs.pools import WORKERS_WANTED, Pool, published_decision
from headrace.protocols.health_and_reflection import SERVICE_UNKNOWN, SERVING
from headrace.protocols.protobuf import EXTERNAL_SCALER, encode_message, message_class, parse_message
from headrace.scaling.settings import POOL_DEFAULT
from headrace.server.health_and_reflection import GrpcHealth, reflection_methods
from headrace.server.listener import GrpcCall, GrpcMethod, GrpcMethods

POOL_KEY: Final = "pool"
"""The key of a trigger's metadata that names the pool."""

_SERVICE: Final = f"{EXTERNAL_SCALER}.ExternalScaler"
_SERVICES: Final = ("", _SERVICE)
_WORKERS_PER_POD: Final = 1
_REF: Any = message_class("ScaledObjectRef", package=EXTERNAL_SCALER)
_METRICS_REQUEST: Any = message_class("GetMetricsRequest", package=EXTERNAL_SCALER)


class ExternalScaler(GrpcMethods):
    """The service `externalscaler.ExternalScaler`, with health checks and reflection.

    KEDA follows the decision of the pool's controller: its metric is the wanted number of workers, with
    a target of one worker for each pod. The metadata of the trigger names the pool; the default is
    `POOL_DEFAULT`. A call fails if the decision is unknown: the pool does not exist, no controller holds
    its lease, or the ledger is down. No such call returns 0 or false.

    Calls need no key: the listener authenticates clients by TLS. Health checks never read the ledger.

    Args:
        read_pools: Returns all pools, and may raise; such as `SharedReading.wait`.
        poll_s: The interval in seconds at which streams look for a change.
    """

    def __init__(self, read_pools: Callable[[], Awaitable[Sequence[Pool]]], *, poll_s: float = 1.0) -> None:
        self._read_pools = read_pools
        self._poll_s = poll_s
        self._draining = asyncio.Event()
        self._health = GrpcHealth(_health_status, _SERVICES, poll_s=poll_s)

    @override
    def methods(self) -> dict[str, GrpcMethod]:
        methods = {
            f"/{_SERVICE}/IsActive": GrpcMethod(unary=self._is_active),
            f"/{_SERVICE}/StreamIsActive": GrpcMethod(stream=self._stream_is_active),
            f"/{_SERVICE}/GetMetricSpec": GrpcMethod(unary=self._metric_spec),
            f"/{_SERVICE}/GetMetrics": GrpcMethod(unary=self._metrics),
            **self._health.methods(),
        }
        return methods | reflection_methods(methods)

    @override
    def drain(self) -> None:
        self._draining.set()
        self._health.drain()

    async def _is_active(self, _: GrpcCall, data: bytes) -> bytes:
        return _activity(await self._wanted(parse_message(_REF, data)) > 0)

    async def _stream_is_active(
        self, _: GrpcCall, messages: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the activity now and after every change. Only the first reading may fail.

        A later failure ends no stream: the client keeps the last activity until the next one is known.
        """
        ref = parse_message(_REF, await anext(messages, b""))
        sent = await self._wanted(ref) > 0
        yield (_activity(sent),)
        while not self._draining.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._draining.wait()
                    return
            try:
                active = await self._wanted(ref) > 0
            except HeadraceError:
                continue
            if active != sent:
                yield (_activity(active),)
                sent = active

    def _metric_spec(self, _: GrpcCall, data: bytes) -> bytes:
        parse_message(_REF, data)
        spec = {
            "metricName": WORKERS_WANTED,
            "targetSize": _WORKERS_PER_POD,
            "targetSizeFloat": float(_WORKERS_PER_POD),
        }
        return encode_message("GetMetricSpecResponse", package=EXTERNAL_SCALER, metricSpecs=[spec])

    async def _metrics(self, _: GrpcCall, data: bytes) -> bytes:
        request = parse_message(_METRICS_REQUEST, data)
        if request.metricName != WORKERS_WANTED:
            raise ResourceNotFoundError("metric", request.metricName)
        wanted = await self._wanted(request.scaledObjectRef)
        # KEDA reads the integer if the float is 0.
        value = {"metricName": WORKERS_WANTED, "metricValue": wanted, "metricValueFloat": float(wanted)}
        return encode_message("GetMetricsResponse", package=EXTERNAL_SCALER, metricValues=[value])

    async def _wanted(self, ref: Any) -> int:
        """Return the published number of workers of the pool that a ScaledObjectRef names.

        If headrace does not choose the workers that end, the number is at least that of the busy ones.
        0 then means that no worker is busy, and that the policies want none.

        Raises:
            ResourceNotFoundError: The ledger knows no such pool.
            UncontrolledPoolError: No controller decides about the pool.
            JobLedgerUnavailableError: The ledger is down.
        """
        name: str = ref.scalerMetadata.get(POOL_KEY, POOL_DEFAULT)
        return published_decision(await self._read_pools(), name).wanted


def _health_status(service: str) -> int:
    return SERVING if service in _SERVICES else SERVICE_UNKNOWN


def _activity(active: bool) -> bytes:
    return encode_message("IsActiveResponse", package=EXTERNAL_SCALER, result=active)
