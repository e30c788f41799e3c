"""Message classes from a private descriptor pool.

The only module that imports protobuf (extra `grpc`).

protobuf's default pool belongs to the whole process. mlserver, tritonclient and kserve each add a
package `inference` to it, and the second one fails. headrace adds nothing there, so any of them can
be imported beside it.
"""

from collections.abc import Iterable
from typing import Any, Final

from headrace.core.errors import DataError, MissingExtraError
from headrace.protocols.oip_grpc.schema import FILES, INFERENCE, ProtoFile

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
except ImportError as error:
    raise MissingExtraError("grpc", "the Open Inference Protocol over gRPC") from error

# The classes of the pool have no static types.
_pb: Any = descriptor_pb2
_factory: Any = message_factory
_DecodeError: type[Exception] = message.DecodeError

_FIELD: Any = _pb.FieldDescriptorProto
_SCALARS: Final = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "uint32", "bool", "string", "bytes")
}


def file_descriptor(file: ProtoFile) -> Any:
    """Return the FileDescriptorProto of a table."""
    descriptor_proto = _pb.FileDescriptorProto(name=file.name, package=file.package, syntax="proto3")
    descriptors: dict[str, Any] = {}

    def split_name(name: str) -> tuple[Any, str]:
        parent, _, short = name.rpartition(".")
        return descriptors.get(parent), short

    for name, fields in file.messages.items():
        parent, short = split_name(name)
        descriptors[name] = (descriptor_proto.message_type if parent is None else parent.nested_type).add(
            name=short
        )
        _add_fields(descriptors[name], fields, file, f"{file.package}.{name}")
    for name, values in file.enums.items():
        parent, short = split_name(name)
        enum = (descriptor_proto if parent is None else parent).enum_type.add(name=short)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, rpcs in file.services.items():
        service = descriptor_proto.service.add(name=name)
        for rpc in rpcs:
            service.method.add(
                name=rpc.name,
                input_type=f".{file.package}.{rpc.request}",
                output_type=f".{file.package}.{rpc.response}",
                server_streaming=rpc.streams,
                # Only the stream of a health watch has no client side.
                client_streaming=rpc.streams and rpc.name != "Watch",
            )
    return descriptor_proto


def _add_fields(descriptor: Any, fields: Iterable[str], file: ProtoFile, full_name: str) -> None:
    groups: list[str] = []
    for line in fields:
        declared, _, number = line.partition(" = ")
        *label, kind, name = declared.split()
        field = descriptor.field.add(name=name, number=int(number), label=_FIELD.LABEL_OPTIONAL)
        if label == ["map"]:
            _make_map(descriptor, field, kind, file, full_name)
            continue
        _set_type(field, kind, file)
        if label == ["repeated"]:
            field.label = _FIELD.LABEL_REPEATED
        elif label:
            group = label[0].removeprefix("oneof.")
            if group not in groups:
                groups.append(group)
                descriptor.oneof_decl.add(name=group)
            field.oneof_index = groups.index(group)


def _make_map(descriptor: Any, field: Any, kind: str, file: ProtoFile, full_name: str) -> None:
    entry = descriptor.nested_type.add(name=f"{field.name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _set_type(entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL), "string", file)
    _set_type(entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL), kind, file)
    field.label = _FIELD.LABEL_REPEATED
    field.type = _FIELD.TYPE_MESSAGE
    field.type_name = f".{full_name}.{entry.name}"


def _set_type(field: Any, kind: str, file: ProtoFile) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _FIELD.TYPE_ENUM if kind in file.enums else _FIELD.TYPE_MESSAGE
    field.type_name = f".{file.package}.{kind}"


_POOL: Any = descriptor_pool.DescriptorPool()
for _file in FILES:
    _POOL.AddSerializedFile(file_descriptor(_file).SerializeToString())


def message_class(name: str, *, package: str = INFERENCE.package) -> Any:
    """Return the class of a message in `schema`. Raises KeyError for a message that is not in it."""
    return _factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{name}"))


def parse_message(message_type: Any, data: bytes) -> Any:
    """Return the message that the bytes encode. Raises DataError for other bytes."""
    try:
        return message_type.FromString(data)
    except _DecodeError as error:
        name = message_type.DESCRIPTOR.name
        raise DataError(f"the {len(data)} bytes are not a {name} message: {error}") from None
