"""Messages about the server and its models: metadata, statistics, index, load and unload."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.core.errors import DataError
from headrace.core.statistics import Duration, ModelIndexEntry, ModelStatistics
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.oip_grpc.messages import message_class
from headrace.protocols.oip_grpc.requests import decode_parameters
from headrace.protocols.oip_repository import model_config

_SERVER_METADATA: Any = message_class("ServerMetadataResponse")
_MODEL_METADATA: Any = message_class("ModelMetadataResponse")
_MODEL_CONFIG: Any = message_class("ModelConfigResponse")
_STATISTICS: Any = message_class("ModelStatisticsResponse")


def encode_server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """Return the bytes of a ServerMetadataResponse."""
    return _SERVER_METADATA(name=name, version=version, extensions=extensions).SerializeToString()


def encode_metadata(metadata: ModelMetadata, versions: Sequence[str]) -> bytes:
    """Return the bytes of a ModelMetadataResponse.

    A tensor of unknown shape has one variable dimension.
    """
    message = _MODEL_METADATA(name=metadata.name, versions=versions, platform=metadata.platform)
    for target, specs in ((message.inputs, metadata.inputs), (message.outputs, metadata.outputs)):
        for spec in specs:
            target.add(name=spec.name, datatype=spec.datatype, shape=_shape(spec))
    return message.SerializeToString()


def encode_config(metadata: ModelMetadata) -> bytes:
    """Return the bytes of a ModelConfigResponse with the configuration that `model_config` returns."""
    return _MODEL_CONFIG(config=model_config(metadata)).SerializeToString()


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (-1,)


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


def encode_index(entries: Iterable[ModelIndexEntry], package: str) -> bytes:
    """Return the bytes of the RepositoryIndexResponse of `package`."""
    message = message_class("RepositoryIndexResponse", package=package)()
    for entry in entries:
        message.models.add(
            name=entry.name, version=entry.version, state=entry.state.value, reason=entry.reason
        )
    return message.SerializeToString()


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
