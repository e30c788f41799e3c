"""What is around every request: ids, and errors in one form."""

import pytest

from headrace.core import errors
from headrace.server.errors import LEDGER_AWAY
from headrace.server.jobs.frame import problem
from server.jobs.test_job_routes import UNKNOWN


def test_an_id_is_echoed_or_made(http):
    assert http.get("/v1/jobs", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = http.get(f"/v1/jobs/{UNKNOWN}", headers={"x-request-id": "two words"})
    assert len(made.headers["x-request-id"]) == 32
    assert made.json()["request_id"] == made.headers["x-request-id"]


def test_what_there_is_not_is_told_in_the_same_form(http):
    nowhere, never = http.get("/v1/nothing"), http.delete("/v1/queues")
    assert (nowhere.status_code, nowhere.json()["error"]) == (404, "Not Found")
    assert (never.status_code, never.headers["allow"]) == (405, "GET")
    assert http.get("/v1/jobs/").status_code == 404


def test_a_defect_of_ours_is_logged_and_not_told(served, http, caplog):
    def broken(name):
        raise RuntimeError("postgresql://user:secret@db/")

    served.ledger.queue = broken
    answer = http.get("/v1/health/ready")
    del served.ledger.queue
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "internal error",
        "type": "InternalError",
        "request_id": answer.headers["x-request-id"],
    }
    assert "secret" in caplog.text


def test_pages_of_other_sites_are_kept_out(http):
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert http.get("/v1/jobs", headers={"sec-fetch-site": site}).status_code == status


def test_a_nul_reaches_no_database(http):
    assert http.get("/v1/jobs?model=a%00b").status_code == 400
    assert http.get("/v1/queues/a%00b").status_code == 400


@pytest.mark.parametrize(
    ("error", "status", "facts"),
    [
        (errors.JobNotFoundError("j"), 404, {"job_id": "j"}),
        (errors.JobStateError("j", "running", "no"), 409, {"job_id": "j", "state": "running"}),
        (errors.ResultGoneError("j"), 410, {"job_id": "j"}),
        (errors.IdempotencyError("k", "j"), 422, {"key": "k", "job_id": "j"}),
        (errors.QueueFullError("full", retry_after_s=1.2), 429, {"retry_after_s": 1.2}),
        (errors.QueueClosedError("closed"), 503, {}),
        (errors.JobLedgerUnavailableError(LEDGER_AWAY), 503, {}),
    ],
)
def test_facts_of_an_error_are_told_too(error, status, facts):
    import json

    answer = problem(error, "r")
    document = json.loads(answer.body)
    assert answer.status_code == status
    assert document == {"error": str(error), "type": type(error).__name__, "request_id": "r", **facts}
    assert ("retry-after" in answer.headers) == (status in (429, 503))
