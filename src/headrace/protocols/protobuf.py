"""Message classes of all gRPC services, from a private descriptor pool.

The only module that imports protobuf (extra `grpc`). The .proto files in `proto` define the messages;
`make descriptors` compiles them to the descriptor set that is loaded here.

protobuf's default pool belongs to the whole process. mlserver, tritonclient and kserve each add a
package `inference` to it, and the second one fails. headrace adds nothing there, so any of them can
be imported beside it.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import DataError, MissingExtraError

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
except ImportError as error:
    raise MissingExtraError("grpc", "gRPC") from error

# The classes of the pool have no static types.
_pb: Any = descriptor_pb2
_factory: Any = message_factory
_DecodeError: type[Exception] = message.DecodeError

INFERENCE: Final = "inference"
REPOSITORY: Final = "inference.model_repository"
HEALTH: Final = "grpc.health.v1"
REFLECTIONS: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
EXTERNAL_SCALER: Final = "externalscaler"

_DESCRIPTORS: Final = Path(__file__).parent / "proto" / "descriptors.binpb"
_POOL: Any = descriptor_pool.DescriptorPool()


def file_descriptors() -> tuple[Any, ...]:
    """Return a new FileDescriptorProto of each .proto file."""
    return tuple(_pb.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file)


for _file in file_descriptors():
    _POOL.AddSerializedFile(_file.SerializeToString())


@cache
def message_class(name: str, *, package: str = INFERENCE) -> Any:
    """Return the class of a message of the .proto files. Raises KeyError for any other name."""
    return _factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{name}"))


def encode_message(kind: str, /, *, package: str = INFERENCE, **fields: Any) -> bytes:
    """Return the bytes of a message of the .proto files with these fields."""
    return message_class(kind, package=package)(**fields).SerializeToString()


def parse_message(message_type: Any, data: bytes) -> Any:
    """Return the message that the bytes encode. Raises DataError for other bytes."""
    try:
        return message_type.FromString(data)
    except _DecodeError as error:
        name = message_type.DESCRIPTOR.name
        raise DataError(f"the {len(data)} bytes are not a {name} message: {error}") from None
