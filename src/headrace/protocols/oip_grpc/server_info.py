"""Messages about a server: its models and their repository, its health, and its services (reflection)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.core.errors import DataError
from headrace.core.statistics import BatchStatistics, Duration, ModelIndexEntry, ModelState, ModelStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.oip_grpc.requests import decode_parameters
from headrace.protocols.protobuf import (
    HEALTH,
    INFERENCE,
    file_descriptors,
    message_class,
    parse_message,
)

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

_MODEL_METADATA: Any = message_class("ModelMetadataResponse")
_INDEX: Any = message_class("RepositoryIndexResponse")
_STATISTICS: Any = message_class("ModelStatisticsResponse")


def encode_metadata(metadata: ModelMetadata, versions: Sequence[str]) -> bytes:
    """Return the bytes of a ModelMetadataResponse.

    A tensor of unknown shape has one variable dimension.
    """
    message = _MODEL_METADATA(name=metadata.name, versions=versions, platform=metadata.platform)
    for target, specs in ((message.inputs, metadata.inputs), (message.outputs, metadata.outputs)):
        for spec in specs:
            target.add(name=spec.name, datatype=spec.datatype, shape=_shape(spec))
    return message.SerializeToString()


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (-1,)


def decode_metadata(data: bytes) -> ModelMetadata:
    """Return a model's metadata: name, last version, platform, and specs of its inputs and outputs."""
    message = parse_message(_MODEL_METADATA, data)
    versions = list(message.versions)
    return ModelMetadata(
        message.name,
        versions[-1] if versions else None,
        message.platform,
        tuple(map(_spec, message.inputs)),
        tuple(map(_spec, message.outputs)),
    )


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.datatype, tuple(max(size, -1) for size in tensor.shape) or None)


def encode_statistics(statistics: Iterable[ModelStatistics]) -> bytes:
    """Return the bytes of a ModelStatisticsResponse.

    Inferences are rows and executions are calls, as in Triton.
    """
    message = _STATISTICS()
    for model in statistics:
        entry = message.model_stats.add(
            name=model.name,
            version=model.version,
            last_inference=model.last_inference_ms,
            inference_count=model.rows,
            execution_count=model.calls,
        )
        for field in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
            _set_duration(getattr(entry.inference_stats, field), getattr(model, field))
        for batch in model.batches:
            counted = entry.batch_stats.add(batch_size=batch.rows)
            _set_duration(counted.compute_infer, batch.compute)
    return message.SerializeToString()


def _set_duration(target: Any, duration: Duration) -> None:
    target.count, target.ns = duration.count, duration.ns


def decode_statistics(data: bytes) -> tuple[ModelStatistics, ...]:
    """Return the statistics of a ModelStatisticsResponse. Missing fields are zero."""
    return tuple(_statistics(entry) for entry in parse_message(_STATISTICS, data).model_stats)


def _statistics(entry: Any) -> ModelStatistics:
    stats = entry.inference_stats
    return ModelStatistics(
        entry.name,
        entry.version,
        last_inference_ms=entry.last_inference,
        rows=entry.inference_count,
        calls=entry.execution_count,
        success=_duration(stats.success),
        fail=_duration(stats.fail),
        queue=_duration(stats.queue),
        compute_input=_duration(stats.compute_input),
        compute_infer=_duration(stats.compute_infer),
        compute_output=_duration(stats.compute_output),
        batches=tuple(BatchStatistics(b.batch_size, _duration(b.compute_infer)) for b in entry.batch_stats),
    )


def _duration(found: Any) -> Duration:
    return Duration(found.count, found.ns)


def encode_index(entries: Iterable[ModelIndexEntry], package: str) -> bytes:
    """Return the bytes of the RepositoryIndexResponse of `package`."""
    message = message_class("RepositoryIndexResponse", package=package)()
    for entry in entries:
        message.models.add(
            name=entry.name, version=entry.version, state=entry.state.value, reason=entry.reason
        )
    return message.SerializeToString()


def decode_index(data: bytes) -> tuple[ModelIndexEntry, ...]:
    """Return the index of a model repository. A state that headrace does not know becomes UNKNOWN."""
    message = parse_message(_INDEX, data)
    return tuple(ModelIndexEntry(m.name, m.version, _state(m.state), m.reason) for m in message.models)


def _state(state: str) -> ModelState:
    return ModelState(state) if state in ModelState.__members__ else ModelState.UNKNOWN


def requested_model(message: Any) -> str:
    """Return the model named by a load or unload request: field 2, or field 1 as in KServe.

    Raises:
        DataError: The request names no model.
    """
    name: str = message.model_name or message.repository_name
    if not name:
        raise DataError("a load or unload request needs the model's name")
    return name


def load_parameters(message: Any) -> Mapping[str, Any]:
    """Return the parameters of a load request."""
    return decode_parameters(message.parameters)


# Health

HealthCheckRequest: Any = message_class("HealthCheckRequest", package=HEALTH)
_LIST: Any = message_class("HealthListResponse", package=HEALTH)


def encode_health_list(statuses: Mapping[str, int]) -> bytes:
    """Return the bytes of a HealthListResponse for statuses by service name."""
    message = _LIST()
    for name, status in statuses.items():
        message.statuses[name].status = status
    return message.SerializeToString()


# Reflection

_NOT_FOUND: Final = 5
_UNIMPLEMENTED: Final = 12
_STREAM_RPC: Final = "ModelStreamInfer"


class Reflection:
    """A responder to the requests of one version of `grpc.reflection`.

    Args:
        package: ``grpc.reflection.v1`` or ``grpc.reflection.v1alpha``; their messages are the same.
        wrapped_streams: Describe streams of responses in Triton's form.
    """

    def __init__(self, package: str, *, wrapped_streams: bool = False) -> None:
        self._request: Any = message_class("ServerReflectionRequest", package=package)
        self._response: Any = message_class("ServerReflectionResponse", package=package)
        self._services: list[str] = []
        self._files: dict[str, bytes] = {}
        self._file_of: dict[str, str] = {}
        for file in file_descriptors():
            self._services += [f"{file.package}.{service.name}" for service in file.service]
            if wrapped_streams and file.package == INFERENCE:
                _wrap_streams(file)
            name: str = file.name
            self._files[name] = file.SerializeToString()
            self._file_of |= dict.fromkeys(_symbols(file), name)

    def respond(self, data: bytes) -> bytes:
        """Return the ServerReflectionResponse to a ServerReflectionRequest.

        Raises DataError for malformed or empty ones.
        """
        request = parse_message(self._request, data)
        response = self._response(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in sorted(self._services):
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            self._set_file(response, request.file_by_filename)
        elif kind == "file_containing_symbol":
            self._set_file(response, self._file_of.get(request.file_containing_symbol, ""))
        elif kind in ("file_containing_extension", "all_extension_numbers_of_type"):
            _set_error(response, _UNIMPLEMENTED, "proto3 messages have no extensions")
        else:
            raise DataError("the reflection request is empty")
        return response.SerializeToString()

    def _set_file(self, response: Any, name: str) -> None:
        if name in self._files:
            response.file_descriptor_response.file_descriptor_proto.append(self._files[name])
        else:
            _set_error(response, _NOT_FOUND, "there is no such file or symbol")


def _set_error(response: Any, code: int, why: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = why


def _wrap_streams(descriptor: Any) -> None:
    (method,) = (m for m in descriptor.service[0].method if m.name == _STREAM_RPC)
    method.output_type = f".{INFERENCE}.ModelStreamInferResponse"


def _symbols(file: Any) -> Iterable[str]:
    """Yield the full names of all messages, nested ones too, enums, services and methods."""
    messages = {f"{file.package}.{message.name}": message for message in file.message_type}
    yield from (f"{file.package}.{enum.name}" for enum in file.enum_type)
    yield from _nested(messages)
    for service in file.service:
        yield f"{file.package}.{service.name}"
        yield from (f"{file.package}.{service.name}.{method.name}" for method in service.method)


def _nested(messages: Mapping[str, Any]) -> Iterable[str]:
    for name, message in messages.items():
        yield name
        yield from (f"{name}.{enum.name}" for enum in message.enum_type)
        yield from _nested({f"{name}.{inner.name}": inner for inner in message.nested_type})
