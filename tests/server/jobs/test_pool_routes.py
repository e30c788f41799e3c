"""Routes of pools of workers, of their numbers, and of the decisions about them."""

import asyncio

import pytest

from cases import for_each
from headrace.core.errors import ForbiddenError, ResourceNotFoundError, UncontrolledPoolError
from headrace.jobs.access import Scope
from headrace.jobs.client import AsyncClient, Client
from headrace.jobs.pools import ScalingDecision
from jobs.service_support import key_of, served_jobs

MONITOR = key_of("scaler", Scope.MONITOR)
PLAIN = key_of("shop")
LEASE_MS = 30_000
DECISIONS = "/v1/pools/gpu/decisions"
SCALE = "/v1/pools/gpu/scale"


@pytest.fixture
def served():
    with served_jobs(keys=[MONITOR, PLAIN]) as made:
        yield made


@pytest.fixture
def http(served):
    with served.client(MONITOR[0]) as client:
        yield client


def decide(served, *wanted, pool="gpu", controller="c-1"):
    """Control a pool, and record decisions for these numbers of workers, a second apart."""
    assert served.ledger.control_pool(pool, controller, LEASE_MS)
    for number in wanted:
        decision = ScalingDecision(pool, controller, number - 1, number, f"{number} jobs", {"due": number})
        assert served.ledger.record_decision(decision)
        served.ledger._clock.advance(1_000)


def test_pools_are_listed_by_name_with_their_last_decision(served, http):
    assert http.get("/v1/pools").json() == {"pools": []}
    now_ms = served.ledger.now_ms()
    decide(served, 2, 3)
    decide(served, pool="cpu", controller="c-2")
    served.ledger.release_pool("cpu", "c-2")
    assert http.get("/v1/pools").json() == {
        "pools": [
            {
                "pool": "cpu",
                "controller": "c-2",
                "controlled": False,
                "lease_until_ms": now_ms + 2_000,
                "decision": None,
            },
            {
                "pool": "gpu",
                "controller": "c-1",
                "controlled": True,
                "lease_until_ms": now_ms + LEASE_MS,
                "decision": {
                    "number": 2,
                    "at_ms": now_ms + 1_000,
                    "pool": "gpu",
                    "controller": "c-1",
                    "workers": 2,
                    "wanted": 3,
                    "reason": "3 jobs",
                    "observed": {"due": 3},
                },
            },
        ]
    }


def test_pool_is_uncontrolled_after_its_lease(served, http):
    decide(served, 2)
    served.ledger._clock.advance(LEASE_MS)
    (pool,) = http.get("/v1/pools").json()["pools"]
    assert (pool["controlled"], pool["controller"], pool["decision"]["wanted"]) == (False, "c-1", 2)


def test_decisions_of_a_pool_are_read_in_pages_newest_first(served, http):
    decide(served, 1, 2)
    decide(served, 7, pool="cpu")
    decide(served, 3)
    first = http.get(DECISIONS, params={"limit": 2}).json()
    assert [each["wanted"] for each in first["decisions"]] == [3, 2]
    last = http.get(DECISIONS, params={"limit": 2, "after": first["next_after"]}).json()
    assert [each["wanted"] for each in last["decisions"]] == [1]
    assert last["next_after"] == ""
    assert {each["pool"] for each in first["decisions"] + last["decisions"]} == {"gpu"}


@for_each("name", ["other", "%00", "a%20b", "x" * 3000])
def test_unknown_pool_has_no_decisions(served, http, name):
    decide(served, 1)
    response = http.get(f"/v1/pools/{name}/decisions")
    assert (response.status_code, response.json()) == (200, {"decisions": [], "next_after": ""})


@for_each("query", ["limit=0", "limit=501", "limit=x", "after=x", "after=-1", f"after={'9' * 19}"])
def test_invalid_query_is_refused(http, query):
    response = http.get(f"{DECISIONS}?{query}")
    assert (response.status_code, response.json()["type"]) == (400, "DataError")
    assert response.json()["error"].startswith(query.partition("=")[0])


@for_each("wanted", [3, 1, 0])
def test_scale_of_a_pool_is_the_last_decision_of_its_controller(served, http, wanted):
    now_ms = served.ledger.now_ms()
    decide(served, 7, wanted)
    decide(served, 9, pool="cpu")
    response = http.get(SCALE)
    assert response.status_code == 200
    assert list(response.json().items()) == [
        ("pool", "gpu"),
        ("wanted", wanted),
        ("active", wanted > 0),
        ("reason", f"{wanted} jobs"),
        ("at_ms", now_ms + 1_000),
    ]


@for_each("name", ["other", "%00", "a%20b", "x" * 3000])
def test_unknown_pool_has_no_scale(served, http, name):
    decide(served, 1)
    response = http.get(f"/v1/pools/{name}/scale")
    assert (response.status_code, response.json()["type"]) == (404, "ResourceNotFoundError")
    assert len(response.json()["error"]) < 200


def release(ledger):
    ledger.release_pool("gpu", "c-1")


def let_expire(ledger):
    ledger._clock.advance(LEASE_MS)


@pytest.mark.parametrize("end", [release, let_expire])
def test_pool_without_a_controller_has_no_scale_until_another_one_begins(served, http, end):
    decide(served, 2)
    end(served.ledger)
    uncontrolled = http.get(SCALE)
    assert (uncontrolled.status_code, uncontrolled.json()["type"]) == (503, "UncontrolledPoolError")
    assert uncontrolled.json()["error"].startswith("pool 'gpu' has no controller: ")
    assert "wanted" not in uncontrolled.json()
    decide(served, controller="c-2")
    assert http.get(SCALE).json()["wanted"] == 2
    decide(served, 4, controller="c-2")
    assert http.get(SCALE).json()["wanted"] == 4


def test_pool_without_a_decision_has_no_scale(served, http):
    decide(served)
    undecided = http.get(SCALE)
    assert (undecided.status_code, undecided.json()["type"]) == (503, "UncontrolledPoolError")
    assert undecided.json()["error"].startswith("pool 'gpu' has no decision yet: ")


def test_scale_of_a_pool_is_unavailable_without_the_ledger(served, http):
    decide(served, 2)
    served.ledger.unavailable = True
    response = http.get(SCALE)
    assert (response.status_code, response.json()["type"]) == (503, "JobLedgerUnavailableError")
    assert int(response.headers["retry-after"]) >= 1
    served.ledger.unavailable = False
    assert http.get(SCALE).json()["wanted"] == 2


@for_each("path", ["/v1/pools", SCALE, DECISIONS])
def test_pools_require_the_scope_monitor(served, path):
    with served.client(PLAIN[0]) as http:
        assert http.get(path).status_code == 403
    with served.client() as http:
        assert http.get(path).status_code == 401


def test_routes_of_pools_declare_the_scope_monitor(served):
    scopes = {route.action: route.scopes for route in served.app.routes if "/pools" in route.path}
    assert scopes == dict.fromkeys(["list_pools", "scale_pool", "list_decisions"], (Scope.MONITOR,))


def test_clients_read_pools_and_all_pages_of_decisions(served, monkeypatch):
    monkeypatch.setattr("headrace.jobs.client.core.PAGE", 2)
    decide(served, 1, 2, 3, 4, 5, pool="a?b c")
    with Client(served.url, api_key=MONITOR[0]) as client:
        assert [pool["pool"] for pool in client.pools()] == ["a?b c"]
        assert [decision["wanted"] for decision in client.decisions("a?b c")] == [5, 4, 3, 2, 1]
        assert list(client.decisions("other")) == []
        assert (client.pool_scale("a?b c")["wanted"], client.pool_scale("a?b c")["active"]) == (5, True)
        with pytest.raises(ResourceNotFoundError, match="no pool 'other'"):
            client.pool_scale("other")

    async def use():
        async with AsyncClient(served.url, api_key=MONITOR[0]) as client:
            assert [pool["decision"]["wanted"] for pool in await client.pools()] == [5]
            assert [each["wanted"] async for each in client.decisions("a?b c")] == [5, 4, 3, 2, 1]
            assert (await client.pool_scale("a?b c"))["wanted"] == 5
            served.ledger.release_pool("a?b c", "c-1")
            with pytest.raises(UncontrolledPoolError, match=r"pool 'a.b c' has no controller"):
                await client.pool_scale("a?b c")
        async with AsyncClient(served.url, api_key=PLAIN[0]) as client:
            with pytest.raises(ForbiddenError):
                await client.pools()
            with pytest.raises(ForbiddenError):
                await client.pool_scale("a?b c")
            with pytest.raises(ForbiddenError):
                await anext(client.decisions("a?b c"))

    asyncio.run(use())
