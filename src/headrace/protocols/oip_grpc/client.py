"""Client side of the Open Inference Protocol over gRPC: encoded requests and decoded responses.

Pure.

Requests carry tensors as raw contents; `messages.encode_message` encodes the requests without
tensors. Responses may be raw or typed. Every malformed response is a `DataError`.
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
from headrace.protocols.oip_grpc.messages import message_class, parse_message
from headrace.protocols.oip_grpc.requests import decode_parameters, decode_tensors
from headrace.protocols.oip_grpc.responses import set_parameters
from headrace.protocols.tensors import binary_values

_REQUEST: Any = message_class("ModelInferRequest")
_RESPONSE: Any = message_class("ModelInferResponse")
_METADATA: Any = message_class("ModelMetadataResponse")
_INDEX: Any = message_class("RepositoryIndexResponse")
_STATISTICS: Any = message_class("ModelStatisticsResponse")

ERROR_KIND: Final = "headrace-error-kind"
"""Trailing metadata with headrace's kind of a sequence error."""
STREAM_DIALECT: Final = ("headrace-stream-dialect", "mlserver")
"""Call metadata that selects streams of plain responses, the form that `decode_response` reads."""


def encode_request(
    model: str, version: str, request: InferRequest, *, datatypes: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a ModelInferRequest, without the request's deadline and priority.

    `datatypes` holds the datatypes that the model declares, by input name. Only BF16 needs it:
    numpy has no such type. Raises DataError for a value that the protocol cannot carry.
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
    """Return the response of a ModelInferResponse. BF16 becomes float32, BYTES elements are bytes."""
    message = parse_message(_RESPONSE, data)
    outputs = decode_tensors(message.outputs, message.raw_output_contents) if message.outputs else ()
    return InferResponse(
        outputs,
        message.model_name,
        message.model_version or None,
        message.id,
        decode_parameters(message.parameters),
    )


def decode_metadata(data: bytes) -> ModelMetadata:
    """Return a model's metadata: name, last version, platform, and specs of its inputs and outputs."""
    message = parse_message(_METADATA, data)
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


def decode_index(data: bytes) -> tuple[ModelIndexEntry, ...]:
    """Return the index of a model repository. A state that headrace does not know becomes UNKNOWN."""
    message = parse_message(_INDEX, data)
    return tuple(ModelIndexEntry(m.name, m.version, _state(m.state), m.reason) for m in message.models)


def _state(state: str) -> ModelState:
    return ModelState(state) if state in ModelState.__members__ else ModelState.UNKNOWN


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
