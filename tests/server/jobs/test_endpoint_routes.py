"""Endpoints over HTTP: their routes, submissions to them, and two tenants that see nothing of each other."""

import asyncio

import pytest

from cases import for_each
from headrace.app.notify_entries import endpoint_preparation, notify_preparation
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import ConfigError, EndpointNotFoundError, ForbiddenError
from headrace.jobs.access import Scope
from headrace.jobs.client import AsyncClient, Client
from headrace.jobs.encryption import KEY_BYTES, EncryptionKey
from headrace.jobs.ledger import JobFilter
from headrace.jobs.notify import WebhookTarget
from headrace.jobs.notify.notifiers import SmtpSettings
from headrace.jobs.paths import UriAllowList
from headrace.jobs.worker_registry import WorkerInfo
from headrace.server.jobs.sagemaker import SageMakerSettings
from jobs.service_support import key_of, served_jobs

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
HOOK = {"webhook": "https://h.example/hook", "secret": SECRET}
FILE = JobsFile(
    receivers=(WebhookTarget("billing", "https://billing.example/", (SECRET,)),),
    smtp=SmtpSettings("mail.example.com", "jobs@example.com"),
)
ENCRYPTION_KEY = EncryptionKey([bytes(KEY_BYTES)])
IN = UriAllowList(prefixes=("s3://in",))
ADMIN = key_of("root", Scope.ADMIN)
A = key_of("a", endpoints=frozenset({"of-a"}), inputs=IN)
A_ONLY_SUBMITS = key_of("a-submit", Scope.SUBMIT, tenant="a", endpoints=frozenset({"of-a"}))
B = key_of("b", endpoints=frozenset({"of-b", "of-b-2"}), inputs=IN)
DIRECT = key_of("direct", inputs=IN)
SETTINGS = {
    "model": "churn",
    "queue": "of-a",
    "output_uri": "s3://out/a",
    "notify": [{"receiver": "billing"}],
    "time_limit_s": 60,
    "payload_bytes_max": 100,
    "keep_days": 2,
}


@pytest.fixture
def served():
    with served_jobs(
        keys=[ADMIN, A, A_ONLY_SUBMITS, B, DIRECT],
        prepare_notify=notify_preparation(FILE, ENCRYPTION_KEY),
        prepare_endpoint=endpoint_preparation(FILE, ENCRYPTION_KEY),
        sagemaker=SageMakerSettings("s3://sagemaker/out"),
    ) as made:
        with made.client(ADMIN[0]) as http:
            assert http.put("/v1/endpoints/of-a", json=SETTINGS).status_code == 200
            assert http.put("/v1/endpoints/of-b", json={"model": "m-b"}).status_code == 200
        yield made


def request(served, key, method, path, **options):
    with served.client(key[0]) as http:
        return http.request(method, path, **options)


def submit(served, key, **document):
    return request(served, key, "POST", "/v1/jobs", json={"input": [1], **document})


def spec_of(served, response):
    assert response.status_code == 202, response.text
    return served.ledger.get(response.json()["id"]).spec


def test_endpoint_is_created_changed_and_deleted(served):
    path = "/v1/endpoints/new"
    assert request(served, ADMIN, "GET", path).status_code == 404
    first = request(served, ADMIN, "PUT", path, json={"model": "m"}).json()
    assert (first["name"], first["version"], first["created_by"], first["deleted"]) == (
        "new",
        1,
        "root",
        False,
    )
    assert request(served, ADMIN, "PUT", path, json={"model": "m", "keep_days": None}).json() == first
    second = request(served, ADMIN, "PUT", path, json={"model": "m2"}).json()
    assert (second["version"], second["settings"]["model"]) == (2, "m2")
    assert request(served, ADMIN, "GET", path, params={"version": 1}).json() == first
    assert request(served, ADMIN, "GET", path, params={"version": 7}).status_code == 404
    assert request(served, ADMIN, "DELETE", path).status_code == 204
    assert request(served, ADMIN, "DELETE", path).status_code == 404
    assert request(served, ADMIN, "GET", path).status_code == 404
    versions = request(served, ADMIN, "GET", f"{path}/versions").json()["endpoints"]
    assert [(each["version"], each["deleted"]) for each in versions] == [(3, True), (2, False), (1, False)]
    assert request(served, ADMIN, "PUT", path, json={"model": "m"}).json()["version"] == 4
    names = [each["name"] for each in request(served, ADMIN, "GET", "/v1/endpoints").json()["endpoints"]]
    assert names == ["new", "of-a", "of-b"]


@for_each(
    ("path", "body", "status", "message"),
    [
        ("e", b"{", 400, "the body is not JSON"),
        ("e", b"[]", 400, "must be a JSON object"),
        ("e", b"{}", 400, "endpoints.e: 'model' is missing"),
        ("e", b'{"model": 1}', 400, "endpoints.e.model must be text"),
        ("e", b'{"model": "m", "notify": [{"receiver": "unknown"}]}', 400, "unknown receiver 'unknown'"),
        ("e", b'{"model": "m", "notify": [{"webhook": "https://h.example/"}]}', 400, "needs a secret"),
        ("e", b'{"model": "m", "options": {"model": "n"}}', 400, "is a field of the job"),
        ("a%20b", b'{"model": "m"}', 400, "endpoint: must be"),
    ],
)
def test_invalid_endpoint_is_refused(served, path, body, status, message):
    response = request(served, ADMIN, "PUT", f"/v1/endpoints/{path}", content=body)
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text


def test_secrets_are_encrypted_and_never_returned(served):
    path = "/v1/endpoints/of-a"
    put = request(served, ADMIN, "PUT", path, json={"model": "m", "notify": [HOOK]})
    assert put.json()["settings"]["notify"] == [{"webhook": HOOK["webhook"]}]
    (entry,) = served.ledger.endpoints()[0].settings.notify
    assert ENCRYPTION_KEY.decrypt(entry["secret"], HOOK["webhook"]) == SECRET
    for key in (ADMIN, A):
        for end in ("", "/versions"):
            text = request(served, key, "GET", path + end).text
            assert "whsec_" not in text
            assert "encrypted:" not in text
    # The document is sent back as it was received, and the secret stays; so nothing has changed.
    again = request(served, ADMIN, "PUT", path, json=put.json()["settings"])
    assert again.json() == put.json()
    job = spec_of(served, submit(served, A))
    assert job.notify == (entry,)
    assert "notify" not in submit(served, A).json()


def test_submission_has_the_settings_of_its_endpoint(served):
    spec = spec_of(served, submit(served, A))
    assert (spec.model, spec.queue, spec.output_uri, spec.time_limit_s) == ("churn", "of-a", "s3://out/a", 60)
    assert (spec.endpoint, spec.endpoint_version, spec.tenant, spec.submitted_by) == ("of-a", 1, "a", "a")
    assert (spec.notify, spec.keep_s) == (({"receiver": "billing"},), 2 * 86_400)
    named = submit(served, A, endpoint="of-a", model="churn", output_uri="s3://out/a/day", time_limit_s=1)
    assert (spec_of(served, named).output_uri, spec_of(served, named).time_limit_s) == ("s3://out/a/day", 1)
    raw = request(
        served,
        A,
        "POST",
        "/v1/jobs",
        params={"endpoint": "of-a"},
        content=b"1",
        headers={"content-type": "a/b"},
    )
    assert spec_of(served, raw).model == "churn"
    assert raw.json()["endpoint"] == "of-a"


@for_each(
    ("document", "status", "message"),
    [
        ({"model": "fraud"}, 403, "model: endpoint 'of-a': must be 'churn', not 'fraud'"),
        ({"queue": "default"}, 403, "queue: endpoint 'of-a': must be 'of-a', not 'default'"),
        ({"priority": 0}, 403, "priority: endpoint 'of-a': must be 5 or a larger number, not 0"),
        ({"attempts_max": 4}, 403, "attempts_max: endpoint 'of-a': must be at most 3, not 4"),
        ({"time_limit_s": 61}, 403, "time_limit_s: endpoint 'of-a': must be at most 60"),
        ({"output_uri": "s3://out/b"}, 403, "write below the output of endpoint 'of-a'"),
        ({"notify": [{"webhook": "https://b.example/"}]}, 403, "notify: endpoint 'of-a'"),
        ({"notify": [{"receiver": "billing"}]}, 403, "notify: endpoint 'of-a'"),
        ({"input": "x" * 200}, 413, "exceeds the 100 that endpoint 'of-a' permits"),
        ({"options": {"unknown": 1}}, 400, "unknown"),
    ],
)
def test_submission_beyond_its_endpoint_is_refused(served, document, status, message):
    response = submit(served, A, **document)
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text
    assert not served.ledger.find(JobFilter()).jobs


def test_upload_is_limited_by_the_endpoint(served):
    with served.client(A[0]) as http:
        for size, status in ((101, 413), (100, 202)):
            upload = http.post("/v1/uploads").json()
            http.put(upload["url"], content=b"x" * size)
            response = http.post("/v1/jobs", json={"upload": upload["id"], "content_type": "text/csv"})
            assert response.status_code == status, response.text


def test_webhooks_of_clients_need_the_permission_of_the_endpoint(served):
    request(served, ADMIN, "PUT", "/v1/endpoints/of-a", json={**SETTINGS, "client_webhooks": True})
    first, second = spec_of(served, submit(served, A, notify=[HOOK])).notify
    assert first == {"receiver": "billing"}
    assert ENCRYPTION_KEY.decrypt(second["secret"], HOOK["webhook"]) == SECRET
    for entry in ({"receiver": "billing"}, {"email": ["x@h.example"]}, {"receiver": "unknown"}):
        assert submit(served, A, notify=[entry]).status_code == 403


def test_change_counts_for_the_next_submission(served):
    assert spec_of(served, submit(served, A)).model == "churn"
    request(served, ADMIN, "PUT", "/v1/endpoints/of-a", json={**SETTINGS, "model": "churn@2"})
    spec = spec_of(served, submit(served, A))
    assert (spec.model, spec.endpoint_version) == ("churn@2", 2)
    request(served, ADMIN, "DELETE", "/v1/endpoints/of-a")
    gone = submit(served, A)
    assert (gone.status_code, gone.json()["type"]) == (404, "EndpointNotFoundError")


def test_repeated_submission_makes_one_job(served):
    headers = {"idempotency-key": "k"}
    for status in (202, 200):
        response = request(served, A, "POST", "/v1/jobs", json={"input": 1}, headers=headers)
        assert response.status_code == status
        request(served, ADMIN, "PUT", "/v1/endpoints/of-a", json={**SETTINGS, "attempts_max": 1})
    assert len(served.ledger.find(JobFilter()).jobs) == 1


def test_refusals_name_no_models_of_others(served):
    served.ledger.register_worker(WorkerInfo("w", queues=("of-a", "secret-queue"), models=("secret-model",)))
    refused = submit(served, A)
    assert (refused.status_code, refused.json()["type"]) == (404, "ModelNotFoundError")
    assert "secret" not in refused.text


# Two tenants


def test_other_tenant_cannot_see_an_endpoint(served):
    names = [each["name"] for each in request(served, B, "GET", "/v1/endpoints").json()["endpoints"]]
    assert names == ["of-b"]
    assert request(served, DIRECT, "GET", "/v1/endpoints").json() == {"endpoints": []}
    unknown = request(served, B, "GET", "/v1/endpoints/unknown").json()["error"]
    for key in (B, DIRECT):
        for path in ("/v1/endpoints/of-a", "/v1/endpoints/of-a?version=1", "/v1/endpoints/of-a/versions"):
            hidden = request(served, key, "GET", path)
            assert hidden.status_code == 404
            assert hidden.json()["error"] == unknown.replace("unknown", "of-a")


def test_own_endpoint_is_seen_without_its_targets(served):
    for key in (A, A_ONLY_SUBMITS):
        (own,) = request(served, key, "GET", "/v1/endpoints").json()["endpoints"]
        assert own == request(served, key, "GET", "/v1/endpoints/of-a").json()
        assert (own["settings"]["model"], own["settings"]["notify"]) == ("churn", [])
        assert request(served, key, "GET", "/v1/endpoints/of-a/versions").json() == {"endpoints": [own]}


def test_other_tenant_cannot_submit_to_an_endpoint(served):
    for endpoint in ("of-a", "unknown"):
        refused = submit(served, B, endpoint=endpoint)
        assert refused.status_code == 403
        assert "its endpoints: of-b, of-b-2" in refused.json()["error"]
    unnamed = submit(served, B)
    assert (unnamed.status_code, "must name an endpoint" in unnamed.json()["error"]) == (403, True)
    assert submit(served, DIRECT, endpoint="of-a", model="churn").status_code == 403
    assert not served.ledger.find(JobFilter()).jobs
    assert spec_of(served, submit(served, B, endpoint="of-b")).model == "m-b"


def test_only_admin_changes_endpoints(served):
    operator = key_of("op", Scope.OPERATE, Scope.SUBMIT)
    for key in (A, A_ONLY_SUBMITS, B, DIRECT):
        assert request(served, key, "PUT", "/v1/endpoints/of-a", json={"model": "m"}).status_code == 403
        assert request(served, key, "DELETE", "/v1/endpoints/of-a").status_code == 403
    assert [each.version for each in served.ledger.endpoint_versions("of-a")] == [1]
    with served_jobs(keys=[operator], ledger=served.ledger) as other:
        assert request(other, operator, "PUT", "/v1/endpoints/of-a", json={"model": "m"}).status_code == 403
        assert request(other, operator, "GET", "/v1/endpoints/of-a").status_code == 200
        assert spec_of(other, submit(other, operator, endpoint="of-a")).model == "churn"


@for_each(
    "entry",
    [
        {"receiver": "billing"},
        {"endpoint": "billing"},
        {"receiver": "unknown"},
        {"email": ["anybody@example.com"]},
        {"sns": {"success_topic": "arn:aws:sns:eu-west-1:1:of-operator"}},
    ],
)
def test_no_tenant_notifies_targets_of_the_operator(served, entry):
    """Before, any key could make the server sign a delivery to the operator's webhook, or send mail."""
    for key, document in ((DIRECT, {"model": "m"}), (A, {}), (B, {"endpoint": "of-b"})):
        refused = submit(served, key, **document, notify=[entry])
        assert refused.status_code == 403, refused.text
        assert "billing" not in refused.text
    assert not served.ledger.find(JobFilter()).jobs


def test_direct_submissions_keep_their_own_webhooks(served):
    (entry,) = spec_of(served, submit(served, DIRECT, model="m", notify=[HOOK])).notify
    assert entry["webhook"] == HOOK["webhook"]
    billed = submit(served, ADMIN, model="m", notify=[{"receiver": "billing"}])
    assert spec_of(served, billed).notify == ({"receiver": "billing"},)


def test_settings_of_a_deleted_endpoint_stay_hidden(served):
    request(served, ADMIN, "DELETE", "/v1/endpoints/of-a")
    assert request(served, B, "GET", "/v1/endpoints/of-a/versions").status_code == 404
    assert len(request(served, A, "GET", "/v1/endpoints/of-a/versions").json()["endpoints"]) == 2


# SageMaker


def invoke(served, key, name, **headers):
    sent = {"x-amzn-sagemaker-inputlocation": "s3://in/k", **headers}
    return request(served, key, "POST", f"/endpoints/{name}/async-invocations", headers=sent)


def invoked(served, response):
    assert response.status_code == 202, response.text
    (job,) = served.ledger.find(JobFilter(correlation_id=response.json()["InferenceId"])).jobs
    return job.spec


def test_invocation_uses_the_endpoint_of_its_name(served):
    response = invoke(served, A, "of-a", **{"x-amzn-sagemaker-s3outputpathextension": "day"})
    assert response.headers["x-amzn-sagemaker-outputlocation"].startswith("s3://out/a/day/")
    spec = invoked(served, response)
    assert (spec.model, spec.queue, spec.time_limit_s, spec.endpoint) == ("churn", "of-a", 60, "of-a")
    assert spec.notify == ({"receiver": "billing"},)
    longer = invoke(served, A, "of-a", **{"x-amzn-sagemaker-invocationtimeoutseconds": "61"})
    assert (longer.status_code, longer.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
    without_output = invoked(served, invoke(served, B, "of-b"))
    assert (without_output.output_uri, without_output.time_limit_s) == ("s3://sagemaker/out", 900)


def test_invocation_of_another_endpoint_is_refused(served):
    for name in ("of-a", "unknown"):
        assert invoke(served, B, name).status_code == 403
    assert invoke(served, B, "of-b-2").status_code == 400
    assert not served.ledger.find(JobFilter()).jobs


def test_invocation_by_a_direct_key_is_of_the_model(served):
    spec = invoked(served, invoke(served, DIRECT, "of-a"))
    assert (spec.model, spec.queue, spec.endpoint, spec.notify) == ("of-a", "default", "", ())
    assert invoked(served, invoke(served, DIRECT, "other")).model == "other"


# Clients


def test_client_has_the_operations(served):
    with Client(served.url, api_key=ADMIN[0]) as client:
        made = client.set_endpoint("new", model="m", queue="q")
        assert client.endpoint("new") == made == client.endpoint("new", version=1)
        assert [each["name"] for each in client.endpoints()] == ["new", "of-a", "of-b"]
        assert client.submit(endpoint="new", input=1).spec.queue == "q"
        assert client.submit(endpoint="new", input=b"1").spec.endpoint == "new"
        client.delete_endpoint("new")
        assert [each["deleted"] for each in client.endpoint_versions("new")] == [True, False]
        with pytest.raises(EndpointNotFoundError):
            client.delete_endpoint("new")
        with pytest.raises(ConfigError, match="'model' is missing"):
            client.set_endpoint("new")
        with pytest.raises(ConfigError, match="not JSON"):
            client.set_endpoint("new", model=object())


def test_asynchronous_client_has_the_operations(served):
    async def use():
        async with AsyncClient(served.url, api_key=ADMIN[0]) as client:
            made = await client.set_endpoint("new", model="m")
            assert await client.endpoint("new") == made
            assert len(await client.endpoints()) == 3
            await client.delete_endpoint("new")
            assert len(await client.endpoint_versions("new")) == 2
        async with AsyncClient(served.url, api_key=B[0]) as client:
            with pytest.raises(ForbiddenError):
                await client.submit(endpoint="of-a", input=1)

    asyncio.run(use())
