"""The other way round: what a client of the Open Inference Protocol over gRPC sends, and what it makes of the answers; pure.

Tensors go as raw contents; answers are taken raw or typed. Every malformed answer is a `DataError`.
"""

from collections.abc import Mapping
from typing import Any, Final

from headrace.core.statistics import (
    BatchStatistics,
    Duration,
    ModelIndexEntry,
    ModelState,
    ModelStatistics,
)
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, TensorSpec, datatype_of
from headrace.protocols.oip_grpc.messages import message_class, parsed
from headrace.protocols.oip_grpc.requests import parameters_of, tensors_of
from headrace.protocols.oip_grpc.responses import set_parameters
from headrace.protocols.tensors import binary_values

_REQUEST: Any = message_class("ModelInferRequest")
_RESPONSE: Any = message_class("ModelInferResponse")
_METADATA_REQUEST: Any = message_class("ModelMetadataRequest")
_METADATA: Any = message_class("ModelMetadataResponse")
_INDEX_REQUEST: Any = message_class("RepositoryIndexRequest")
_INDEX: Any = message_class("RepositoryIndexResponse")
_LOAD_REQUEST: Any = message_class("RepositoryModelLoadRequest")
_UNLOAD_REQUEST: Any = message_class("RepositoryModelUnloadRequest")
_STATISTICS_REQUEST: Any = message_class("ModelStatisticsRequest")
_STATISTICS: Any = message_class("ModelStatisticsResponse")

ERROR_KIND: Final = "headrace-error-kind"
"""Trailing metadata by which headrace says which error of a sequence it is."""
STREAM_DIALECT: Final = ("headrace-stream-dialect", "mlserver")
"""Call metadata that asks for streams of plain responses, which is what `decode_response` reads."""


def encode_request(
    model: str, version: str, request: InferRequest, *, datatypes: Mapping[str, str] | None = None
) -> bytes:
    """A ModelInferRequest. Its deadline and priority do not travel.

    `datatypes` is what the model declares, by input name; needed for BF16 only, which numpy cannot tell. Raises DataError for
    values that cannot travel.
    """
    message = _REQUEST(model_name=model, model_version=version, id=request.id)
    set_parameters(message.parameters, request.parameters)
    for name in request.outputs:
        message.outputs.add(name=name)
    for tensor in request.inputs:
        datatype = datatype_of(tensor.data.dtype)
        if datatypes and datatypes.get(tensor.name) == "BF16" and tensor.data.dtype.name == "float32":
            datatype = "BF16"
        message.inputs.add(name=tensor.name, datatype=datatype, shape=tensor.data.shape)
        values = binary_values(tensor.name, datatype, tensor.data)
        message.raw_input_contents.append(values if isinstance(values, bytes) else values.tobytes())
    return message.SerializeToString()


def decode_response(data: bytes) -> InferResponse:
    """A response from a ModelInferResponse; BF16 comes as float32, BYTES as bytes."""
    message = parsed(_RESPONSE, data)
    outputs = tensors_of(message.outputs, message.raw_output_contents) if message.outputs else ()
    return InferResponse(
        outputs,
        message.model_name,
        message.model_version or None,
        message.id,
        parameters_of(message.parameters),
    )


def encode_metadata_request(model: str, version: str) -> bytes:
    """A ModelMetadataRequest."""
    return _METADATA_REQUEST(name=model, version=version).SerializeToString()


def decode_metadata(data: bytes) -> ModelMetadata:
    """A model's metadata: name, last version, platform, and what is said of its inputs and outputs."""
    message = parsed(_METADATA, data)
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


def encode_index_request() -> bytes:
    """A RepositoryIndexRequest for every model."""
    return _INDEX_REQUEST().SerializeToString()


def decode_index(data: bytes) -> tuple[ModelIndexEntry, ...]:
    """The index of a model repository; a state of another server's own is UNKNOWN."""
    message = parsed(_INDEX, data)
    return tuple(ModelIndexEntry(m.name, m.version, _state(m.state), m.reason) for m in message.models)


def _state(state: str) -> ModelState:
    return ModelState(state) if state in ModelState.__members__ else ModelState.UNKNOWN


def encode_load_request(model: str) -> bytes:
    """A RepositoryModelLoadRequest."""
    return _LOAD_REQUEST(model_name=model).SerializeToString()


def encode_unload_request(model: str) -> bytes:
    """A RepositoryModelUnloadRequest."""
    return _UNLOAD_REQUEST(model_name=model).SerializeToString()


def encode_statistics_request(model: str) -> bytes:
    """A ModelStatisticsRequest, for all models where none is named."""
    return _STATISTICS_REQUEST(name=model).SerializeToString()


def decode_statistics(data: bytes) -> tuple[ModelStatistics, ...]:
    """What a ModelStatisticsResponse says; what is not in it is zero."""
    return tuple(_statistics(entry) for entry in parsed(_STATISTICS, data).model_stats)


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
