"""The JSON documents of the inference protocol, as types from which the OpenAPI schemas are made.

`headrace.protocols` reads and writes the documents themselves, faster and with better messages.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.engine.settings import INSTANCES_MAX
from headrace.protocols.oip_documents import LIMIT_DEFAULT, LIMIT_MAX

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES", "BF16",
]  # fmt: skip
Name = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Shape = Annotated[list[Count], Meta(max_length=16)]
Parameters = Annotated[dict[str, Any], Meta(description="Names with values of any JSON type.")]

_VALUES = "Values in row-major order, flat or nested; omitted with binary_data_size."


class SchedulingParameters(Struct, kw_only=True):
    """Parameters of a request: these, and others for the model."""

    priority: (
        Annotated[int, Meta(ge=0, description="1 is the highest priority; 0 is the default.")] | UnsetType
    ) = UNSET
    timeout: Annotated[int, Meta(ge=0, description="Microseconds; 0 means no timeout.")] | UnsetType = UNSET
    # These have no types, because a model without a step receives them as ordinary parameters.
    sequence_id: Annotated[
        Any, Meta(description="For models with a step: text or an integer; 0 and empty mean none.")
    ] = UNSET
    sequence_start: Annotated[Any, Meta(description='For models with a step: true, false or "auto".')] = UNSET
    sequence_end: Annotated[Any, Meta(description="For models with a step: true or false.")] = UNSET
    sequence_cancel: Annotated[Any, Meta(description="For models with a step: true or false.")] = UNSET


class RequestParameters(SchedulingParameters, kw_only=True):
    """Parameters of an inference request: these, and others for the model."""

    binary_data_output: bool | UnsetType = UNSET


class OutputParameters(Struct):
    """Parameters of a requested output: this, and others."""

    binary_data: bool | UnsetType = UNSET


class ErrorDocument(Struct):
    """An error. `type` is the class of the error that headrace's client raises."""

    error: str
    type: str | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    kind: (
        Annotated[
            Literal["sequence_gone", "sequence_lost", "sequence_full", "too_many_sequences"],
            Meta(description="Only for errors of sequences."),
        ]
        | UnsetType
    ) = UNSET


class LiveDocument(Struct):
    """The liveness of the server."""

    live: bool


class ReadyDocument(Struct):
    """The readiness of the server."""

    ready: bool


class ModelReadyDocument(Struct):
    """The readiness of a model."""

    name: Name
    ready: bool


class ModelNamesDocument(Struct):
    """The names of the ready models."""

    models: list[str]


class ServerMetadataDocument(Struct):
    """The server and the protocol extensions that it supports."""

    name: Name
    version: Name
    extensions: list[str]


class TensorSpecDocument(Struct):
    """An input or an output of a model; -1 in its shape stands for any size."""

    name: Name
    datatype: Datatype
    shape: list[Annotated[int, Meta(ge=-1)]]


class ModelMetadataDocument(Struct):
    """A model with its inputs and outputs."""

    name: Name
    versions: list[str]
    platform: str
    inputs: list[TensorSpecDocument]
    outputs: list[TensorSpecDocument]


class InputTensorDocument(Struct):
    """An input tensor."""

    name: Name
    shape: Shape
    datatype: Datatype
    parameters: Parameters | UnsetType | None = UNSET
    data: Annotated[
        Any,
        Meta(
            description=f"{_VALUES} The value itself if the shape is [].",
            extra_json_schema={"type": ["array", "number", "boolean", "string", "null"]},
        ),
    ] = UNSET


class RequestedOutputDocument(Struct):
    """A requested output."""

    name: Name
    parameters: OutputParameters | UnsetType | None = UNSET


class InferenceRequestDocument(Struct):
    """An inference request."""

    inputs: Annotated[list[InputTensorDocument], Meta(min_length=1)]
    id: str | UnsetType | None = UNSET
    parameters: RequestParameters | UnsetType | None = UNSET
    outputs: list[RequestedOutputDocument] | UnsetType | None = UNSET


class OutputTensorDocument(Struct):
    """An output tensor."""

    name: Name
    shape: Shape
    datatype: Datatype
    parameters: Parameters | UnsetType = UNSET
    data: Annotated[list[Any], Meta(description=_VALUES)] | UnsetType = UNSET


class InferenceResponseDocument(Struct):
    """The response to an inference request."""

    model_name: Name
    outputs: list[OutputTensorDocument]
    model_version: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


class GenerateRequestDocument(Struct):
    """Text and parameters for the model."""

    text_input: str | list[str]
    id: str | UnsetType | None = UNSET
    parameters: SchedulingParameters | UnsetType | None = UNSET


class GeneratedDocument(Struct):
    """A generated text, with the other outputs of the model by name."""

    model_name: Name
    text_output: Any = UNSET


class IndexRequestDocument(Struct):
    """The choice of the listed models: all, or only the ready ones."""

    ready: bool | UnsetType | None = UNSET


class IndexEntryDocument(Struct):
    """A version of a model, and the reason if it is not ready."""

    name: Name
    version: Name
    state: str
    reason: str


class ChangeRequestDocument(Struct):
    """The parameters of a load or an unload."""

    parameters: Parameters | UnsetType | None = UNSET


class ChangedDocument(Struct):
    """The model that was loaded or unloaded."""

    name: Name


Instances = Annotated[int, Meta(ge=1, le=INSTANCES_MAX)]


class InstancesRequestDocument(Struct, forbid_unknown_fields=True):
    """The wanted number of instances of a model."""

    instances: Annotated[Instances, Meta(description="The number; with instances_max, the smallest one.")]
    instances_max: Annotated[
        Instances | None,
        Meta(description="The largest number: the server then follows the load. Null fixes the number."),
    ] = None


class InstancesDocument(Struct):
    """The numbers of instances of a model version."""

    name: Name
    version: str
    instances: Count
    """Instances that serve, or will once they have loaded."""
    ready: Count
    draining: Count
    """Removed instances that finish their requests, streams and sequences."""
    instances_min: Count
    instances_max: Count | None
    """The largest number if the server follows the load, else null."""


class ModelConfigDocument(Struct):
    """The configuration of a model in Triton's format."""

    name: Name
    max_batch_size: Count
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    platform: Name | UnsetType = UNSET
    backend: Name | UnsetType = UNSET
    dynamic_batching: dict[str, Any] | UnsetType = UNSET
    model_transaction_policy: dict[str, Any] | UnsetType = UNSET


class SequencesQuery(Struct):
    """The query of a list of sequences."""

    limit: Annotated[int, Meta(ge=0, le=LIMIT_MAX, description="Maximum number of listed sequences.")] = (
        LIMIT_DEFAULT
    )


class SequenceQuery(Struct):
    """The query that tells sequences of one id apart."""

    namespace: Annotated[
        str | None, Meta(description="Namespace of the sequence; default: the tenant of the API key.")
    ] = None


class SequenceDocument(Struct):
    """A live sequence."""

    id: Name
    namespace: str
    """The tenant of the client, or the id of the job whose records it has; else empty."""
    state: str
    instance: Count
    steps: Count
    requests: Count
    age_s: Seconds
    idle_s: Seconds


class SequencesDocument(Struct):
    """The sequences of a model: numbers, and a list of live ones."""

    model_name: Name
    model_version: str
    live: Count
    live_max: Count
    ends: dict[str, Count]
    sequences: list[SequenceDocument]


class StatisticsDocument(Struct):
    """The statistics of models in Triton's format."""

    model_stats: list[dict[str, Any]]
