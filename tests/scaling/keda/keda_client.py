"""A client that reads an external scaler as KEDA 2.20 does (`pkg/scalers/external_scaler.go`).

Its messages have the field numbers of KEDA, written here by hand: they do not depend on headrace's.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from scaling.simulation.autoscalers import KedaScaler

PACKAGE = "externalscaler"
PATH = f"/{PACKAGE}.ExternalScaler/"
BACKOFF_S, BACKOFF_S_MAX = 2.0, 60.0

_TYPES = {"double": 1, "int64": 3, "bool": 8, "string": 9}
_FIELDS = {
    "ScaledObjectRef": [
        ("name", 1, "string"),
        ("namespace", 2, "string"),
        ("scalerMetadata", 3, "*ScaledObjectRef.ScalerMetadataEntry"),
    ],
    "IsActiveResponse": [("result", 1, "bool")],
    "GetMetricSpecResponse": [("metricSpecs", 1, "*MetricSpec")],
    "MetricSpec": [("metricName", 1, "string"), ("targetSize", 2, "int64"), ("targetSizeFloat", 3, "double")],
    "GetMetricsRequest": [("scaledObjectRef", 1, "ScaledObjectRef"), ("metricName", 2, "string")],
    "GetMetricsResponse": [("metricValues", 1, "*MetricValue")],
    "MetricValue": [
        ("metricName", 1, "string"),
        ("metricValue", 2, "int64"),
        ("metricValueFloat", 3, "double"),
    ],
}


def _messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, label=3 if kind.startswith("*") else 1)
            if kind in _TYPES:
                added.type = _TYPES[kind]
            else:
                added.type, added.type_name = 11, f".{PACKAGE}.{kind.lstrip('*')}"
    entry = file.message_type[0].nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    for number, field in enumerate(("key", "value"), 1):
        entry.field.add(name=field, number=number, label=1, type=_TYPES["string"])
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _FIELDS
    }


MESSAGES = _messages()
ScaledObjectRef = MESSAGES["ScaledObjectRef"]
IsActive = MESSAGES["IsActiveResponse"]


class KedaClient:
    """The calls of one trigger of a ScaledObject. All raise AioRpcError.

    Args:
        channel: The channel to the external scaler.
        metadata: The metadata of the trigger.
        index: The number of the trigger, which KEDA puts before the names of metrics.
    """

    def __init__(self, channel: Any, metadata: dict[str, str] | None = None, *, index: int = 0) -> None:
        self._channel = channel
        self._prefix = f"s{index}-"
        self.ref = ScaledObjectRef(name="worker", namespace="default", scalerMetadata=metadata or {})

    async def is_active(self) -> bool:
        return (await self._call("IsActive", self.ref, "IsActiveResponse")).result

    async def specs(self) -> list[tuple[str, float]]:
        """Return the names and targets of the metrics."""
        response = await self._call("GetMetricSpec", self.ref, "GetMetricSpecResponse")
        return [
            (self._prefix + each.metricName, _float_or_int(each.targetSizeFloat, each.targetSize))
            for each in response.metricSpecs
        ]

    async def values(self, name: str) -> list[Any]:
        """Return the values of a metric whose name has the prefix of KEDA, as messages."""
        request = MESSAGES["GetMetricsRequest"](
            scaledObjectRef=self.ref, metricName=name.removeprefix(self._prefix)
        )
        return list((await self._call("GetMetrics", request, "GetMetricsResponse")).metricValues)

    async def metric_and_activity(self, name: str) -> tuple[float, bool]:
        """Return the value of the only metric, and the activity, which KEDA takes from IsActive alone."""
        (value,) = await self.values(name)
        return _float_or_int(value.metricValueFloat, value.metricValue), await self.is_active()

    def stream(self) -> Any:
        """Return a call of StreamIsActive: an iterable of IsActiveResponse."""
        return self._channel.unary_stream(
            f"{PATH}StreamIsActive",
            request_serializer=ScaledObjectRef.SerializeToString,
            response_deserializer=IsActive.FromString,
        )(self.ref)

    async def hold_stream(
        self, on_activity: Callable[[bool], None], wait: Callable[[float], Awaitable[None]]
    ) -> None:
        """Hold a StreamIsActive, and open a new one after every end. Cancel it to end it.

        `wait` replaces the sleep before a new stream, which doubles up to a minute.
        """
        backoff_s = BACKOFF_S
        while True:
            try:
                async for response in self.stream():
                    on_activity(response.result)
                    backoff_s = BACKOFF_S
            except grpc.aio.AioRpcError:
                pass
            await wait(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)

    async def _call(self, method: str, request: Any, response: str) -> Any:
        return await self._channel.unary_unary(
            f"{PATH}{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES[response].FromString,
        )(request)


def _float_or_int(as_float: float, as_int: int) -> float:
    """Return the float only if it is more than 0, as KEDA does."""
    return as_float if as_float > 0 else float(as_int)


async def remaining(stream: Any) -> list[Any]:
    """Return the messages until the end of a stream. Raises AioRpcError unless it ends well."""
    messages = []
    while (message := await stream.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


@dataclass
class ScaledObject:
    """A workload whose replicas KEDA and its HPA set. A failed call changes none.

    `errors` counts the failed calls.
    """

    client: KedaClient
    scaler: KedaScaler
    metric: str
    replicas: int = 0
    errors: int = 0

    @classmethod
    async def create(cls, client: KedaClient, *, most: int, cooldown_s: float = 300.0) -> "ScaledObject":
        ((name, target),) = await client.specs()
        return cls(client, KedaScaler(0, most, target, cooldown_s=cooldown_s), name)

    async def poll(self, now_s: float) -> None:
        """Let KEDA scale between 0 and 1."""
        read = await self._read()
        self.on_activity(now_s, None if read is None else read[1])

    def on_activity(self, now_s: float, active: bool | None) -> None:
        """Let KEDA scale between 0 and 1 by an activity of any source; None is an error."""
        self.replicas = self.scaler.poll(now_s, self.replicas, None if active is None else float(active))

    async def sync(self, now_s: float) -> None:
        """Let the HPA scale above 1."""
        read = await self._read()
        self.replicas = self.scaler.sync(now_s, self.replicas, None if read is None else read[0])

    async def _read(self) -> tuple[float, bool] | None:
        try:
            return await self.client.metric_and_activity(self.metric)
        except grpc.aio.AioRpcError:
            self.errors += 1
            return None
