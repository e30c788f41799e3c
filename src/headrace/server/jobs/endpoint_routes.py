"""The routes of endpoints."""

from typing import Annotated, Any, Final, cast

import msgspec

from headrace.core.errors import DataError
from headrace.core.settings_reader import settings_structure
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.access.endpoints import (
    Endpoint,
    EndpointSettings,
    endpoint_document,
    read_endpoint_name,
)
from headrace.server.http import Exchange
from headrace.server.jobs.api import DOCUMENT_BYTES_MAX, ERRORS, ApiHandlers, respond_json
from headrace.server.jobs.documents import (
    MODEL_NAME,
    PLAIN_TEXT,
    EndpointDocument,
    EndpointQuery,
    EndpointsDocument,
)
from headrace.server.routes import QUEUE_NAME, read_query, route

_SEE: Final = (Scope.READ, Scope.SUBMIT)
_ADMIN: Final = (Scope.ADMIN,)
_ENDPOINT: Final = "/v1/endpoints/{endpoint}"
_PATTERNS: Final = {
    "model": f"^$|{MODEL_NAME}",
    "queue": QUEUE_NAME,
    "output_uri": PLAIN_TEXT,
}
_SETTINGS: Final[Any] = Annotated[
    settings_structure(EndpointSettings),
    msgspec.Meta(
        extra_json_schema={"properties": {name: {"pattern": text} for name, text in _PATTERNS.items()}}
    ),
]


class EndpointHandlers(ApiHandlers):
    """The handlers of the routes of endpoints. Their docstrings are the descriptions for clients."""

    @route("GET", "/v1/endpoints", _SEE, EndpointsDocument, errors=ERRORS)
    async def list_endpoints(self, exchange: Exchange) -> None:
        """List the endpoints that the key may use, sorted by name. Keys with `operate` see all."""
        endpoints = await self._run(self._service.endpoints, exchange.client)
        await respond_json(
            exchange, {"endpoints": [_document(exchange.client, endpoint) for endpoint in endpoints]}
        )

    @route("GET", _ENDPOINT, _SEE, EndpointDocument, query=EndpointQuery, errors=(*ERRORS, 404))
    async def get_endpoint(self, exchange: Exchange) -> None:
        """Return an endpoint, or one of its versions."""
        version = read_query(EndpointQuery, exchange.query).version
        key, name = exchange.client, _name_of(exchange)
        await respond_json(
            exchange, _document(key, await self._run(self._service.endpoint, key, name, version))
        )

    @route("PUT", _ENDPOINT, _ADMIN, EndpointDocument, request=(_SETTINGS,), errors=(*ERRORS, 408, 413))
    async def set_endpoint(self, exchange: Exchange) -> None:
        """Create an endpoint, or replace all its settings.

        Changed settings make a new version; jobs that were submitted before keep theirs. A webhook that
        is repeated without its secret keeps the stored secret.
        """
        table = _read_object(await exchange.body(DOCUMENT_BYTES_MAX))
        key, name = exchange.client, _name_of(exchange)
        await respond_json(
            exchange, _document(key, await self._run(self._service.set_endpoint, key, name, table))
        )

    @route("DELETE", _ENDPOINT, _ADMIN, status=204, success="The endpoint is deleted.", errors=(*ERRORS, 404))
    async def delete_endpoint(self, exchange: Exchange) -> None:
        """Delete an endpoint. Its jobs stay, and its versions can still be read."""
        await self._run(self._service.delete_endpoint, exchange.client, _name_of(exchange))
        await exchange.respond(204)

    @route("GET", f"{_ENDPOINT}/versions", _SEE, EndpointsDocument, errors=(*ERRORS, 404))
    async def endpoint_versions(self, exchange: Exchange) -> None:
        """List the last 100 versions of an endpoint, newest first."""
        key = exchange.client
        versions = await self._run(self._service.endpoint_versions, key, _name_of(exchange))
        await respond_json(exchange, {"endpoints": [_document(key, version) for version in versions]})


def _document(key: ApiKey, endpoint: Endpoint) -> dict[str, Any]:
    return endpoint_document(endpoint, with_notify=Scope.OPERATE in key.granted)


def _name_of(exchange: Exchange) -> str:
    return read_endpoint_name(exchange.arguments["endpoint"])


def _read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Members that are null are left out, as settings have no null."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError("the body must be a JSON object with the settings of an endpoint")
    return {name: value for name, value in cast("dict[str, Any]", found).items() if value is not None}
