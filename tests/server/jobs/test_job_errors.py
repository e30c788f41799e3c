"""Request ids, and errors in one format."""

from cases import for_each
from headrace.core import errors
from headrace.server.errors import error_body, error_headers, status_of
from server.jobs.test_job_routes import UNKNOWN


def test_request_id_is_echoed_or_generated(http):
    assert http.get("/v1/jobs", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = http.get(f"/v1/jobs/{UNKNOWN}", headers={"x-request-id": "two words"})
    assert len(made.headers["x-request-id"]) == 32
    assert made.json()["request_id"] == made.headers["x-request-id"]


def test_unknown_routes_use_the_same_error_format(http):
    nowhere, never = http.get("/v1/nothing"), http.delete("/v1/queues")
    assert (nowhere.status_code, nowhere.json()["error"]) == (404, "no resource at /v1/nothing")
    assert (never.status_code, never.headers["allow"]) == (405, "GET")
    assert http.get("/v1/jobs/").status_code == 404


def test_unexpected_error_is_logged_but_not_disclosed(served, http, caplog):
    def broken(name):
        raise RuntimeError("postgresql://user:secret@db/")

    served.ledger.queue = broken
    response = http.get("/v1/health/ready")
    del served.ledger.queue
    assert response.status_code == 500
    assert response.json() == {
        "error": "internal error",
        "type": "InternalError",
        "request_id": response.headers["x-request-id"],
    }
    assert "secret" in caplog.text


def test_cross_site_requests_are_refused(http):
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert http.get("/v1/jobs", headers={"sec-fetch-site": site}).status_code == status


def test_nul_characters_reach_no_database(http):
    assert http.get("/v1/jobs?model=a%00b").status_code == 400
    assert http.get("/v1/queues/a%00b").status_code == 400


@for_each(
    ("error", "status", "facts"),
    [
        (errors.JobNotFoundError("j"), 404, {"job_id": "j"}),
        (errors.JobStateError("j", "running", "no"), 409, {"job_id": "j", "state": "running"}),
        (errors.OutputTakenError("k", "j", "no"), 409, {"key": "k", "job_id": "j"}),
        (errors.ResultGoneError("j"), 410, {"job_id": "j"}),
        (errors.IdempotencyError("k", "j"), 422, {"key": "k", "job_id": "j"}),
        (errors.QueueFullError("full", retry_after_s=1.2), 429, {"retry_after_s": 1.2}),
        (errors.QueueClosedError("closed"), 503, {}),
        (errors.JobLedgerUnavailableError(errors.LEDGER_UNAVAILABLE), 503, {}),
    ],
)
def test_error_facts_are_in_the_response(error, status, facts):
    import json

    found = status_of(error)
    document = json.loads(error_body(found, "r"))
    assert found.http == status
    assert document == {"error": str(error), "type": type(error).__name__, "request_id": "r", **facts}
    assert ("retry-after" in {name.decode() for name, _ in error_headers(found)}) == (status in (429, 503))
