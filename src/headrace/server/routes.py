"""The routes of an application: one table for dispatch, access and the OpenAPI document."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import FunctionType
from typing import Any, Final, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from headrace.core.errors import DataError
from headrace.core.json_numbers import convert_json
from headrace.jobs.access import Scope
from headrace.server.errors import ErrorStatus
from headrace.server.http import Exchange, Headers

Json = dict[str, Any]
Handler = Callable[[Exchange], Awaitable[None]]
"""A handler of an exchange. `Exchange.arguments` has the parameters of the path."""
ErrorFormat = Callable[[Exception, ErrorStatus], tuple[int, bytes, Headers]]
"""Returns the status, the JSON body and the headers of an error response."""
_Method = TypeVar("_Method", bound=FunctionType)
_DECLARED: Final = "declared_routes"
_Document = TypeVar("_Document", bound=msgspec.Struct)

JSON: Final = "application/json"
_SENTENCE_END: Final = re.compile(r"\.(?:\s|$)")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
QUEUE_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
BINARY: Final[Json] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of a route in the OpenAPI document.

    Documents are types that msgspec describes. `request_content` and `content` are further media types
    of the bodies.
    """

    summary: str
    description: str = ""
    query: type[msgspec.Struct] | None = None
    """The type of the query parameters, which `read_query` returns."""
    parameters: tuple[Json, ...] = ()
    """Headers, and query parameters that the handler reads by itself."""
    request: tuple[Any, ...] = ()
    """The types that a JSON body may have."""
    request_required: bool = True
    request_description: str = ""
    request_content: Mapping[str, Json] = field(default_factory=dict[str, Json])
    response: tuple[Any, ...] = ()
    """The types that the JSON body of a success may have."""
    content: Mapping[str, Json] = field(default_factory=dict[str, Json])
    status: int = 200
    success: str = "Success."
    """The description of a success."""
    alternatives: Mapping[int, tuple[Any, str]] = field(default_factory=dict[int, tuple[Any, str]])
    """The types and descriptions of further JSON responses by status."""
    responses: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Further responses by status, as they are in the document."""
    errors: tuple[int, ...] = ()
    """The statuses of errors; those of the key are added."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    A segment ``{name}`` of the path is a parameter. A final ``{name:path}`` may contain slashes.
    """

    method: str
    path: str
    action: str
    """The name in metrics and traces."""
    scopes: tuple[Scope, ...]
    """The scopes of which the client's key needs one; empty for routes without a key."""
    handler: Handler
    operation: Operation | None = None
    """None hides the route from the OpenAPI document."""
    is_lenient: bool = False
    """Accept HEAD instead of GET, and a slash after the path, as servers of the inference protocol do."""
    has_request_id: bool = False
    """Send an ``X-Request-Id`` in every response, not only if the client sent one."""
    error_format: ErrorFormat | None = None
    """The format of errors, for clients of other systems; None is the format of all other routes."""

    @property
    def shown_path(self) -> str:
        """The path as people and OpenAPI write it."""
        return self.path.replace(":path}", "}")


def route(
    method: str,
    path: str,
    scopes: tuple[Scope, ...],
    response: Any = (),
    *,
    is_hidden: bool = False,
    **described: Any,
) -> Callable[[_Method], _Method]:
    """Return a decorator that declares a method as the handler of a route; see `routes_of`.

    The name of the method is the action. Its docstring is the description for clients, and the first
    sentence of it the summary. `response` is the type of the JSON body of a success, or a tuple of the
    types that it may have; `described` are further fields of `Operation`.
    """

    def declare(handler: _Method) -> _Method:
        description = inspect.getdoc(handler) or ""
        summary = _SENTENCE_END.split(description, 1)[0]
        kinds = cast("tuple[Any, ...]", response if isinstance(response, tuple) else (response,))
        operation = None if is_hidden else Operation(summary, description, response=kinds, **described)
        declared = handler.__dict__.setdefault(_DECLARED, [])
        # The handler is a plain function here; `routes_of` binds it to an object.
        declared.append(Route(method, path, handler.__name__, scopes, cast("Any", handler), operation))
        return handler

    return declare


def routes_of(handlers: object) -> list[Route]:
    """Return the routes that the methods of an object were declared for, in the order of the class."""
    return [
        replace(declared, handler=getattr(handlers, name))
        for name, method in vars(type(handlers)).items()
        for declared in getattr(method, _DECLARED, ())
    ]


def read_query(kind: type[_Document], query: bytes) -> _Document:
    """Return the parameters of a query string. A parameter may be repeated if its field is a list.

    Raises:
        DataError: A parameter is invalid. Unknown parameters are ignored.
    """
    lists, integers = _query_fields(kind)
    values: dict[str, Any] = {}
    for name, text in read_pairs(query):
        if name in integers and not _INTEGER.fullmatch(text):
            # msgspec also reads "1e3" and "1.0".
            raise DataError(f"{name}: must be a whole number, not {ascii(text)[:40]}")
        if name in lists:
            values.setdefault(name, []).append(text)
        else:
            values[name] = text
    return convert(values, kind, strict=False)


@cache
def _query_fields(kind: type[msgspec.Struct]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the fields that are lists, and of those that are integers."""
    _, components = msgspec.json.schema_components([kind])
    schemas = {name: str(schema) for name, schema in components[kind.__name__]["properties"].items()}
    lists, integers = (
        frozenset(name for name, schema in schemas.items() if f"'type': '{wanted}'" in schema)
        for wanted in ("array", "integer")
    )
    return lists, integers


def read_pairs(query: bytes) -> list[tuple[str, str]]:
    """Return the names and values of a query string, in order.

    Raises:
        DataError: The query has a NUL character, which databases refuse.
    """
    if b"%00" in query:
        raise DataError("the query contains a NUL character")
    return parse_qsl(query.decode("latin-1"), keep_blank_values=True)


def read_json(kind: type[_Document], body: bytes) -> _Document:
    """Return a JSON body as a document.

    Raises:
        DataError: The body is not JSON, or a field is invalid.
    """
    try:
        return convert(msgspec.json.decode(body), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"the body is not JSON: {error}") from None


def convert(values: Any, kind: type[_Document], *, strict: bool = True) -> _Document:
    """Return values as a document. Text becomes numbers and booleans unless `strict` is true.

    Numbers without a fraction, such as ``5.0``, are whole numbers.

    Raises:
        DataError: A field is invalid.
    """
    try:
        return convert_json(values, kind) if strict else msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$.")
        raise DataError(f"{place[:-1]}: {why}" if place else why) from None
