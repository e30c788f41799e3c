"""The route for unmodified SageMaker clients that invoke an asynchronous endpoint.

An endpoint is one of `headrace.jobs.access.endpoints`, else a model of the same name. The endpoint, or
the settings of this route, say where results are written; the client receives that location before the
result exists. Signatures are not checked: if keys are
required, clients send theirs as ``Authorization: Bearer KEY``.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Final

import orjson

from headrace.core.errors import AccessError, ConfigError, DataError, EndpointNotFoundError, LimitError
from headrace.core.settings import Setting
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.job import QUEUE_DEFAULT, NewJob
from headrace.jobs.paths import ERROR_SUFFIX, RESULT_SUFFIX, output_location
from headrace.jobs.submission import Submission, digest_of
from headrace.jobs.tracing import read_traceparent
from headrace.server.errors import ErrorStatus
from headrace.server.http import Exchange, Headers
from headrace.server.jobs.api import Api, respond_json
from headrace.server.routes import Operation, Route
from headrace.storage import join

BODY_BYTES_MAX: Final = 128_000
_HEADER: Final = "x-amzn-sagemaker-"
_INVOCATION: Final = "amz-sdk-invocation-id"
_ENDPOINT: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_LOCATION: Final = re.compile(r"(https|s3)://([^/]+)/?(.*)")
_PRINTABLE: Final = re.compile(r"[!-~][ -~]*")
_EXTENSION: Final = re.compile(r"(?!s3:|https:)[!-~]+", re.IGNORECASE)
_FILENAME: Final = re.compile(r"[^./\\\s]*\.?[^./\\\s]*")
_LIMIT_HEADERS: Final = {
    "time_to_live_s": "requestttlseconds",
    "time_limit_s": "invocationtimeoutseconds",
}
"""Headers of limits, by the fields of a job. Without a header, an endpoint's own limit counts."""
_INVOCATION_ID: Final = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class SageMakerSettings:
    """The settings of the SageMaker route."""

    output_uri: Annotated[str, Setting("Prefix of all results.")]
    queue: Annotated[str, Setting("Queue of the jobs.")] = QUEUE_DEFAULT


def sagemaker_routes(api: Api, settings: SageMakerSettings) -> list[Route]:
    """Return the route for one API."""

    async def invoke(exchange: Exchange) -> None:
        """Submit a job (InvokeEndpointAsync).

        The response names the future locations of the result and of the failure.
        """
        body = await exchange.body(BODY_BYTES_MAX)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers.items()
        }
        name = exchange.arguments["name"]
        endpoint = await _find_endpoint(api, exchange.client, name)
        submission = read_invocation(name, headers, body, settings, endpoint)
        job = replace(submission.job, trace=read_traceparent(exchange.traceparent))
        submission = replace(submission, job=job)
        spec = (await api.submit(exchange.client, submission, trusted_output=True)).job.spec
        location = output_location(spec)
        locations = [
            (f"{_HEADER}outputlocation".encode(), (location + RESULT_SUFFIX).encode()),
            (f"{_HEADER}failurelocation".encode(), (location + ERROR_SUFFIX).encode()),
        ]
        await respond_json(exchange, {"InferenceId": spec.correlation_id}, 202, locations)

    return [
        Route(
            "POST",
            "/endpoints/{name}/async-invocations",
            "invoke_endpoint_async",
            (Scope.SUBMIT,),
            invoke,
            Operation("Invoke an asynchronous endpoint", invoke.__doc__ or "", status=202),
            error_format=_error_format,
        )
    ]


async def _find_endpoint(api: Api, key: ApiKey, name: str) -> EndpointSettings | None:
    """Return the settings of the endpoint that an invocation uses; None for the model of its name.

    A key that submits to models by its own lists invokes models, whether or not an endpoint has this
    name. A key with endpoints invokes nothing else.
    """
    if key.endpoints is None and Scope.OPERATE not in key.granted:
        return None
    endpoint = await api.thread_pool.run(api.service.find_endpoint, name)
    if endpoint is None and key.endpoints is not None:
        key.choose_endpoint(name)
        raise EndpointNotFoundError(name)
    return None if endpoint is None else endpoint.settings


def read_invocation(
    name: str,
    headers: Mapping[str, str],
    body: bytes,
    settings: SageMakerSettings,
    endpoint: EndpointSettings | None = None,
) -> Submission:
    """Return an invocation as a submission to `endpoint`, or to the model of this name without one.

    Raises:
        DataError: SageMaker would refuse the invocation.
    """
    if not _ENDPOINT.fullmatch(name) or len(name) > 63:
        raise DataError("EndpointName: at most 63 letters, digits and dashes, no dash at either end")
    fields = _Headers(headers)
    location = fields.text("inputlocation", _LOCATION, 1024)
    if bool(location) == bool(body):
        raise DataError("exactly one of Body and InputLocation is needed")
    inference_id = fields.text("inference-id", _PRINTABLE, 64)
    filename = fields.text("filename", _FILENAME, 32)
    extension = fields.text("s3outputpathextension", _EXTENSION, 512)
    attributes = fields.text("custom-attributes", _PRINTABLE, 1024)
    # A retry by the SDK has the same id. Another body or endpoint has another id.
    invocation = headers.get(_INVOCATION, "")
    key = f"{_INVOCATION}:{invocation}" if _INVOCATION_ID.fullmatch(invocation) else ""
    correlation_id = inference_id or (str(uuid.uuid5(uuid.NAMESPACE_URL, key)) if key else str(uuid.uuid4()))
    output_uri = settings.output_uri if endpoint is None else endpoint.output_uri or settings.output_uri
    given = {each for each in _LIMIT_HEADERS if fields.has(_LIMIT_HEADERS[each])} | {"output_uri"}
    job = NewJob(
        model=name if endpoint is None else "",
        queue=settings.queue if endpoint is None else QUEUE_DEFAULT,
        endpoint="" if endpoint is None else name,
        input_uri=location,
        content_type=fields.text("content-type", _PRINTABLE, 1024),
        accept=fields.text("accept", _PRINTABLE, 1024),
        output_uri=_output(output_uri, extension),
        key=filename or correlation_id,
        # The client learns the location from the response, so an equal id or name gets another one.
        if_exists="rename",
        # The model does not receive these attributes. The job and its notifications have them.
        tags={"custom_attributes": attributes} if attributes else {},
        time_to_live_s=fields.number("requestttlseconds", 60, 21_600, 21_600),
        time_limit_s=fields.number("invocationtimeoutseconds", 1, 3_600, 900),
        correlation_id=correlation_id,
        idempotency_key=key,
        owned_input=bool(body),
    )
    payload = body or None
    job = replace(job, body_digest=digest_of(job, payload)) if key else job
    return Submission(job, payload, given=frozenset(given))


def _output(output_uri: str, extension: str) -> str:
    segments = extension.strip("/").split("/") if extension else []
    if any(segment in {"", ".", ".."} for segment in segments):
        raise DataError("S3OutputPathExtension: holds an empty, '.' or '..' segment")
    return join(output_uri, "/".join(segments)) if segments else output_uri


class _Headers:
    """SageMaker's request headers, checked against the limits of its service model."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def text(self, name: str, pattern: re.Pattern[str], chars_max: int) -> str:
        value = self._headers.get(_HEADER + name, "")
        if value and not (len(value) <= chars_max and value.isascii() and pattern.fullmatch(value)):
            raise DataError(f"{name}: at most {chars_max} ASCII characters that fit {pattern.pattern}")
        return value

    def has(self, name: str) -> bool:
        return bool(self._headers.get(_HEADER + name, ""))

    def number(self, name: str, first: int, last: int, default: int) -> float:
        value = self._headers.get(_HEADER + name, "")
        if not value:
            return default
        if not value.isdecimal() or not value.isascii() or not first <= int(value[:9]) <= last:
            raise DataError(f"{name}: a whole number of seconds from {first} to {last}")
        return int(value)


def _error_format(error: Exception, status: ErrorStatus) -> tuple[int, bytes, Headers]:
    """Return an error in SageMaker's format, which has four kinds."""
    if isinstance(error, AccessError):
        kind, code = b"AccessDeniedException", status.http
    elif isinstance(error, DataError | ConfigError | LimitError) or status.http in (400, 404, 409, 413, 422):
        kind, code = b"ValidationError", 400
    elif status.http in (429, 503):
        kind, code = b"ServiceUnavailable", 503
    else:
        kind, code = b"InternalFailure", 500
    return code, orjson.dumps({"Message": status.why}), [(b"x-amzn-errortype", kind)]
