"""Errors of the API that the client raises again."""

import orjson

from cases import for_each
from headrace.core import errors
from headrace.jobs.client.messages import ApiResponse, error_from_response
from headrace.server.errors import error_body, error_headers, status_of


@for_each(
    "error",
    [
        errors.DataError("priority: must be"),
        errors.ConfigError("c"),
        errors.LimitError("l"),
        errors.UnauthenticatedError("u"),
        errors.ForbiddenError("f"),
        errors.JobNotFoundError("j"),
        errors.JobStateError("j", "running", "no"),
        errors.OutputTakenError("k", "j", "no"),
        errors.ResultGoneError("j"),
        errors.IdempotencyError("k", "j"),
        errors.QueueFullError("full", retry_after_s=1.5),
        errors.OverloadedError("busy", retry_after_s=2.5),
        errors.QueueClosedError("closed"),
        errors.JobLedgerUnavailableError(errors.LEDGER_UNAVAILABLE),
        errors.StoppedError("down"),
        errors.UnavailableError("the store", "failed"),
        errors.UnsupportedError("no"),
    ],
)
def test_api_errors_are_raised_by_the_client(error):
    sent = status_of(error)
    headers = {name.decode(): value.decode() for name, value in error_headers(sent)}
    raised = error_from_response(ApiResponse(sent.http, headers, error_body(sent, "r"), "http://api/"))
    assert type(raised) is type(error)
    assert str(raised) == str(error)
    for name in ("job_id", "state", "key", "retry_after_s"):
        if hasattr(error, name):
            assert getattr(raised, name) == getattr(error, name)


@for_each(
    ("status", "document", "kind"),
    [
        (500, {"error": "internal error", "type": "InternalError"}, errors.EndpointUnavailableError),
        (404, {"error": "Not Found", "type": "HTTPException"}, errors.EndpointRefusedError),
        (400, {"type": "SystemExit"}, errors.EndpointRefusedError),
        (400, {"type": "QueueFullError", "retry_after_s": "soon"}, errors.QueueFullError),
        (400, [1], errors.EndpointRefusedError),
    ],
)
def test_foreign_response_is_an_endpoint_error(status, document, kind):
    raised = error_from_response(ApiResponse(status, {}, orjson.dumps(document), "http://api/"))
    assert type(raised) is kind
    assert getattr(raised, "retry_after_s", 1.0) == 1.0
