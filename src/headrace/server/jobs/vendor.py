"""The vendor's asynchronous door: what an unmodified SDK sends to invoke an endpoint asynchronously, answered as it expects.

An endpoint is a model of its name. Results go where this door is told to put them; the SDK is told where before they are there.
Signatures are not looked at: where keys are asked for, callers send theirs as ``Authorization: Bearer KEY``.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request, Response

from headrace.core.errors import AccessError, ConfigError, DataError, HeadraceError, LimitError
from headrace.jobs import places
from headrace.jobs.access import Scope
from headrace.jobs.intake import Submission, digest_of
from headrace.jobs.job import QUEUE_DEFAULT, NewJob
from headrace.server.errors import status_of
from headrace.server.jobs.api import Api
from headrace.server.jobs.submitted import submitted
from headrace.storage import join

BODY_BYTES_MAX: Final = 128_000
_HEADER: Final = "x-amzn-sagemaker-"
_INVOCATION: Final = "amz-sdk-invocation-id"
_ENDPOINT: Final = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_LOCATION: Final = re.compile(r"(https|s3)://([^/]+)/?(.*)")
_PRINTABLE: Final = re.compile(r"[!-~][ -~]*")
_EXTENSION: Final = re.compile(r"(?!s3:|https:)[!-~]+", re.IGNORECASE)
_FILENAME: Final = re.compile(r"[^./\\\s]*\.?[^./\\\s]*")
_INVOCATION_ID: Final = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class VendorSettings:
    """Where the vendor's door puts results: the prefix that endpoints there are configured with."""

    output_uri: str
    queue: str = QUEUE_DEFAULT


def vendor_routes(api: Api, settings: VendorSettings) -> APIRouter:
    """The one route, for one API."""
    router = APIRouter(tags=["vendor"])

    @router.post("/endpoints/{name}/async-invocations", status_code=202, response_class=Response)
    async def invoke(request: Request, name: str) -> Response:
        """InvokeEndpointAsync: submit a job, and be told where its result, or its failure, will be."""
        try:
            return await _invoke(api, settings, request, name)
        except (HeadraceError, UnicodeDecodeError) as error:
            return _refusal(error)

    return router


async def _invoke(api: Api, settings: VendorSettings, request: Request, name: str) -> Response:
    caller = api.caller(request, Scope.SUBMIT)
    body = await api.body(request, BODY_BYTES_MAX)
    submission = read_invocation(name, request.headers, body, settings)
    made = (await submitted(api, caller, submission, output_is_ours=True)).job.spec
    headers = {
        f"{_HEADER}outputlocation": places.result_uri(made.output_uri, made.key),
        f"{_HEADER}failurelocation": places.error_uri(made.output_uri, made.key),
    }
    document = {"InferenceId": made.correlation_id}
    return Response(orjson.dumps(document), 202, headers, media_type="application/json")


def read_invocation(
    name: str, headers: Mapping[str, str], body: bytes, settings: VendorSettings
) -> Submission:
    """An invocation as a submission. DataError for what the vendor's own service refuses."""
    if not _ENDPOINT.fullmatch(name) or len(name) > 63:
        raise DataError("EndpointName: at most 63 letters, digits and dashes, no dash at either end")
    given = _Headers(headers)
    location = given.text("inputlocation", _LOCATION, 1024)
    if bool(location) == bool(body):
        raise DataError("exactly one of Body and InputLocation is needed")
    inference_id = given.text("inference-id", _PRINTABLE, 64)
    filename = given.text("filename", _FILENAME, 32)
    extension = given.text("s3outputpathextension", _EXTENSION, 512)
    attributes = given.text("custom-attributes", _PRINTABLE, 1024)
    # A repetition by the SDK itself has the same id here, and another body or endpoint never has.
    invocation = headers.get(_INVOCATION, "")
    key = f"{_INVOCATION}:{invocation}" if _INVOCATION_ID.fullmatch(invocation) else ""
    made_id = inference_id or (str(uuid.uuid5(uuid.NAMESPACE_URL, key)) if key else str(uuid.uuid4()))
    job = NewJob(
        model=name,
        queue=settings.queue,
        input_uri=location,
        content_type=given.text("content-type", _PRINTABLE, 1024),
        accept=given.text("accept", _PRINTABLE, 1024),
        output_uri=_output(settings.output_uri, extension),
        key=filename or made_id,
        # No model is given them: they are told with the job, and to whoever is told of it.
        tags={"custom_attributes": attributes} if attributes else {},
        time_to_live_s=given.number("requestttlseconds", 60, 21_600, 21_600),
        time_limit_s=given.number("invocationtimeoutseconds", 1, 3_600, 900),
        correlation_id=made_id,
        idempotency_key=key,
        owned_input=bool(body),
    )
    payload = body or None
    return Submission(replace(job, body_digest=digest_of(job, payload)) if key else job, payload)


def _output(output_uri: str, extension: str) -> str:
    segments = extension.strip("/").split("/") if extension else []
    if any(segment in {"", ".", ".."} for segment in segments):
        raise DataError("S3OutputPathExtension: holds an empty, '.' or '..' segment")
    return join(output_uri, "/".join(segments)) if segments else output_uri


class _Headers:
    """The vendor's headers, each within the bounds that its model of the service gives."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    def text(self, name: str, pattern: re.Pattern[str], chars_max: int) -> str:
        value = self._headers.get(_HEADER + name, "")
        if value and (len(value) > chars_max or not pattern.fullmatch(value)):
            raise DataError(f"{name}: at most {chars_max} characters that fit {pattern.pattern}")
        return value

    def number(self, name: str, first: int, last: int, default: int) -> float:
        value = self._headers.get(_HEADER + name, "")
        if not value:
            return default
        if not value.isdecimal() or not value.isascii() or not first <= int(value[:9]) <= last:
            raise DataError(f"{name}: a whole number of seconds from {first} to {last}")
        return int(value)


def _refusal(error: Exception) -> Response:
    """In the vendor's form: its three kinds of errors."""
    status = status_of(error)
    if isinstance(error, AccessError):
        kind, code = "AccessDeniedException", status.http
    elif isinstance(error, DataError | ConfigError | LimitError) or status.http in (400, 409, 413, 422):
        kind, code = "ValidationError", 400
    elif status.http in (429, 503):
        kind, code = "ServiceUnavailable", 503
    else:
        kind, code = "InternalFailure", 500
    body: dict[str, Any] = {"Message": status.why}
    return Response(orjson.dumps(body), code, {"x-amzn-errortype": kind}, media_type="application/json")
