"""Errors of the API, as the client raises them again."""

import orjson
import pytest

from headrace.core import errors
from headrace.jobs.client.answers import Answer, error_of
from headrace.server.errors import LEDGER_AWAY
from headrace.server.jobs.frame import problem


@pytest.mark.parametrize(
    "error",
    [
        errors.DataError("priority: must be"),
        errors.ConfigError("c"),
        errors.LimitError("l"),
        errors.UnauthenticatedError("u"),
        errors.ForbiddenError("f"),
        errors.JobNotFoundError("j"),
        errors.JobStateError("j", "running", "no"),
        errors.ResultGoneError("j"),
        errors.IdempotencyError("k", "j"),
        errors.QueueFullError("full", retry_after_s=1.5),
        errors.OverloadedError("busy", retry_after_s=2.5),
        errors.QueueClosedError("closed"),
        errors.JobLedgerUnavailableError(LEDGER_AWAY),
        errors.StoppedError("down"),
        errors.UnavailableError("the store", "failed"),
        errors.UnsupportedError("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_api_raises_the_client_raises(error):
    sent = problem(error, "r")
    heard = error_of(Answer(sent.status_code, dict(sent.headers), sent.body, "http://api/"))
    assert type(heard) is type(error)
    assert str(heard) == str(error)
    for name in ("job_id", "state", "key", "retry_after_s"):
        if hasattr(error, name):
            assert getattr(heard, name) == getattr(error, name)


@pytest.mark.parametrize(
    ("status", "document", "kind"),
    [
        (500, {"error": "internal error", "type": "InternalError"}, errors.EndpointUnavailableError),
        (404, {"error": "Not Found", "type": "HTTPException"}, errors.EndpointRefusedError),
        (400, {"type": "SystemExit"}, errors.EndpointRefusedError),
        (400, {"type": "QueueFullError", "retry_after_s": "soon"}, errors.QueueFullError),
        (400, [1], errors.EndpointRefusedError),
    ],
)
def test_what_is_not_of_ours_is_an_endpoints(status, document, kind):
    heard = error_of(Answer(status, {}, orjson.dumps(document), "http://api/"))
    assert type(heard) is kind
    assert getattr(heard, "retry_after_s", 1.0) == 1.0
