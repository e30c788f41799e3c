"""The documentation of the REST API: an OpenAPI 3.1 document, and an HTML page without scripts."""

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from math import prod
from typing import Any, Final
from urllib.parse import quote

from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.oip_json import HEADER_LENGTH
from headrace.protocols.oip_sequences import LIMIT_DEFAULT, LIMIT_MAX

_Json = dict[str, Any]

_EXAMPLE_VALUES_MAX: Final = 64
_DATATYPES: Final = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES", "BF16",
)  # fmt: skip

_PARAMETERS: Final[_Json] = {"type": "object", "description": "Names with values of any JSON type."}
_NULLABLE_PARAMETERS: Final[_Json] = {**_PARAMETERS, "type": ["object", "null"]}
_NULLABLE_ID: Final[_Json] = {"type": ["string", "null"]}
_JSON_BYTES: Final[_Json] = {
    "name": HEADER_LENGTH,
    "in": "header",
    "description": (
        "Length of the JSON part in bytes, if binary tensors follow it; 0 for one raw tensor without JSON."
    ),
    "schema": {"type": "integer", "minimum": 0},
}
_SEQUENCE_ID: Final[_Json] = {
    "name": "sequence_id",
    "in": "path",
    "required": True,
    "description": "The id of the sequence. It may contain slashes.",
    "schema": {"type": "string", "minLength": 1},
}
_LIMIT: Final[_Json] = {
    "name": "limit",
    "in": "query",
    "description": "Maximum number of listed sequences.",
    "schema": {"type": "integer", "minimum": 0, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
}
_BINARY: Final[_Json] = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "JSON, followed by the values of each tensor with binary_data_size.",
    }
}
_EVENT: Final[_Json] = {
    "type": "object",
    "properties": {"data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["data"],
}
_ERRORS: Final = {
    "400": "The request is malformed or does not fit the model.",
    "401": "The API key is missing or unknown.",
    "403": "The API key lacks the role, or this server does not offer the operation.",
    "404": "The model or version is unknown.",
    "409": "The state of the sequence is lost, usually with its process.",
    "410": "No sequence has this id any more.",
    "408": "The body did not arrive in time.",
    "413": "The body exceeds the size limit, or has more rows than the queue holds.",
    "422": "The model refused rows of the request.",
    "429": "The queue of the model or of the sequence is full; retry after Retry-After seconds.",
    "500": "The model failed on the request.",
    "501": "This part of the protocol is not supported; the text names an alternative.",
    "503": "The model is not ready, too many sequences are live, or the server is stopping.",
    "504": "The timeout of the request has passed.",
}


def openapi_document(version: str, models: Sequence[ModelMetadata] = ()) -> _Json:
    """Return the OpenAPI 3.1 document of the REST API, with an example for each of `models`."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": version,
            "description": (
                "The Open Inference Protocol (V2), with streaming, generation, statistics and the model "
                "repository."
            ),
        },
        # Relative to the address from which the client read the document.
        "servers": [{"url": "/"}],
        "paths": _paths(models),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # A key is needed only if the server has keys.
        "security": [{}, {"key": []}],
    }


def _paths(models: Sequence[ModelMetadata] = ()) -> _Json:
    name = _path_parameter("model_name", sorted({m.name for m in models}))
    model_version = _path_parameter("model_version", sorted({m.version for m in models if m.version}))
    paths: _Json = {
        "/v2": {"get": _operation("Server metadata", "ServerMetadata", errors=("401",))},
        "/v2/health/live": {"get": _operation("Liveness of the server", "Live")},
        "/v2/health/ready": {"get": _ready("Readiness of the server", "Ready")},
        "/v2/models": {"get": _operation("Names of the ready models", "ModelNames", errors=("401",))},
        "/v2/models/stats": {"get": _operation("Statistics of every model", "Statistics", errors=("401",))},
        "/v2/repository/index": {
            "post": _operation(
                "Index of models and versions",
                "Index",
                "IndexRequest",
                errors=("400", "401", "403", "408", "413"),
            )
        },
    }
    for verb in ("load", "unload"):
        errors = ("400", "401", "403", "404", "408", "413", "501", "503")
        operation = _operation(f"{verb.capitalize()} a model", "Changed", "ChangeRequest", errors=errors)
        paths[f"/v2/repository/models/{{model_name}}/{verb}"] = {"parameters": [name], "post": operation}
    for prefix, path_parameters in (
        ("/v2/models/{model_name}", [name]),
        ("/v2/models/{model_name}/versions/{model_version}", [name, model_version]),
    ):
        for action, operation in _model_operations(models).items():
            paths[f"{prefix}{action}"] = {"parameters": path_parameters, **operation}
        path = f"{prefix}/sequences/{{sequence_id}}"
        paths[path] = {"parameters": [*path_parameters, _SEQUENCE_ID], "delete": _cancelling()}
    return paths


def _cancelling() -> _Json:
    return {
        "summary": "Cancel a sequence",
        "responses": {
            "204": {"description": "The sequence and its waiting requests ended."},
            **_failures(("401", "403", "404", "503")),
        },
    }


def _path_parameter(name: str, known: Sequence[str]) -> _Json:
    schema: _Json = {"type": "string", "minLength": 1, "pattern": "^[^/]+$"}
    if known:
        schema = {"type": "string", "enum": list(known)}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _model_operations(models: Sequence[ModelMetadata]) -> dict[str, _Json]:
    metadata_errors = ("401", "404", "503")
    request_schema = tuple(_ERRORS)
    infer = _operation("Inference", "InferenceResponse", "InferenceRequest", errors=request_schema)
    infer_stream = _streaming("Inference with a stream of events", "InferenceRequest", request_schema)
    generated = _operation("Text generation", "Generated", "GenerateRequest", errors=request_schema)
    generated_stream = _streaming(
        "Text generation with a stream of events", "GenerateRequest", request_schema
    )
    generated["responses"]["200"]["content"] = _either("Generated", "InferenceResponse")
    for operation in (infer, generated):
        operation["responses"]["200"]["content"]["application/octet-stream"] = _BINARY
    for operation in (infer, infer_stream, generated, generated_stream):
        operation["parameters"] = [_JSON_BYTES]
        operation["requestBody"]["content"]["application/octet-stream"] = _BINARY
    listing = _operation("Live sequences of a model", "Sequences", errors=("400", "401", "403", "404", "503"))
    listing["parameters"] = [_LIMIT]
    examples = {
        m.name: {"value": {"inputs": [_example(s) for s in m.inputs]}}
        for m in models
        if m.inputs and all(map(_is_short, m.inputs))
    }
    for operation in (infer, infer_stream) if examples else ():
        operation["requestBody"]["content"]["application/json"]["examples"] = examples
    return {
        "": {"get": _operation("Model metadata", "ModelMetadata", errors=metadata_errors)},
        "/ready": {"get": _ready("Readiness of a model", "ModelReady", errors=("404",))},
        "/stats": {"get": _operation("Statistics of a model", "Statistics", errors=metadata_errors)},
        "/config": {
            "get": _operation("Model configuration in Triton's format", "ModelConfig", errors=metadata_errors)
        },
        "/sequences": {"get": listing},
        "/infer": {"post": infer},
        "/infer_stream": {"post": infer_stream},
        "/handle": {"post": _handling()},
        "/generate": {"post": generated},
        "/generate_stream": {"post": generated_stream},
    }


def _handling() -> _Json:
    anything: _Json = {"*/*": {"schema": {}}}
    own: _Json = {"description": "The model's own response.", "content": anything}
    errors = tuple(code for code in _ERRORS if code not in ("409", "410"))
    return {
        "summary": "Opaque request, which the model reads itself (`Model.handle`)",
        "requestBody": {"required": False, "content": {**anything, "multipart/form-data": {"schema": {}}}},
        "responses": {"200": own, **_failures(errors), "default": own},
    }


def _operation(
    summary: str, response_schema: str, request_schema: str | None = None, *, errors: Sequence[str] = ()
) -> _Json:
    operation: _Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "Success.", "content": _content(response_schema)},
            **_failures(errors),
        },
    }
    if request_schema is not None:
        operation["requestBody"] = {
            "required": request_schema not in ("IndexRequest", "ChangeRequest"),
            "content": _content(request_schema),
        }
    return operation


def _ready(summary: str, response_schema: str, *, errors: Sequence[str] = ()) -> _Json:
    operation = _operation(summary, response_schema, errors=errors)
    operation["responses"]["503"] = {
        "description": "Not ready.",
        "content": _either(response_schema, "Error"),
    }
    return operation


def _streaming(summary: str, request_schema: str, errors: Sequence[str]) -> _Json:
    operation = _operation(summary, "Error", request_schema, errors=errors)
    operation["responses"]["200"] = {
        "description": (
            "One event for each response: `data:` and a JSON document. An error after the first event is the "
            "last event."
        ),
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
    return operation


def _failures(errors: Sequence[str]) -> _Json:
    return {code: {"description": _ERRORS[code], "content": _content("Error")} for code in errors}


def _content(schema: str) -> _Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _either(*schemas: str) -> _Json:
    options = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    return {"application/json": {"schema": {"anyOf": options}}}


def _schemas() -> _Json:
    datatype = {"type": "string", "enum": list(_DATATYPES)}
    sizes = {"type": "array", "items": {"type": "integer", "minimum": -1}}
    shape = {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 16}
    name = {"type": "string", "minLength": 1}
    texts = {"type": "array", "items": {"type": "string"}}
    text = {"anyOf": [{"type": "string"}, texts]}
    spec = _object({"name": name, "datatype": datatype, "shape": sizes}, ("name", "datatype", "shape"))
    data = {
        "type": "array",
        "description": "Values in row-major order, flat or nested; omitted with binary_data_size.",
    }
    tensor = {"name": name, "shape": shape, "datatype": datatype, "parameters": _PARAMETERS, "data": data}
    request_tensor = {
        **tensor,
        "parameters": _NULLABLE_PARAMETERS,
        "data": {
            **data,
            "type": ["array", "number", "boolean", "string", "null"],
            "description": f"{data['description']} The value itself if the shape is [].",
        },
    }
    output_parameters = _object({"binary_data": {"type": "boolean"}}, ())
    request_schema = {"name": name, "parameters": {**output_parameters, "type": ["object", "null"]}}
    duration = _object({"count": {"type": "integer"}, "ns": {"type": "integer"}}, ("count", "ns"))
    return {
        "Error": _object(
            {
                "error": {"type": "string"},
                "kind": {
                    "enum": ["sequence_gone", "sequence_lost", "sequence_full", "too_many_sequences"],
                    "description": "Only for errors of sequences.",
                },
            },
            ("error",),
        ),
        "Live": _object({"live": {"type": "boolean"}}, ("live",)),
        "Ready": _object({"ready": {"type": "boolean"}}, ("ready",)),
        "ModelReady": _object({"name": name, "ready": {"type": "boolean"}}, ("name", "ready")),
        "ModelNames": _object({"models": texts}, ("models",)),
        "ServerMetadata": _object(
            {"name": name, "version": name, "extensions": texts}, ("name", "version", "extensions")
        ),
        "ModelMetadata": _object(
            {
                "name": name,
                "versions": texts,
                "platform": {"type": "string"},
                "inputs": {"type": "array", "items": spec},
                "outputs": {"type": "array", "items": spec},
            },
            ("name", "versions", "platform", "inputs", "outputs"),
        ),
        "InferenceRequest": _object(
            {
                "id": _NULLABLE_ID,
                "parameters": _request_parameters({"binary_data_output": {"type": "boolean"}}),
                "inputs": {
                    "type": "array",
                    "minItems": 1,
                    "items": _object(request_tensor, ("name", "shape", "datatype")),
                },
                "outputs": {"type": ["array", "null"], "items": _object(request_schema, ("name",))},
            },
            ("inputs",),
        ),
        "InferenceResponse": _object(
            {
                "model_name": name,
                "model_version": {"type": "string"},
                "id": {"type": "string"},
                "parameters": _PARAMETERS,
                "outputs": {"type": "array", "items": _object(tensor, ("name", "shape", "datatype"))},
            },
            ("model_name", "outputs"),
        ),
        "GenerateRequest": {
            "description": "Text and parameters for the model, or an inference request.",
            "anyOf": [
                {
                    **_object(
                        {"id": _NULLABLE_ID, "text_input": text, "parameters": _request_parameters({})}, ()
                    ),
                    "required": ["text_input"],
                },
                {"$ref": "#/components/schemas/InferenceRequest"},
            ],
        },
        "Generated": _object({"model_name": name, "text_output": {}}, ("model_name",)),
        "IndexRequest": _object({"ready": {"type": ["boolean", "null"]}}, ()),
        "Index": {
            "type": "array",
            "items": _object(
                {"name": name, "version": name, "state": {"type": "string"}, "reason": {"type": "string"}},
                ("name", "version", "state", "reason"),
            ),
        },
        "ChangeRequest": _object({"parameters": _NULLABLE_PARAMETERS}, ()),
        "Changed": _object({"name": name}, ("name",)),
        "ModelConfig": _object(
            {
                "name": name,
                "platform": name,
                "backend": name,
                "max_batch_size": {"type": "integer", "minimum": 0},
                "input": {"type": "array", "items": {"type": "object"}},
                "output": {"type": "array", "items": {"type": "object"}},
                "dynamic_batching": {"type": "object"},
                "model_transaction_policy": {"type": "object"},
            },
            ("name", "max_batch_size", "input", "output"),
        ),
        "Sequences": _sequences(name),
        "Duration": duration,
        "Statistics": _object(
            {"model_stats": {"type": "array", "items": {"type": "object"}}}, ("model_stats",)
        ),
    }


def _sequences(name: _Json) -> _Json:
    count = {"type": "integer", "minimum": 0}
    seconds = {"type": "number", "minimum": 0}
    sequence = {
        "id": name,
        "state": {"type": "string"},
        "instance": count,
        "steps": count,
        "requests": count,
        "age_s": seconds,
        "idle_s": seconds,
    }
    listing = {
        "model_name": name,
        "model_version": {"type": "string"},
        "live": count,
        "live_max": count,
        "ends": {"type": "object", "additionalProperties": count},
        "sequences": {"type": "array", "items": _object(sequence, tuple(sequence))},
    }
    return _object(listing, tuple(listing))


def _request_parameters(more: _Json) -> _Json:
    scheduling = {
        "priority": {
            "type": "integer",
            "minimum": 0,
            "description": "1 is the highest priority; 0 is the default.",
        },
        "timeout": {"type": "integer", "minimum": 0, "description": "Microseconds; 0 means no timeout."},
        # These have no types, because a model without a step receives them as ordinary parameters.
        "sequence_id": {"description": "For models with a step: text or an integer; 0 and empty mean none."},
        "sequence_start": {"description": 'For models with a step: true, false or "auto".'},
        "sequence_end": {"description": "For models with a step: true or false."},
        "sequence_cancel": {"description": "For models with a step: true or false."},
    }
    return {**_NULLABLE_PARAMETERS, "properties": {**scheduling, **more}}


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> _Json:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


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


def docs_page(version: str, models: Sequence[ModelMetadata], origin: str) -> str:
    """Return the HTML page: the ready models with an example request each, and every route.

    The examples call the server at `origin`, such as ``http://localhost:8080``.
    """
    described = "".join(_model_section(model, origin) for model in models) or "<p>No model is ready.</p>"
    rows = "".join(
        f"<tr><td><span class=verb>{verb.upper()}</span> <code>{escape(path)}</code></td>"
        f"<td>{escape(operation['summary'])}</td></tr>"
        for path, item in _paths().items()
        for verb, operation in item.items()
        if verb != "parameters"
    )
    errors = "".join(f"<tr><td>{code}</td><td>{escape(why)}</td></tr>" for code, why in _ERRORS.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>headrace</title>"
        f"<style>{_STYLE}</style><main>"
        f"<h1>headrace <small>{escape(version)}</small></h1>"
        "<p>The Open Inference Protocol (V2). "
        "See also the <a href='/v2/docs/dataplane.json'>OpenAPI document</a>.</p>"
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


def _example(spec: TensorSpec) -> _Json:
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
