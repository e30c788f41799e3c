"""The documentation of the routes: an OpenAPI 3.1 document, and an HTML page without scripts."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from math import prod
from typing import Any, Final
from urllib.parse import quote

import msgspec
import orjson

from headrace.core.errors import AccessError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.jobs.access import Scope
from headrace.server.application import Guard
from headrace.server.errors import STATUS_DESCRIPTIONS
from headrace.server.http import Exchange
from headrace.server.model_documents import ErrorDocument, InferenceRequestDocument
from headrace.server.routes import JSON, QUEUE_NAME, Json, Operation, Route
from headrace.server.sessions import cookie_name

_REFERENCE: Final = "#/components/schemas/{name}"
_EXAMPLE_VALUES_MAX: Final = 64
_SEGMENT: Final[Json] = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
_PATH_SCHEMAS: Final[dict[str, Json]] = {
    "sequence_id": {"type": "string", "minLength": 1, "description": "The id may contain slashes."},
    "queue": {"type": "string", "pattern": QUEUE_NAME},
    "endpoint": {"type": "string", "pattern": QUEUE_NAME},
    "schedule": {"type": "string", "pattern": QUEUE_NAME},
}
_NO_NUL: Final = r"^[^\x00]*$"
_HTML: Final = b"text/html; charset=utf-8"
_DESCRIPTION: Final = (
    "Models: the Open Inference Protocol (V2), with streaming, generation, statistics and the model "
    "repository. Jobs run in the background: submit a job now and fetch its result later; times are "
    "milliseconds since the epoch. If the server requires keys, send `Authorization: Bearer KEY`."
)


def documentation_routes(
    routes: Sequence[Route],
    guard: Guard,
    *,
    version: str,
    ready_models: Callable[[], Sequence[ModelMetadata]] = list,
) -> list[Route]:
    """Return the routes of the documentation of `routes`.

    Every client may read it. Only clients that may call models see them in it.
    """

    def visible_models(exchange: Exchange) -> Sequence[ModelMetadata]:
        try:
            key = guard.authenticate(exchange.method, exchange.headers, Scope.INFER)
        except AccessError:
            return ()
        return [model for model in ready_models() if key.permits_model(model.name)]

    async def document(exchange: Exchange) -> None:
        schemes = {} if guard.access.open else {"key": {"type": "http", "scheme": "bearer"}}
        if schemes and guard.sessions is not None:
            schemes["session"] = {"type": "apiKey", "in": "cookie", "name": cookie_name(exchange.headers)}
        found = openapi_document(routes, version, visible_models(exchange), security_schemes=schemes)
        await exchange.respond(200, orjson.dumps(found))

    async def page(exchange: Exchange) -> None:
        text = docs_page(routes, version, visible_models(exchange), exchange.origin)
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        await exchange.respond(200, text.encode(), _HTML, ((b"content-security-policy", policy),))

    return [
        Route("GET", path, action, (), handler, is_lenient=True)
        for path, action, handler in (
            ("/docs", "docs", page),
            ("/v2/docs", "docs", page),
            ("/openapi.json", "openapi", document),
            ("/v2/docs/dataplane.json", "openapi", document),
        )
    ]


def openapi_document(
    routes: Iterable[Route],
    version: str,
    models: Sequence[ModelMetadata] = (),
    *,
    security_schemes: Mapping[str, Json] | None = None,
) -> Json:
    """Return the OpenAPI 3.1 document of the described routes, with an example for each of `models`.

    With `security_schemes`, the ways to send a key, the document says which routes need one.
    """
    guarded = bool(security_schemes)
    described = [(route, route.operation) for route in routes if route.operation is not None]
    references, schemas = _schemas(_documents(operation for _, operation in described))
    known = {
        "model_name": sorted({m.name for m in models}),
        "model_version": sorted({m.version for m in models if m.version}),
    }
    paths: Json = {}
    for route, operation in described:
        path = route.shown_path
        item = paths.setdefault(path, {})
        parameters = [
            _path_parameter(segment[1:-1], known) for segment in path.split("/") if segment.startswith("{")
        ]
        if parameters:
            item["parameters"] = parameters
        item[route.method.lower()] = _operation(route, operation, references, models, guarded=guarded)
    components: Json = {"schemas": schemas}
    document: Json = {
        "openapi": "3.1.0",
        "info": {"title": "headrace", "version": version, "description": _DESCRIPTION},
        # Relative to the address from which the client read the document.
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }
    if security_schemes:
        components["securitySchemes"] = dict(security_schemes)
        document["security"] = [{name: []} for name in security_schemes]
    return document


def _documents(operations: Iterable[Operation]) -> tuple[Any, ...]:
    """Return the types of all documents, each once."""
    kinds: list[Any] = [ErrorDocument]
    for operation in operations:
        kinds += [*operation.request, *operation.response]
        kinds += (kind for kind, _ in operation.alternatives.values())
    return tuple(dict.fromkeys(kinds))


@cache
def _schemas(documents: tuple[Any, ...]) -> tuple[dict[Any, Json], Json]:
    """Return the schemas of types, which mostly are references, and the schemas by name."""
    found, components = msgspec.json.schema_components(documents, ref_template=_REFERENCE)
    return dict(zip(documents, found, strict=True)), components


def _any_of(references: dict[Any, Json], *kinds: Any) -> Json:
    """Return JSON content that has one of the types."""
    options = [references[kind] for kind in kinds]
    return {JSON: {"schema": options[0] if len(options) == 1 else {"anyOf": options}}}


def _path_parameter(name: str, known: dict[str, list[str]]) -> Json:
    schema = {"type": "string", "enum": known[name]} if known.get(name) else _PATH_SCHEMAS.get(name, _SEGMENT)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation(
    route: Route,
    operation: Operation,
    references: dict[Any, Json],
    models: Sequence[ModelMetadata],
    *,
    guarded: bool,
) -> Json:
    content = dict(operation.content)
    if operation.response:
        content = _any_of(references, *operation.response) | content
    success: Json = {"description": operation.success}
    if content:
        success["content"] = content
    responses: Json = {str(operation.status): success, **operation.responses}
    for status, (kind, description) in operation.alternatives.items():
        kinds = (kind, ErrorDocument) if status >= 400 else (kind,)
        responses[str(status)] = {"description": description, "content": _any_of(references, *kinds)}
    errors = {*operation.errors, *((401, 403, 429) if route.scopes else ())}
    for status in sorted(errors):
        error = {"description": STATUS_DESCRIPTIONS[status], "content": _any_of(references, ErrorDocument)}
        responses.setdefault(str(status), error)
    found: Json = {"summary": operation.summary, "responses": responses}
    if operation.description:
        found["description"] = operation.description
    found["tags"] = [_tag(route.path)]
    query = () if operation.query is None else _query_parameters(operation.query)
    parameters = [*operation.parameters, *query]
    if parameters:
        found["parameters"] = parameters
    if operation.request or operation.request_content:
        found["requestBody"] = _request_body(operation, references, models)
    if guarded and not route.scopes:
        found["security"] = []
    return found


def _tag(path: str) -> str:
    """Return the group of a route, which is the second segment of its path, such as ``jobs``."""
    segments = path.split("/")
    return segments[2] if len(segments) > 2 else "server"


@cache
def _query_parameters(kind: type[msgspec.Struct]) -> list[Json]:
    _, components = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    own = components.pop(kind.__name__)
    parameters: list[Json] = []
    for name, schema in own["properties"].items():
        inlined = _without_nul(schema)
        items = inlined.get("items", {})
        if "$ref" in items:
            inlined["items"] = components[items["$ref"].rpartition("/")[2]]
        parameter: Json = {"name": name, "in": "query", "required": False, "schema": inlined}
        if "description" in inlined:
            parameter["description"] = inlined.pop("description")
        parameters.append(parameter)
    return parameters


def _without_nul(schema: Json) -> Json:
    """Return the schema of a parameter. A text has no NUL character: `read_pairs` refuses the query."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_without_nul(each) for each in schema["anyOf"]]}
    if "items" in schema:
        return {**schema, "items": _without_nul(schema["items"])}
    is_any_text = schema.get("type") == "string" and "pattern" not in schema and "enum" not in schema
    return {**schema, "pattern": _NO_NUL} if is_any_text else dict(schema)


def _request_body(operation: Operation, references: dict[Any, Json], models: Sequence[ModelMetadata]) -> Json:
    content: Json = _any_of(references, *operation.request) if operation.request else {}
    examples = {
        m.name: {"value": {"inputs": [_example(s) for s in m.inputs]}}
        for m in models
        if m.inputs and all(map(_is_short, m.inputs))
    }
    if examples and operation.request == (InferenceRequestDocument,):
        content[JSON]["examples"] = examples
    body: Json = {
        "required": operation.request_required,
        "content": content | dict(operation.request_content),
    }
    if operation.request_description:
        body["description"] = operation.request_description
    return body


_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2733; background: #f6f8fa; margin: 0; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.8rem; margin: 0; } h1 small { color: #5b6b7b; font-weight: normal; font-size: 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid #d5dde5; }
th, td { text-align: left; padding: .4rem .8rem; border-top: 1px solid #e6ebf0; vertical-align: top; }
th { background: #eef2f6; font-weight: 600; } td:first-child { white-space: nowrap; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: #1c2733; color: #e8eef4; padding: .8rem 1rem; overflow-x: auto; }
.verb { display: inline-block; width: 3.2rem; font-weight: 600; color: #0b6b57; }
"""


def docs_page(routes: Iterable[Route], version: str, models: Sequence[ModelMetadata], origin: str) -> str:
    """Return the HTML page: the ready models with an example request each, and every described route.

    The examples call the server at `origin`, such as ``http://localhost:8080``.
    """
    described = "".join(_model_section(model, origin) for model in models) or "<p>No model is ready.</p>"
    rows = "".join(
        f"<tr><td><span class=verb>{route.method}</span> <code>{escape(route.shown_path)}</code></td>"
        f"<td>{escape(route.operation.summary)}</td></tr>"
        for route in routes
        if route.operation is not None
    )
    errors = "".join(
        f"<tr><td>{code}</td><td>{escape(why)}</td></tr>" for code, why in STATUS_DESCRIPTIONS.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>headrace</title>"
        f"<style>{_STYLE}</style><main>"
        f"<h1>headrace <small>{escape(version)}</small></h1>"
        "<p>See also the <a href='/openapi.json'>OpenAPI document</a>.</p>"
        f"<h2>Models</h2>{described}<h2>Routes</h2><table>{rows}</table>"
        f'<h2>Errors</h2><p>Every error response is <code>{{"error": "…"}}</code>.</p>'
        f"<table>{errors}</table></main></html>"
    )


def _model_section(model: ModelMetadata, origin: str) -> str:
    version = f" <small>version {escape(model.version)}</small>" if model.version else ""
    rows = "".join(
        f"<tr><td>{kind}</td><td><code>{escape(s.name)}</code></td><td>{escape(s.datatype)}</td>"
        f"<td>{_shape(s)}</td></tr>"
        for kind, specs in (("input", model.inputs), ("output", model.outputs))
        for s in specs
    )
    table = (
        f"<table><tr><th></th><th>name</th><th>datatype</th><th>shape</th></tr>{rows}</table>" if rows else ""
    )
    verb = "infer" if model.can_predict else "infer_stream"
    return f"<h3>{escape(model.name)}{version}</h3>{table}<pre>{escape(_curl(model, origin, verb))}</pre>"


def _shape(spec: TensorSpec) -> str:
    return (
        "unspecified"
        if spec.shape is None
        else escape(" x ".join("n" if d < 0 else str(d) for d in spec.shape))
    )


def _curl(model: ModelMetadata, origin: str, verb: str) -> str:
    inputs = [_example(s) for s in model.inputs or (TensorSpec("x", "FP32", (-1, 1)),)]
    url = shlex.quote(origin + quote(f"/v2/models/{model.name}/{verb}"))
    body = shlex.quote(json.dumps({"inputs": inputs}, ensure_ascii=False))
    return f"curl {url} -H 'Content-Type: application/json' \\\n  -d {body}"


def _example(spec: TensorSpec) -> Json:
    shape = [1, *(max(d, 1) for d in (spec.shape or (-1, 1))[1:])]
    text = spec.datatype == "BYTES"
    value: str | bool | float = 0.5 if spec.datatype in ("FP16", "FP32", "FP64", "BF16") else 1
    if text or spec.datatype == "BOOL":
        value = "text" if text else True
    data = [value] * prod(shape) if _is_short(spec) else [value, "…"]
    return {"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data}


def _is_short(spec: TensorSpec) -> bool:
    """Return True if an example of one row is short enough to be written as JSON."""
    sizes = (spec.shape or ())[1:]
    return prod(max(size, 1) for size in sizes) <= _EXAMPLE_VALUES_MAX and spec.datatype != "BF16"
