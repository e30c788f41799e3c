"""The `infer` kind: one payload in, one result out.

A payload that is a request of the Open Inference Protocol goes to the model unchanged, together
with those of other jobs; so does other JSON, as values for the model's inputs. Anything else (CSV,
JSON Lines, images, audio, video, archives…) is read as a stream, record by record. Its size
therefore does not matter, and every record has its prediction or its failure.
"""

from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.errors import DataError, EmptySourceError, LimitError
from headrace.core.tensor import InferResponse, ModelMetadata
from headrace.jobs.attempt import Attempt
from headrace.jobs.job import JobProgress, NewJob, ResultRef
from headrace.jobs.kind import AttemptPredictor, JobPredictor, KindRunner, Models
from headrace.jobs.kinds.options import transform_settings
from headrace.jobs.kinds.run import bind_to_attempt, failed_note
from headrace.jobs.paths import JobPaths
from headrace.protocols.oip_json import JsonWireRequest, decode_request, encode_response, parse_header_length
from headrace.protocols.plain_json import request_from_json
from headrace.runs.media_types import bare_type
from headrace.runs.run import Run
from headrace.storage.contract import Store
from headrace.storage.local import LocalStore, remove_folder
from headrace.storage.resolve import Stores

REQUEST_BYTES_MAX: Final = 64 << 20
"""A request is held in memory, several times; larger payloads need a format that is streamed."""
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
HEADER_PARAMETER: Final = "inference-header-content-length"
"""The content type parameter with the length of the JSON before binary tensors."""


class InferKind(KindRunner):
    """The runner of `infer` jobs. Every attempt writes below a folder named by its lease."""

    def __init__(self, models: Models, stores: Stores, paths: JobPaths) -> None:
        self._models = models
        self._stores = stores
        self._paths = paths

    @override
    def run(self, attempt: Attempt) -> ResultRef:
        spec = attempt.job.spec
        if not spec.input_uri:
            raise EmptySourceError("the job", "it has no input")
        predictor = self._models.predictor(spec.model)
        wire = self._wire_request(spec, predictor)
        if wire is not None:
            return self._request(attempt, predictor, wire)
        return self._records(attempt, predictor)

    @override
    def discard(self, attempt: Attempt) -> None:
        """Delete the attempt's folder."""
        folder = self._folder(attempt)
        remove_folder(self._stores.for_uri(folder), folder)

    def _folder(self, attempt: Attempt) -> str:
        return self._paths.attempt(attempt.job.id, attempt.job.lease)

    # Requests

    def _wire_request(self, spec: NewJob, predictor: JobPredictor) -> JsonWireRequest | None:
        """Return the payload as a request, of the protocol or of plain JSON; None for records."""
        media_type, parameters = _media_type(spec.content_type)
        if media_type == OCTETS and HEADER_PARAMETER in parameters:
            return decode_request(self._body(spec), parse_header_length(parameters[HEADER_PARAMETER]))
        is_json = media_type == JSON or (not media_type and spec.input_uri.lower().endswith(".json"))
        # Options concern records; a request has its own parameters.
        if not is_json or spec.options:
            return None
        body = self._body(spec)
        if b'"inputs"' in body:
            return decode_request(body, None)
        if _media_type(spec.accept)[0] not in {"", JSON, "*/*"}:
            return None
        return _plain_request(body, predictor.metadata)

    def _body(self, spec: NewJob) -> bytes:
        return _bounded(self._stores.for_uri(spec.input_uri), spec.input_uri)

    def _request(self, attempt: Attempt, predictor: JobPredictor, wire: JsonWireRequest) -> ResultRef:
        request = wire.request if predictor.metadata.whole_requests else wire.request.with_row_axes()
        # The error decides about a retry: rows that a model refuses stay refused; an error that it
        # raises may pass.
        response = attempt.wait_for(predictor.submit(request, strict=True), predictor.abandon)
        return self._write(attempt, response, wire, predictor)

    def _write(
        self, attempt: Attempt, response: InferResponse, wire: JsonWireRequest, predictor: JobPredictor
    ) -> ResultRef:
        datatypes = {spec.name: spec.datatype for spec in predictor.metadata.outputs}
        body = encode_response(response, binary=wire.binary, datatypes=datatypes)
        folder = self._folder(attempt)
        uri = folder + "result.out"
        store = self._stores.for_uri(uri)
        if isinstance(store, LocalStore):
            # The settling thread makes it durable, together with the results of other jobs.
            store.put_unflushed(uri, body.body, drafts=self._paths.drafts)
        else:
            store.put(uri, body.body)
        content_type = JSON if body.json_bytes is None else f"{OCTETS}; {HEADER_PARAMETER}={body.json_bytes}"
        return ResultRef(uri, len(body.body), content_type)

    # Records

    def _records(self, attempt: Attempt, predictor: JobPredictor) -> ResultRef:
        spec = attempt.job.spec
        watched = AttemptPredictor(predictor)
        folder = self._folder(attempt)
        run = Run(
            spec.input_uri,
            folder,
            stores=self._stores,
            predictor=watched,
            settings=transform_settings(spec),
            model_identity=self._models.identity(spec.model),
            if_exists="overwrite",
        )
        bind_to_attempt(attempt, run, watched)
        report = run.execute()
        attempt.raise_if_stopped()
        if report.rows_out == 0 and report.rows_failed:
            raise DataError(
                f"all {report.rows_failed} records failed: "
                f"{next(iter(report.failures), 'see the failed records')}"
            )
        broken = run.progress.first_broken
        if broken is not None:
            raise DataError(f"the payload could not be read to its end: {broken.why} ({broken.position})")
        if report.objects_broken or report.status == "failed":
            raise DataError("records of the payload failed, and its options require all of them")
        assert run.plan is not None, "it was executed"
        if len(run.plan.objects) != 1:
            raise DataError(
                f"the input names {len(run.plan.objects)} objects, "
                "but an infer job has one: submit a transform"
            )
        uri = run.destination + run.plan.objects[0].output
        total = report.records_in
        attempt.set_progress_source(
            lambda: JobProgress(total, total, "records", failed_note(report.rows_failed))
        )
        store = self._stores.for_uri(uri)
        return ResultRef(uri, store.head(uri).size_bytes, content_type_of(spec))


def content_type_of(spec: NewJob) -> str:
    """Return the content type of a result of records: as requested, or as the payload's."""
    return spec.accept or spec.content_type


def _plain_request(body: bytes, metadata: ModelMetadata) -> JsonWireRequest | None:
    """Return a request with the input values of JSON; None for a list of objects (records).

    Values are ``[[1, 2]]`` or ``{"x": [[1, 2]]}``.
    """
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return None
    return JsonWireRequest(request_from_json(value, metadata), binary_default=False, binary_by_name={})


def _media_type(content_type: str) -> tuple[str, dict[str, str]]:
    """Return a content type's name, in lower case, and its parameters."""
    _, *rest = content_type.split(";")
    pairs = (part.partition("=") for part in rest)
    return bare_type(content_type), {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}


def _bounded(store: Store, uri: str) -> bytes:
    """Return a whole payload. Raise LimitError if it is larger than a request may be."""
    pieces: list[bytes] = []
    size = 0
    for piece in store.stream(uri):
        size += len(piece)
        if size > REQUEST_BYTES_MAX:
            raise LimitError(
                f"the payload is a request of more than {REQUEST_BYTES_MAX >> 20} MiB: submit its rows as "
                "JSON Lines or CSV, which are streamed"
            )
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
