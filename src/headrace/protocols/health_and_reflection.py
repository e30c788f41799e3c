"""Messages of the services that any gRPC server offers: health and reflection.

The services themselves are in `headrace.server.health_and_reflection`.
"""

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from headrace.core.errors import DataError
from headrace.protocols.protobuf import HEALTH, INFERENCE, file_descriptors, message_class, parse_message

# Health

SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

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
        served: The packages of the services that the server offers. No other is described.
        wrapped_streams: Describe streams of responses in Triton's form.
    """

    def __init__(self, package: str, served: Container[str], *, wrapped_streams: bool = False) -> None:
        self._request: Any = message_class("ServerReflectionRequest", package=package)
        self._response: Any = message_class("ServerReflectionResponse", package=package)
        self._services: list[str] = []
        self._files: dict[str, bytes] = {}
        self._file_of: dict[str, str] = {}
        for file in file_descriptors():
            if file.package not in served:
                continue
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
