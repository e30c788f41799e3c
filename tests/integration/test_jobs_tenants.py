"""Keys, tenants and web addresses as inputs: each key reaches only its own jobs and inputs."""

import json

import pytest

from cases import for_each
from headrace.core.errors import (
    ConfigError,
    DataError,
    ForbiddenError,
    JobNotFoundError,
    QueueFullError,
    UnauthenticatedError,
)
from headrace.jobs.access import format_digest, hash_key, new_key
from headrace.jobs.client import Client, ClientSettings
from headrace.jobs.state import JobState
from integration.jobs_process import WAIT_S, UpProcess, wait_completed
from integration.test_jobs_up import outputs, request
from servers.http_files import Fault, HttpFiles


@pytest.fixture(scope="module")
def web():
    with HttpFiles() as server:
        server.objects |= {"/in/a.csv": b"1,0\n2,0\n", "/secret.csv": b"9,0\n"}
        yield server


@pytest.fixture(scope="module")
def keys():
    return {name: new_key() for name in ("shop", "bank", "store")}


@pytest.fixture(scope="module")
def up(tmp_path_factory, web, keys):
    folder = tmp_path_factory.mktemp("tenants")
    digests = {name: format_digest(hash_key(text)) for name, text in keys.items()}
    (folder / "jobs.toml").write_text(f"""
[keys.shop]
digest = "{digests["shop"]}"
scopes = ["submit", "read"]
inputs = ["{web.url}/in", "https://"]
queues = ["default", "held"]
pending_max = 2

[keys.bank]
digest = "{digests["bank"]}"
scopes = ["submit", "read", "operate"]
models = ["model"]

[keys.store]
digest = "{digests["store"]}"
scopes = ["events"]

[outbound]
plain_http = true
ports = [443, {web.url.rpartition(":")[2]}]
networks = ["127.0.0.1/32"]
""")
    with UpProcess(folder, "model.py", "--config", "jobs.toml") as opened:
        yield opened.wait_until_ready()


@pytest.fixture
def shop(up, keys):
    with Client(up.url, api_key=keys["shop"], settings=ClientSettings(retry_s=0)) as opened:
        yield opened


@pytest.fixture
def bank(up, keys):
    with up.client(keys["bank"]) as opened:
        yield opened


def test_start_with_keys_names_no_limit_of_all_clients(up):
    assert not [line for line in up.log if "waiting jobs" in line]


def test_client_without_a_key_is_refused(up):
    with up.client() as anonymous, pytest.raises(UnauthenticatedError):
        anonymous.submit("model", request(1))


def test_job_of_another_tenant_is_not_found(shop, bank, up, keys):
    job = bank.submit("model", request(3))
    wait_completed(bank, job.id)
    assert outputs(bank.result(job.id)) == [6]
    for call in (shop.get, shop.cancel, shop.retry, shop.delete, shop.result, shop.history):
        with pytest.raises(JobNotFoundError):
            call(job.id)
    assert job.id not in [each.id for each in shop.list()]
    own = shop.submit("model", request(1))
    wait_completed(shop, own.id)
    # Who operates all of this sees it, and deletes it not.
    assert bank.get(own.id).spec.tenant == "shop"
    with pytest.raises(JobNotFoundError):
        bank.delete(own.id)
    shop.delete(own.id)


def test_each_key_has_its_own_queues_models_and_quota(shop, bank):
    bank.pause_queue("held")
    with pytest.raises(ForbiddenError, match="queue"):
        shop.submit("model", request(1), queue="other")
    with pytest.raises(ForbiddenError, match="model"):
        bank.submit("other", request(1))
    with pytest.raises(ForbiddenError, match="operate"):
        shop.pause_queue("held")
    first = shop.submit("model", request(1), queue="held", idempotency_key="first")
    second = shop.submit("model", request(2), queue="held")
    with pytest.raises(QueueFullError):
        shop.submit("model", request(3), queue="held")
    assert shop.submit("model", request(1), queue="held", idempotency_key="first").id == first.id
    wait_completed(bank, bank.submit("model", request(4)).id)
    for job in (first, second):
        shop.cancel(job.id)


def test_url_below_an_allowed_url_is_an_input(shop, web):
    job = shop.submit("model", input_uri=f"{web.url}/in/a.csv?signature=x", content_type="text/csv")
    wait_completed(shop, job.id)
    assert shop.result(job.id) == b"2.0\n4.0\n"


@for_each(
    "uri",
    [
        "{web}/secret.csv",
        "{web}/in/../secret.csv",
        "{web}/in/%2e%2e/secret.csv",
        "http://localhost/in/a.csv",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::ffff:169.254.169.254]/",
        "https://0xa9fea9fe/",
        "https://10.0.0.1/",
        "https://a@10.0.0.1/",
        "file:///etc/passwd",
        "/etc/passwd",
        "s3://bucket/k",
    ],
)
def test_other_addresses_are_refused_at_submission(shop, web, uri):
    with pytest.raises((ConfigError, DataError, ForbiddenError)):
        shop.submit("model", input_uri=uri.format(web=web.url), content_type="text/csv")


def test_redirect_of_an_input_is_not_followed(shop, web):
    web.faults[:] = [Fault(302, {"Location": f"{web.url}/secret.csv"})] * 4
    job = shop.submit("model", input_uri=f"{web.url}/in/a.csv", content_type="text/csv", attempts_max=1)
    assert shop.wait(job.id, WAIT_S).state is JobState.FAILED
    web.faults.clear()
    assert "/secret.csv" not in [path for _, path, _ in web.requests]


def test_url_as_output_is_refused(shop, web):
    with pytest.raises((ConfigError, ForbiddenError)):
        shop.submit("model", request(1), output_uri=f"{web.url}/in/")


def test_log_names_no_key(up, keys):
    assert not [line for line in up.log if any(text in line for text in keys.values())]
    assert json.dumps(up.log)
