"""Server reflection: the list of services, and the descriptors of their messages."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.core.errors import DataError
from headrace.protocols.oip_grpc.messages import (
    INFERENCE,
    file_descriptors,
    message_class,
    parse_message,
)

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
