"""JSON documents of a server besides inference, from metadata to errors. Pure.

The documents are those of the Open Inference Protocol and of Triton. The numbers of instances and the
list of sequences are extensions of headrace. A server encodes snapshots and decodes requests to the
model repository. A client does the reverse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, cast

import orjson

from headrace.core.errors import DataError
from headrace.core.sequence import SequenceInfo, SequenceListing
from headrace.core.statistics import (
    BatchStatistics,
    Duration,
    InstanceStatus,
    ModelIndexEntry,
    ModelState,
    ModelStatistics,
)
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.protocols.oip_json import read_name, read_object, read_objects, read_text
from headrace.protocols.tensors import validate_datatype

_Json = dict[str, Any]

BACKEND: Final = "headrace"
"""The backend in Triton's model configuration."""
LIMIT_DEFAULT: Final = 1000
"""Number of listed sequences without the parameter ``limit``."""
LIMIT_MAX: Final = 100_000
ERROR_KIND: Final = "headrace-error-kind"
"""The key of gRPC's trailing metadata with the kind of a sequence error."""
ERROR_CHARS_MAX: Final = 2000
"""Limit of the characters of an error's text. An HTML page is longer."""


# Metadata


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


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return spec.shape or (-1,)


def decode_metadata(body: bytes) -> ModelMetadata:
    """Return a model's metadata: name, last version, platform, and specs of its inputs and outputs.

    A tensor without a shape in the document has shape None. BF16 stays BF16. Raises DataError for a
    malformed document.
    """
    document = read_object(body)
    versions = document.get("versions")
    listed = cast("list[object]", versions) if isinstance(versions, list) else []
    return ModelMetadata(
        name=read_text(document, "name"),
        version=str(listed[-1]) if listed else None,
        platform=read_text(document, "platform"),
        inputs=tuple(_spec(t, "inputs") for t in read_objects(document, "inputs")),
        outputs=tuple(_spec(t, "outputs") for t in read_objects(document, "outputs")),
    )


def _spec(tensor: _Json, where: str) -> TensorSpec:
    name = read_name(tensor, where)
    datatype = validate_datatype(name, tensor.get("datatype"))
    shape = tensor.get("shape")
    if not isinstance(shape, list):
        return TensorSpec(name, datatype)
    try:
        # Some gateways write 64-bit integers as strings.
        sizes = tuple(int(size) for size in cast("list[Any]", shape))
    except (TypeError, ValueError):
        raise DataError(f"tensor {name!r}: its shape must be a list of sizes") from None
    return TensorSpec(name, datatype, tuple(max(size, -1) for size in sizes))


# Index, load and unload


def encode_index(entries: Sequence[ModelIndexEntry]) -> bytes:
    """Return the index of the model repository."""
    return orjson.dumps(
        [{"name": e.name, "version": e.version, "state": e.state, "reason": e.reason} for e in entries]
    )


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


def decode_index_request(body: bytes) -> bool:
    """Return True if the request is for ready models only. An empty body is for all models.

    Raises:
        DataError: The body is malformed.
    """
    document = read_object(body) if body.strip() else {}
    ready = document.get("ready", False)
    if ready is not None and not isinstance(ready, bool):
        raise DataError(f"'ready' must be true or false, not {ready!r:.40}")
    return bool(ready)


def decode_load_request(body: bytes) -> Mapping[str, Any]:
    """Return the parameters of a request to load or unload a model. An empty body has none."""
    parameters = (read_object(body) if body.strip() else {}).get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise DataError(f"'parameters' must be an object, not {type(parameters).__name__}")
    return cast("_Json", parameters)


# Statistics


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


# Instances


def encode_instances(status: InstanceStatus) -> bytes:
    """Return the numbers of instances as JSON."""
    return orjson.dumps(status)


def encode_instances_request(instances: int, instances_max: int | None) -> bytes:
    """Return the body of a request to change the number of instances."""
    return orjson.dumps({"instances": instances, "instances_max": instances_max})


def decode_instances(body: bytes) -> InstanceStatus:
    """Return the numbers of instances of a document. Raises DataError for another document."""
    try:
        found: Any = orjson.loads(body)
        most: Any = found["instances_max"]
        return InstanceStatus(
            str(found["name"]),
            str(found["version"]),
            int(found["instances"]),
            int(found["ready"]),
            int(found["draining"]),
            int(found["instances_min"]),
            None if most is None else int(most),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the body has no numbers of instances: {type(error).__name__}: {error}") from None


# Sequences


def encode_listing(listing: SequenceListing) -> bytes:
    """Return a listing as JSON. ``state`` is the stage of a sequence; times are in seconds."""
    return orjson.dumps(
        {
            "model_name": listing.model,
            "model_version": listing.version,
            "live": listing.live,
            "live_max": listing.live_max,
            "ends": dict(listing.ends),
            "sequences": [_entry(info) for info in listing.sequences],
        }
    )


def _entry(info: SequenceInfo) -> _Json:
    entry = asdict(info)
    entry["state"] = entry.pop("stage")
    return entry


def decode_listing(body: bytes) -> SequenceListing:
    """Return the listing of a document. Raises DataError for another document."""
    try:
        found: Any = orjson.loads(body)
        ends: _Json = found["ends"]
        return SequenceListing(
            str(found["model_name"]),
            str(found["model_version"]),
            int(found["live"]),
            int(found["live_max"]),
            {str(why): int(count) for why, count in ends.items()},
            tuple(_info(entry) for entry in cast("list[_Json]", found["sequences"])),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the body is not a listing of sequences: {type(error).__name__}: {error}") from None


def _info(entry: _Json) -> SequenceInfo:
    return SequenceInfo(
        str(entry["id"]),
        str(entry["state"]),
        int(entry["instance"]),
        int(entry["steps"]),
        int(entry["requests"]),
        float(entry["age_s"]),
        float(entry["idle_s"]),
        str(entry.get("namespace", "")),
    )


# Errors


def encode_error(why: str, kind: str = "", **facts: Any) -> bytes:
    """Return the body of an error: its text and, for programs, further facts.

    `kind` is a word for programs where the status is ambiguous.
    """
    if kind:
        facts["kind"] = kind
    try:
        return orjson.dumps({"error": why, **facts})
    except TypeError:  # A model's own message may have lone surrogates.
        return orjson.dumps({"error": why.encode(errors="replace").decode(), **facts})


def decode_error_kind(body: bytes) -> str:
    """Return the kind in an error's body, or "" if it has none."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    kind = cast("_Json", found).get("kind") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else ""


def decode_error(body: bytes) -> str:
    """Return an error body's message: ``error``, FastAPI's ``detail``, ``message``, or plain text.

    The message is one line of up to ERROR_CHARS_MAX characters, and empty for an empty body.
    """
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _one_line(body[: 4 * ERROR_CHARS_MAX].decode(errors="replace"))
    if isinstance(found, dict):
        document = cast("_Json", found)
        found = next((document[k] for k in ("error", "detail", "message") if document.get(k)), document)
    try:
        return _one_line(found if isinstance(found, str) else orjson.dumps(found).decode())
    except TypeError:  # The error is nested too deeply for orjson.
        return _one_line(body[: 4 * ERROR_CHARS_MAX].decode(errors="replace"))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARS_MAX]
