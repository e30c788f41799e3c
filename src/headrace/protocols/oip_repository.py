"""Documents about a server and its models, in JSON: Open Inference Protocol and Triton.

Pure. A server encodes snapshots and decodes requests to the model repository. A client does the
reverse.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError
from headrace.core.statistics import (
    BatchStatistics,
    Duration,
    ModelIndexEntry,
    ModelState,
    ModelStatistics,
)
from headrace.core.tensor import ModelMetadata, TensorSpec

_Json = dict[str, Any]

BACKEND: Final = "headrace"
"""The backend in Triton's model configuration."""


def encode_server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """Return the server's metadata document."""
    return orjson.dumps({"name": name, "version": version, "extensions": list(extensions)})


def encode_model_metadata(metadata: ModelMetadata, versions: Sequence[str]) -> bytes:
    """Return a model's metadata document. `versions` are the versions that accept requests."""
    document: _Json = {"name": metadata.name, "versions": list(versions), "platform": metadata.platform}
    for key, specs in (("inputs", metadata.inputs), ("outputs", metadata.outputs)):
        document[key] = [{"name": s.name, "datatype": s.datatype, "shape": list(_shape(s))} for s in specs]
    return orjson.dumps(document)


def model_config(metadata: ModelMetadata) -> _Json:
    """Return Triton's configuration of a model, with the fields that apply to headrace.

    If the first dimension of every tensor is variable, ``max_batch_size`` is the row limit of a
    call and ``dims`` omit the rows, as in Triton. Else ``max_batch_size`` is 0 and ``dims`` are
    whole shapes. An unknown shape is one variable dimension.
    """
    specs = (*metadata.inputs, *metadata.outputs)
    batched = all(len(_shape(spec)) > 1 and _shape(spec)[0] == -1 for spec in specs)

    def listed(specs: Sequence[TensorSpec]) -> list[_Json]:
        return [
            {
                "name": spec.name,
                "data_type": "TYPE_" + ("STRING" if spec.datatype == "BYTES" else spec.datatype),
                "dims": list(_shape(spec)[1 if batched else 0 :]),
            }
            for spec in specs
        ]

    return {
        "name": metadata.name,
        "platform": metadata.platform,
        "backend": BACKEND,
        "max_batch_size": metadata.max_batch_rows if batched else 0,
        "input": listed(metadata.inputs),
        "output": listed(metadata.outputs),
        "dynamic_batching": {"max_queue_delay_microseconds": round(metadata.max_batch_delay_ms * 1000)},
        "model_transaction_policy": {"decoupled": metadata.can_stream and not metadata.can_predict},
    }


def encode_model_config(metadata: ModelMetadata) -> bytes:
    """Return the document of a model's configuration, see `model_config`."""
    return orjson.dumps(model_config(metadata))


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (-1,)


def encode_index(entries: Sequence[ModelIndexEntry]) -> bytes:
    """Return the index of the model repository."""
    return orjson.dumps(
        [{"name": e.name, "version": e.version, "state": e.state, "reason": e.reason} for e in entries]
    )


def decode_index_request(body: bytes) -> bool:
    """Return True if the request is for ready models only. An empty body is for all models.

    Raises:
        DataError: The body is malformed.
    """
    document = _object_or_nothing(body)
    ready = document.get("ready", False)
    if ready is not None and not isinstance(ready, bool):
        raise DataError(f"'ready' must be true or false, not {ready!r:.40}")
    return bool(ready)


def decode_load_request(body: bytes) -> Mapping[str, Any]:
    """Return the parameters of a request to load or unload a model. An empty body has none."""
    parameters = _object_or_nothing(body).get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise DataError(f"'parameters' must be an object, not {type(parameters).__name__}")
    return cast("_Json", parameters)


def _object_or_nothing(body: bytes) -> _Json:
    if not body.strip():
        return {}
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"the body must be a JSON object, not {type(found).__name__}")
    return cast("_Json", found)


def encode_statistics(statistics: Sequence[ModelStatistics]) -> bytes:
    """Return the statistics document of Triton's clients.

    Inferences are predicted rows, executions are calls.
    """
    return orjson.dumps({"model_stats": [_model_statistics(s) for s in statistics]})


def _model_statistics(s: ModelStatistics) -> _Json:
    nothing = _duration(Duration())
    return {
        "name": s.name,
        "version": s.version,
        "last_inference": s.last_inference_ms,
        "inference_count": s.rows,
        "execution_count": s.calls,
        "inference_stats": {
            "success": _duration(s.success),
            "fail": _duration(s.fail),
            "queue": _duration(s.queue),
            "compute_input": _duration(s.compute_input),
            "compute_infer": _duration(s.compute_infer),
            "compute_output": _duration(s.compute_output),
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": b.rows,
                "compute_input": nothing,
                "compute_infer": _duration(b.compute),
                "compute_output": nothing,
            }
            for b in s.batches
        ],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> _Json:
    return {"count": duration.count, "ns": duration.ns}


# Responses of a server


def decode_index(body: bytes) -> tuple[ModelIndexEntry, ...]:
    """Return the index of a model repository. A state that headrace does not know becomes UNKNOWN.

    Raises:
        DataError: The body is not an index.
    """
    return tuple(
        ModelIndexEntry(
            str(entry.get("name") or ""),
            str(entry.get("version") or ""),
            _state(entry.get("state")),
            str(entry.get("reason") or ""),
        )
        for entry in _entries(_loaded(body), "the index")
    )


def decode_statistics(body: bytes) -> tuple[ModelStatistics, ...]:
    """Return the statistics of a document. Missing fields are zero.

    Raises:
        DataError: The body is not a statistics document.
    """
    document = _loaded(body)
    if not isinstance(document, dict):
        raise DataError("the statistics must be a JSON object")
    entries = _entries(cast("_Json", document).get("model_stats"), "'model_stats'")
    return tuple(_decoded_statistics(entry) for entry in entries)


def _decoded_statistics(entry: _Json) -> ModelStatistics:
    durations = _table(entry.get("inference_stats"))
    batches = _entries(entry.get("batch_stats") or [], "'batch_stats'")
    return ModelStatistics(
        str(entry.get("name") or ""),
        str(entry.get("version") or ""),
        last_inference_ms=_count(entry.get("last_inference")),
        rows=_count(entry.get("inference_count")),
        calls=_count(entry.get("execution_count")),
        success=_decoded_duration(durations.get("success")),
        fail=_decoded_duration(durations.get("fail")),
        queue=_decoded_duration(durations.get("queue")),
        compute_input=_decoded_duration(durations.get("compute_input")),
        compute_infer=_decoded_duration(durations.get("compute_infer")),
        compute_output=_decoded_duration(durations.get("compute_output")),
        batches=tuple(
            BatchStatistics(_count(b.get("batch_size")), _decoded_duration(b.get("compute_infer")))
            for b in batches
        ),
    )


def _decoded_duration(found: object) -> Duration:
    table = _table(found)
    return Duration(_count(table.get("count")), _count(table.get("ns")))


def _loaded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"the body is not JSON: {error}") from None


def _entries(found: object, what: str) -> list[_Json]:
    if not isinstance(found, list) or not all(isinstance(e, dict) for e in cast("list[object]", found)):
        raise DataError(f"{what} must be a list of objects")
    return cast("list[_Json]", found)


def _table(found: object) -> _Json:
    return cast("_Json", found) if isinstance(found, dict) else {}


def _count(found: object) -> int:
    """Return a number. Some gateways write 64-bit integers as strings."""
    if isinstance(found, str) and found.isascii() and found.isdecimal() and len(found) < 20:
        return int(found)
    return found if isinstance(found, int) else 0


def _state(found: object) -> ModelState:
    try:
        return ModelState(str(found))
    except ValueError:
        return ModelState.UNKNOWN
