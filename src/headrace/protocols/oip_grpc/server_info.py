"""Messages about the models of a server and their repository."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.core.errors import DataError
from headrace.core.statistics import BatchStatistics, Duration, ModelIndexEntry, ModelState, ModelStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.oip_grpc.requests import decode_parameters
from headrace.protocols.protobuf import message_class, parse_message

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
