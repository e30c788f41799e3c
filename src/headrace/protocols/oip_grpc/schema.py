"""Tables of the protobuf messages and services of the gRPC server.

A message is a list of fields, ``TYPE NAME = NUMBER`` as in a .proto file. ``repeated``, ``map``
(from string to TYPE) or ``oneof.GROUP`` may precede the type. A type is a scalar of protobuf, or a
message or enum of the same file, named from the package down. Field numbers and names are those
that the Open Inference Protocol, MLServer and Triton share. Comments name the choice where these
differ.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Rpc(NamedTuple):
    """A method of a service: message names, and whether it streams."""

    name: str
    request: str
    response: str
    streams: bool = False


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """The messages, enums and services of one .proto file."""

    name: str
    package: str
    messages: dict[str, tuple[str, ...]]
    enums: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Names of values by enum, numbered from 0."""
    services: dict[str, tuple[Rpc, ...]] = field(default_factory=dict[str, tuple[Rpc, ...]])


_VERSIONED = ("string name = 1", "string version = 2")
_INDEX_REQUEST = ("string repository_name = 1", "bool ready = 2")
_INDEX_RESPONSE = ("repeated RepositoryIndexResponse.ModelIndex models = 1",)
_INDEX_ENTRY = ("string name = 1", "string version = 2", "string state = 3", "string reason = 4")
# KServe sends the model's name in field 1, and its responses have fields 1 and 2. The responses of
# MLServer and Triton are empty, so clients of all of them understand this one.
_REPOSITORY_REQUEST = (
    "string repository_name = 1",
    "string model_name = 2",
    "map ModelRepositoryParameter parameters = 3",
)
_LOAD_RESPONSE = ("string model_name = 1", "bool isLoaded = 2")
_UNLOAD_RESPONSE = ("string model_name = 1", "bool isUnloaded = 2")
_TENSOR = (
    "string name = 1",
    "string datatype = 2",
    "repeated int64 shape = 3",
    "map InferParameter parameters = 4",
    "InferTensorContents contents = 5",
)
# MLServer and KServe have the choices 1 to 3 only.
_PARAMETER = (
    "oneof.parameter_choice bool bool_param = 1",
    "oneof.parameter_choice int64 int64_param = 2",
    "oneof.parameter_choice string string_param = 3",
    "oneof.parameter_choice double double_param = 4",
    "oneof.parameter_choice uint64 uint64_param = 5",
)
_REPOSITORY_PARAMETER = (
    "oneof.parameter_choice bool bool_param = 1",
    "oneof.parameter_choice int64 int64_param = 2",
    "oneof.parameter_choice string string_param = 3",
    "oneof.parameter_choice bytes bytes_param = 4",
)
_DATATYPES = (
    "INVALID",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
    "BF16",
)

INFERENCE: Final = ProtoFile(
    name="headrace/inference.proto",
    package="inference",
    messages={
        "ServerLiveRequest": (),
        "ServerLiveResponse": ("bool live = 1",),
        "ServerReadyRequest": (),
        "ServerReadyResponse": ("bool ready = 1",),
        "ModelReadyRequest": _VERSIONED,
        "ModelReadyResponse": ("bool ready = 1",),
        "ServerMetadataRequest": (),
        "ServerMetadataResponse": ("string name = 1", "string version = 2", "repeated string extensions = 3"),
        "ModelMetadataRequest": _VERSIONED,
        # Field 6 is omitted: a map of strings in the specification, a map of parameters in
        # MLServer.
        "ModelMetadataResponse": (
            "string name = 1",
            "repeated string versions = 2",
            "string platform = 3",
            "repeated ModelMetadataResponse.TensorMetadata inputs = 4",
            "repeated ModelMetadataResponse.TensorMetadata outputs = 5",
        ),
        "ModelMetadataResponse.TensorMetadata": (
            "string name = 1",
            "string datatype = 2",
            "repeated int64 shape = 3",
        ),
        "InferParameter": _PARAMETER,
        "InferTensorContents": (
            "repeated bool bool_contents = 1",
            "repeated int32 int_contents = 2",
            "repeated int64 int64_contents = 3",
            "repeated uint32 uint_contents = 4",
            "repeated uint64 uint64_contents = 5",
            "repeated float fp32_contents = 6",
            "repeated double fp64_contents = 7",
            "repeated bytes bytes_contents = 8",
        ),
        "ModelInferRequest": (
            "string model_name = 1",
            "string model_version = 2",
            "string id = 3",
            "map InferParameter parameters = 4",
            "repeated ModelInferRequest.InferInputTensor inputs = 5",
            "repeated ModelInferRequest.InferRequestedOutputTensor outputs = 6",
            "repeated bytes raw_input_contents = 7",
        ),
        "ModelInferRequest.InferInputTensor": _TENSOR,
        "ModelInferRequest.InferRequestedOutputTensor": (
            "string name = 1",
            "map InferParameter parameters = 2",
        ),
        "ModelInferResponse": (
            "string model_name = 1",
            "string model_version = 2",
            "string id = 3",
            "map InferParameter parameters = 4",
            "repeated ModelInferResponse.InferOutputTensor outputs = 5",
            "repeated bytes raw_output_contents = 6",
        ),
        "ModelInferResponse.InferOutputTensor": _TENSOR,
        "ModelStreamInferResponse": ("string error_message = 1", "ModelInferResponse infer_response = 2"),
        "ModelConfigRequest": _VERSIONED,
        "ModelConfigResponse": ("ModelConfig config = 1",),
        # The fields of Triton's configuration that apply to headrace.
        "ModelConfig": (
            "string name = 1",
            "string platform = 2",
            "int32 max_batch_size = 4",
            "repeated ModelInput input = 5",
            "repeated ModelOutput output = 6",
            "oneof.scheduling_choice ModelDynamicBatching dynamic_batching = 11",
            "string backend = 17",
            "ModelTransactionPolicy model_transaction_policy = 19",
        ),
        "ModelInput": ("string name = 1", "DataType data_type = 2", "repeated int64 dims = 4"),
        "ModelOutput": ("string name = 1", "DataType data_type = 2", "repeated int64 dims = 3"),
        "ModelDynamicBatching": (
            "repeated int32 preferred_batch_size = 1",
            "uint64 max_queue_delay_microseconds = 2",
        ),
        "ModelTransactionPolicy": ("bool decoupled = 1",),
        "ModelStatisticsRequest": _VERSIONED,
        "ModelStatisticsResponse": ("repeated ModelStatistics model_stats = 1",),
        "StatisticDuration": ("uint64 count = 1", "uint64 ns = 2"),
        "InferStatistics": (
            "StatisticDuration success = 1",
            "StatisticDuration fail = 2",
            "StatisticDuration queue = 3",
            "StatisticDuration compute_input = 4",
            "StatisticDuration compute_infer = 5",
            "StatisticDuration compute_output = 6",
            "StatisticDuration cache_hit = 7",
            "StatisticDuration cache_miss = 8",
        ),
        "InferBatchStatistics": (
            "uint64 batch_size = 1",
            "StatisticDuration compute_input = 2",
            "StatisticDuration compute_infer = 3",
            "StatisticDuration compute_output = 4",
        ),
        "ModelStatistics": (
            "string name = 1",
            "string version = 2",
            "uint64 last_inference = 3",
            "uint64 inference_count = 4",
            "uint64 execution_count = 5",
            "InferStatistics inference_stats = 6",
            "repeated InferBatchStatistics batch_stats = 7",
        ),
        "ModelRepositoryParameter": _REPOSITORY_PARAMETER,
        "RepositoryIndexRequest": _INDEX_REQUEST,
        "RepositoryIndexResponse": _INDEX_RESPONSE,
        "RepositoryIndexResponse.ModelIndex": _INDEX_ENTRY,
        "RepositoryModelLoadRequest": _REPOSITORY_REQUEST,
        "RepositoryModelLoadResponse": _LOAD_RESPONSE,
        "RepositoryModelUnloadRequest": _REPOSITORY_REQUEST,
        "RepositoryModelUnloadResponse": _UNLOAD_RESPONSE,
    },
    enums={"DataType": tuple(f"TYPE_{name}" for name in _DATATYPES)},
    services={
        "GRPCInferenceService": (
            *(
                Rpc(name, f"{name}Request", f"{name}Response")
                for name in (
                    "ServerLive",
                    "ServerReady",
                    "ModelReady",
                    "ServerMetadata",
                    "ModelMetadata",
                    "ModelInfer",
                    "ModelConfig",
                    "ModelStatistics",
                    "RepositoryIndex",
                    "RepositoryModelLoad",
                    "RepositoryModelUnload",
                )
            ),
            # MLServer's response. Triton sends ModelStreamInferResponse under the same path.
            Rpc("ModelStreamInfer", "ModelInferRequest", "ModelInferResponse", streams=True),
        )
    },
)

REPOSITORY: Final = ProtoFile(
    name="headrace/model_repository.proto",
    package="inference.model_repository",
    messages={
        "ModelRepositoryParameter": _REPOSITORY_PARAMETER,
        "RepositoryIndexRequest": _INDEX_REQUEST,
        "RepositoryIndexResponse": _INDEX_RESPONSE,
        "RepositoryIndexResponse.ModelIndex": _INDEX_ENTRY,
        "RepositoryModelLoadRequest": _REPOSITORY_REQUEST,
        "RepositoryModelLoadResponse": _LOAD_RESPONSE,
        "RepositoryModelUnloadRequest": _REPOSITORY_REQUEST,
        "RepositoryModelUnloadResponse": _UNLOAD_RESPONSE,
    },
    services={
        "ModelRepositoryService": tuple(
            Rpc(name, f"{name}Request", f"{name}Response")
            for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
        )
    },
)

HEALTH: Final = ProtoFile(
    name="headrace/health.proto",
    package="grpc.health.v1",
    messages={
        "HealthCheckRequest": ("string service = 1",),
        "HealthCheckResponse": ("HealthCheckResponse.ServingStatus status = 1",),
        "HealthListRequest": (),
        "HealthListResponse": ("map HealthCheckResponse statuses = 1",),
    },
    enums={"HealthCheckResponse.ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
    services={
        "Health": (
            Rpc("Check", "HealthCheckRequest", "HealthCheckResponse"),
            Rpc("List", "HealthListRequest", "HealthListResponse"),
            Rpc("Watch", "HealthCheckRequest", "HealthCheckResponse", streams=True),
        )
    },
)


def _reflection(version: str) -> ProtoFile:
    return ProtoFile(
        name=f"headrace/reflection_{version}.proto",
        package=f"grpc.reflection.{version}",
        messages={
            "ServerReflectionRequest": (
                "string host = 1",
                "oneof.message_request string file_by_filename = 3",
                "oneof.message_request string file_containing_symbol = 4",
                "oneof.message_request ExtensionRequest file_containing_extension = 5",
                "oneof.message_request string all_extension_numbers_of_type = 6",
                "oneof.message_request string list_services = 7",
            ),
            "ExtensionRequest": ("string containing_type = 1", "int32 extension_number = 2"),
            "ServerReflectionResponse": (
                "string valid_host = 1",
                "ServerReflectionRequest original_request = 2",
                "oneof.message_response FileDescriptorResponse file_descriptor_response = 4",
                "oneof.message_response ExtensionNumberResponse all_extension_numbers_response = 5",
                "oneof.message_response ListServiceResponse list_services_response = 6",
                "oneof.message_response ErrorResponse error_response = 7",
            ),
            "FileDescriptorResponse": ("repeated bytes file_descriptor_proto = 1",),
            "ExtensionNumberResponse": ("string base_type_name = 1", "repeated int32 extension_number = 2"),
            "ListServiceResponse": ("repeated ServiceResponse service = 1",),
            "ServiceResponse": ("string name = 1",),
            "ErrorResponse": ("int32 error_code = 1", "string error_message = 2"),
        },
        services={
            "ServerReflection": (
                Rpc(
                    "ServerReflectionInfo",
                    "ServerReflectionRequest",
                    "ServerReflectionResponse",
                    streams=True,
                ),
            )
        },
    )


REFLECTION_V1: Final = _reflection("v1")
REFLECTION_V1ALPHA: Final = _reflection("v1alpha")

FILES: Final = (INFERENCE, REPOSITORY, HEALTH, REFLECTION_V1, REFLECTION_V1ALPHA)
