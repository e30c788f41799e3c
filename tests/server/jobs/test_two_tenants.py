"""Two hostile tenants on one server: none reads, overwrites, notifies, counts or delays another.

`test_hostile_tenant` tries each route alone. These tests need several requests, or many of them.
"""

import asyncio

import pytest

from cases import for_each
from headrace.jobs.access import Scope
from headrace.jobs.job import NewJob
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.jobs.paths import UriAllowList
from headrace.server.jobs.api import ApiSettings, TenantSlots
from jobs.service_support import key_of, served_jobs
from server.jobs.test_key_limits import new_upload, send_head
from servers.polling import wait_until

ALPHA = key_of(
    "alpha",
    inputs=UriAllowList(prefixes=("s3://in/",)),
    outputs=UriAllowList(prefixes=("s3://shared/", "s3://alpha")),
)
BETA = key_of("beta", outputs=UriAllowList(prefixes=("s3://shared/beta/",)))
APP = key_of("app", tenant="beta", endpoints=frozenset({"scores"}))
OPERATOR = key_of("operator", Scope.ADMIN, outputs=UriAllowList(prefixes=("s3://",)))


# Overwrite


@pytest.fixture(scope="module")
def outputs():
    keys = [ALPHA, BETA, APP, OPERATOR]
    with served_jobs(keys=keys, shared_outputs=("s3://alpha/sagemaker/",)) as served:
        with served.client(OPERATOR[0]) as operator:
            scores = {"model": "m", "output_uri": "s3://alpha/scores"}
            assert operator.put("/v1/endpoints/scores", json=scores).status_code == 200
        yield served


@for_each(
    ("kind", "output", "accepted"),
    [
        ("transform", "s3://shared/", False),
        ("transform", "s3://shared/beta", False),
        ("stream", "s3://shared/beta/deep/er/", False),
        ("transform", "s3://shared/beta2", True),
        ("transform", "s3://alpha/scores/", False),
        ("transform", "s3://alpha/scores2/", True),
        ("transform", "s3://alpha/sagemaker/of/alpha", False),
        ("transform", "s3://alpha", False),
        ("stream", "s3://alpha/own", True),
        ("infer", "s3://shared/beta", True),
        ("infer", "s3://shared/mine.out/", True),
        ("infer", "s3://shared/beta/mine.error/deep", False),
        ("infer", "s3://shared/beta/mine.out.failed", False),
        ("infer", "s3://alpha/own.out", True),
    ],
)
def test_output_may_not_damage_objects_of_another_tenant(outputs, kind, output, accepted):
    """Before, the objects of a transform replaced the results of another tenant with their names.

    A folder ``KEY.out`` on a disk kept the result of another tenant's KEY from being published.
    """
    payload = {"input": [1]} if kind == "infer" else {"input_uri": "s3://in/"}
    job = {"model": "m", "kind": kind, "output_uri": output, **payload}
    with outputs.client(ALPHA[0]) as alpha:
        for path, body, found in (
            ("/v1/jobs", job, lambda reply: reply.status_code),
            ("/v1/jobs/batch", {"jobs": [job]}, lambda reply: reply.json()["results"][0]["status"]),
        ):
            assert found(alpha.post(path, json=body)) == (202 if accepted else 403)


def test_run_of_the_only_tenant_writes_anywhere():
    sibling = key_of("sibling", tenant="alpha", outputs=ALPHA[2].outputs)
    job = {"model": "m", "kind": "transform", "input_uri": "s3://in/", "output_uri": "s3://shared/"}
    with served_jobs(keys=[ALPHA, sibling, OPERATOR]) as served, served.client(ALPHA[0]) as alpha:
        assert alpha.post("/v1/jobs", json=job).status_code == 202


# Delay


def test_slow_uploads_of_a_tenant_leave_slots_to_others():
    """Before, 64 uploads that sent a byte a minute kept all others away for hours."""
    settings = ApiSettings(uploads_max=4)
    with (
        served_jobs(keys=[ALPHA, BETA], settings=settings) as served,
        served.client(BETA[0]) as beta,
        served.client(ALPHA[0]) as alpha,
    ):
        slow = [send_head(served, BETA[0], new_upload(beta), 900) for _ in range(3)]
        wait_until(lambda: beta.put(new_upload(beta), content=b"x").status_code == 429)
        assert alpha.put(new_upload(alpha), content=b"x").status_code == 201
        for connection in slow:
            connection.close()


def test_slots_of_a_tenant_are_a_part_of_all():
    async def held():
        slots = TenantSlots(4)
        for _ in range(3):
            await slots.hold("beta").__aenter__()
        assert slots.is_full("beta")
        assert not slots.is_full("alpha")
        waiting = asyncio.create_task(slots.hold("beta").__aenter__())
        async with slots.hold("alpha"):
            assert slots.is_full("alpha")
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()

    asyncio.run(held())


def test_single_slot_serves_all_tenants():
    async def held():
        slots = TenantSlots(1)
        for tenant in ("alpha", "beta"):
            async with slots.hold(tenant):
                assert slots.is_full("alpha")
                assert slots.is_full("beta")
        assert not slots.is_full("alpha")

    asyncio.run(held())


def test_ten_thousand_waiting_jobs_of_a_tenant_delay_no_claim_of_another(tmp_path):
    ledger = SqliteJobLedger(tmp_path / "jobs.db")
    with served_jobs(ledger=ledger, keys=[ALPHA, BETA]) as served, served.client(ALPHA[0]) as alpha:
        for _ in range(20):
            served.ledger.submit([NewJob("m", tenant="beta", priority=0) for _ in range(500)])
        ids = {alpha.post("/v1/jobs", json={"model": "m", "input": [n]}).json()["id"] for n in range(3)}
        claimed = [served.claim().id for _ in range(6)]
    assert ids <= set(claimed)
