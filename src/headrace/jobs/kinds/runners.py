"""The runners of the job kinds: `infer`, and `transform` and `stream`; their options as settings.

`infer`: one payload in, one result out. A payload that is a request of the Open Inference
Protocol goes to the model unchanged, together with those of other jobs; so does other JSON, as
values for the model's inputs. Anything else (CSV, JSON Lines, images, audio, video, archives…) is
read as a stream, record by record. Its size therefore does not matter, and every record has its
prediction or its failure.

`transform` and `stream`: runs that any attempt can resume, by their own ledger.

Options of every kind are those of a transform's spec file.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import orjson
from typing_extensions import override

from headrace.core.errors import ConfigError, DataError, EmptySourceError, LimitError
from headrace.core.predictor import RequestTimes
from headrace.core.settings import declared_settings
from headrace.core.settings_reader import read_value
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.jobs.job import JobProgress, NewJob, ResultRef
from headrace.jobs.kinds import Attempt, AttemptPredictor, JobPredictor, KindRunner, Models
from headrace.jobs.paths import JobPaths
from headrace.protocols.oip_json import JsonWireRequest, decode_request, encode_response, parse_header_length
from headrace.protocols.plain_bodies import request_from_json
from headrace.reports.report import REPORT_NAME, Report
from headrace.runs.media_types import bare_type
from headrace.runs.output_settings import OutputSettings
from headrace.runs.parts import check_folder
from headrace.runs.run import Run
from headrace.runs.sagemaker import FIELDS
from headrace.runs.settings import SAMPLED, RunSettings, StreamSettings, TransformSettings
from headrace.runs.spec import EXTENSION_TABLE, spec_of
from headrace.runs.tasks import InProcessRunner, Locality
from headrace.storage.local import LocalStore, remove_folder
from headrace.storage.resolve import Stores

REQUEST_BYTES_MAX: Final = 64 << 20
"""A request is held in memory, several times; larger payloads need a format that is streamed."""
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
HEADER_PARAMETER: Final = "inference-header-content-length"
"""The content type parameter with the length of the JSON before binary tensors."""
_PARTS: Final = {
    declared.name: declared
    for declared in declared_settings(OutputSettings)
    if declared.name.startswith("part_")
}
_WHERE: Final = "options"
_JOB_FIELDS: Final = frozenset(
    {"source", "output", "model", "model_options", "job_name", "instances", "in_flight_max", "max_concurrent"}
)
"""Options of a spec file that are fields of the job instead."""


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
        folder = self._paths.attempt(attempt.job.id, attempt.job.lease)
        remove_folder(self._stores.for_uri(folder), folder)

    # Requests

    def _wire_request(self, spec: NewJob, predictor: JobPredictor) -> JsonWireRequest | None:
        """Return the payload as a request, of the protocol or of plain JSON; None for records."""
        media_type = bare_type(spec.content_type)
        if media_type == OCTETS and (length := _header_length(spec.content_type)) is not None:
            return decode_request(self._body(spec), parse_header_length(length))
        is_json = media_type == JSON or (not media_type and spec.input_uri.lower().endswith(".json"))
        # Options concern records; a request has its own parameters.
        if not is_json or spec.options:
            return None
        body = self._body(spec)
        if b'"inputs"' in body:
            return decode_request(body, None)
        if bare_type(spec.accept) not in {"", JSON, "*/*"}:
            return None
        return _plain_request(body, predictor.metadata)

    def _body(self, spec: NewJob) -> bytes:
        """Return the whole payload. Raise LimitError if it is larger than a request may be."""
        pieces: list[bytes] = []
        size = 0
        for piece in self._stores.for_uri(spec.input_uri).stream(spec.input_uri):
            size += len(piece)
            if size > REQUEST_BYTES_MAX:
                raise LimitError(
                    f"the payload is a request of more than {REQUEST_BYTES_MAX >> 20} MiB: submit its rows "
                    "as JSON Lines or CSV, which are streamed"
                )
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _request(self, attempt: Attempt, predictor: JobPredictor, wire: JsonWireRequest) -> ResultRef:
        request = wire.request if predictor.metadata.whole_requests else wire.request.with_row_axes()
        # The error decides about a retry: rows that a model refuses stay refused; an error that it
        # raises may pass.
        response = _response(attempt, predictor, request)
        datatypes = {spec.name: spec.datatype for spec in predictor.metadata.outputs}
        body = encode_response(response, binary=wire.binary, datatypes=datatypes)
        uri = self._paths.attempt(attempt.job.id, attempt.job.lease) + "result.out"
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
        watched = AttemptPredictor(predictor, attempt.job.id)
        folder = self._paths.attempt(attempt.job.id, attempt.job.lease)
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
        return ResultRef(uri, store.head(uri).size_bytes, spec.accept or spec.content_type)


def _response(attempt: Attempt, predictor: JobPredictor, request: InferRequest) -> InferResponse:
    """Return the response to the request of an attempt, and add the call to the attempt's span."""
    request = request.within(attempt.job.spec.tenant)
    if attempt.span is None:
        return attempt.wait_for(predictor.submit(request, strict=True), predictor.abandon)
    times = RequestTimes()
    try:
        return attempt.wait_for(predictor.submit(request, strict=True, times=times), predictor.abandon)
    finally:
        attempt.span.add_call(times)


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


def _header_length(content_type: str) -> str | None:
    """Return the length in a content type of JSON and binary tensors; None if it has none."""
    length = None
    for parameter in content_type.split(";")[1:]:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == HEADER_PARAMETER:
            length = value.strip().strip('"')
    return length


class RunJobs(KindRunner):
    """The runner of `stream` or `transform` jobs.

    The result is the run's report, beside its output.

    Args:
        models: The models of the worker.
        stores: The object stores.
        read_settings: The function that returns the settings of a job.
    """

    def __init__(
        self, models: Models, stores: Stores, read_settings: Callable[[NewJob], RunSettings]
    ) -> None:
        self._models = models
        self._stores = stores
        self._read_settings = read_settings

    @override
    def run(self, attempt: Attempt) -> ResultRef:
        """Run the job. Any attempt writes the same bytes and resumes where the last one stopped."""
        spec = attempt.job.spec
        if not spec.output_uri:
            raise ConfigError("the job needs an output_uri: a folder or prefix for its predictions")
        settings = self._read_settings(spec)
        predictor = AttemptPredictor(self._models.predictor(spec.model), attempt.job.id)
        runner = None
        if settings.per_object:
            runner = InProcessRunner(predictor, Locality(attempt.job.worker_region or None))
        else:
            check_folder(spec.output_uri, self._stores, settings)
        run = Run(
            spec.input_uri,
            spec.output_uri,
            stores=self._stores,
            predictor=None if runner else predictor,
            runner=runner,
            settings=settings,
            model_identity=self._models.identity(spec.model),
            if_exists="resume",
            model_reference={"model": spec.model},
            region_of=_input_region(spec),
        )
        bind_to_attempt(attempt, run, predictor)
        report = run.execute()
        attempt.raise_if_stopped()
        _refuse_without_output(report)
        return ResultRef(run.destination + REPORT_NAME, None, JSON)

    @override
    def discard(self, attempt: Attempt) -> None:
        """Do nothing: the next attempt resumes from the written output."""


def _input_region(spec: NewJob) -> Callable[[str], str | None]:
    """Return a function from a URI to its region. The job knows the region of its input only."""
    return lambda uri: None if uri.startswith(spec.output_uri or "") else spec.region or None


def bind_to_attempt(attempt: Attempt, run: Run, predictor: AttemptPredictor) -> None:
    """Report the run's progress to the attempt, and drain it when the attempt stops."""

    def how_far() -> JobProgress:
        progress = run.progress
        note = failed_note(progress.rows_failed)
        if run.plan is None:
            return JobProgress(unit="bytes", note=note)
        total = progress.bytes_total
        done = min(progress.bytes_read + progress.bytes_before, total)
        across = progress.bytes_read if attempt.job.across_regions else 0
        return JobProgress(done, total or None, "bytes", note, across)

    attempt.set_progress_source(how_far)
    predictor.stop_with(attempt, run.drain)


def failed_note(rows_failed: int) -> str:
    """Return the progress note about failed records."""
    return f"{rows_failed} records failed" if rows_failed else ""


def _refuse_without_output(report: Report) -> None:
    if report.status == "failed":
        raise DataError(
            f"{report.objects_suppressed} of {report.objects} objects have no output because some "
            f"of their records failed; see {report.output}{REPORT_NAME}"
        )


def check_options(spec: NewJob) -> None:
    """Raise ConfigError, as its worker would, for a job whose options would make it fail."""
    if spec.kind != "infer" and not spec.output_uri:
        raise ConfigError(f"output_uri: a {spec.kind} needs one: a folder or prefix for its output")
    if spec.kind == "stream":
        stream_settings(spec)
    elif spec.kind == "transform" or spec.options:
        transform_settings(spec)


def transform_settings(spec: NewJob) -> TransformSettings:
    """Return the settings of an `infer` or `transform` job.

    Raise ConfigError for an invalid option.

    Options are those of a spec file's ``headrace`` table; for a `transform`, also a whole document
    with SageMaker's tables. ``content_type`` and ``accept`` are the job's own, unless the options
    set them too.
    """
    options = dict(spec.options)
    if any(field in options for field in FIELDS):
        return _without_other_objects(spec_of(options, _WHERE).settings)
    elsewhere = sorted(_JOB_FIELDS & options.keys())
    if elsewhere:
        raise ConfigError(f"{_WHERE}: {elsewhere[0]!r} is a field of the job, not an option")
    own: dict[str, Any] = {
        **({"content_type": spec.content_type} if spec.content_type else {}),
        **({"accept": spec.accept} if spec.accept else {}),
        **options,
    }
    return _without_other_objects(spec_of({EXTENSION_TABLE: own}, _WHERE).settings)


def stream_settings(spec: NewJob) -> StreamSettings:
    """Return the settings of a `stream` job: the same options, and limits of parts.

    Raise ConfigError.
    """
    options = {key: value for key, value in spec.options.items() if key not in _PARTS}
    settings = transform_settings(replace(spec, options=options))
    limits = {
        declared.field: read_value(declared, spec.options[key], f"{_WHERE}: {key}")
        for key, declared in _PARTS.items()
        if key in spec.options
    }
    return StreamSettings(
        read=settings.read,
        mapping=settings.mapping,
        flow=settings.flow,
        output=replace(settings.output, **limits),
        failures=settings.failures,
        subset=settings.subset,
        schema=settings.schema,
    )


def _without_other_objects(settings: TransformSettings) -> TransformSettings:
    """Refuse manifests and schema files: what they name was not checked against the key's permissions."""
    if settings.data_type == "manifest":
        raise ConfigError(
            f"{_WHERE}: a job's input is an object or a prefix, never a manifest: "
            "submit a job for each, or name their prefix"
        )
    if settings.schema not in SAMPLED:
        raise ConfigError(f"{_WHERE}: the schema of a job is {' or '.join(SAMPLED)}, never a file")
    return settings
