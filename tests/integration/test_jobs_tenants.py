"""Keys, tenants and web addresses as inputs, against a whole process: each sees and names its own, and no more."""

import json

import pytest

from headrace.core.api_key import digest_of, digest_text, new_key
from headrace.core.errors import (
    ConfigError,
    DataError,
    ForbiddenError,
    JobNotFoundError,
    QueueFullError,
    UnauthenticatedError,
)
from headrace.jobs.client import Client, ClientSettings
from headrace.jobs.state import JobState
from integration.jobs_process import WAIT_S, Up, completed
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
    digests = {name: digest_text(digest_of(text)) for name, text in keys.items()}
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
    with Up(folder, "model.py", "--config", "jobs.toml") as made:
        yield made.wait_until_ready()


@pytest.fixture
def shop(up, keys):
    with Client(up.url, api_key=keys["shop"], settings=ClientSettings(retry_s=0)) as made:
        yield made


@pytest.fixture
def bank(up, keys):
    with up.client(keys["bank"]) as made:
        yield made


def test_without_a_key_nothing_is_told(up):
    with up.client() as nobody, pytest.raises(UnauthenticatedError):
        nobody.submit("model", request(1))


def test_a_job_of_another_tenant_is_not_there(shop, bank, up, keys):
    job = bank.submit("model", request(3))
    completed(bank, job.id)
    assert outputs(bank.result(job.id)) == [6]
    for ask in (shop.get, shop.cancel, shop.retry, shop.delete, shop.result, shop.history):
        with pytest.raises(JobNotFoundError):
            ask(job.id)
    assert job.id not in [each.id for each in shop.list()]
    own = shop.submit("model", request(1))
    completed(shop, own.id)
    # Who operates all of this sees it, and deletes it not.
    assert bank.get(own.id).spec.tenant == "shop"
    with pytest.raises(JobNotFoundError):
        bank.delete(own.id)
    shop.delete(own.id)


def test_queues_models_and_quotas_are_a_keys_own(shop, bank):
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
    completed(bank, bank.submit("model", request(4)).id)
    for job in (first, second):
        shop.cancel(job.id)


def test_a_web_address_below_an_allowed_one_is_an_input(shop, web):
    job = shop.submit("model", input_uri=f"{web.url}/in/a.csv?signature=x", content_type="text/csv")
    completed(shop, job.id)
    assert shop.result(job.id) == b"2.0\n4.0\n"


@pytest.mark.parametrize(
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
def test_other_addresses_are_refused_when_they_are_submitted(shop, web, uri):
    with pytest.raises((ConfigError, DataError, ForbiddenError)):
        shop.submit("model", input_uri=uri.format(web=web.url), content_type="text/csv")


def test_a_redirect_is_not_followed(shop, web):
    web.faults[:] = [Fault(302, {"Location": f"{web.url}/secret.csv"})] * 4
    job = shop.submit("model", input_uri=f"{web.url}/in/a.csv", content_type="text/csv", attempts_max=1)
    assert shop.wait(job.id, WAIT_S).state is JobState.FAILED
    web.faults.clear()
    assert "/secret.csv" not in [path for _, path, _ in web.requests]


def test_results_are_never_written_to_addresses(shop, web):
    with pytest.raises((ConfigError, ForbiddenError)):
        shop.submit("model", request(1), output_uri=f"{web.url}/in/")


def test_what_is_told_of_refusals_names_no_key(up, keys):
    assert not [line for line in up.said if any(text in line for text in keys.values())]
    assert json.dumps(up.said)
