"""The limits of a key over HTTP: requests per second, and bytes of payloads per day."""

import http.client
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from headrace.jobs.access import Scope
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.testing import ManualWallClock, MemoryJobLedger
from jobs.service_support import STORE, WAIT_S, key_of, served_jobs
from servers.polling import wait_until

DAY_S = 86_400
NOON_MS = 20_000 * DAY_S * 1000 + DAY_S * 500
MIB = 1 << 20


# Requests per second


def test_requests_beyond_the_limit_are_refused():
    slow = key_of("slow", *Scope, requests_per_s_max=0.01)
    other = key_of("other", *Scope)
    with served_jobs(keys=[slow, other]) as served, served.client(slow[0]) as http:
        assert http.get("/v1/queues").status_code == 200
        for method, path in (
            ("GET", "/v1/queues"),
            ("POST", "/v1/jobs?model=m"),
            ("POST", "/v1/uploads"),
            ("GET", "/v1/session"),
        ):
            refused = http.request(method, path, content=b"x" if method == "POST" else None)
            assert refused.status_code == 429
            assert 90 < int(refused.headers["retry-after"]) <= 100
            document = refused.json()
            assert document["type"] == "OverloadedError"
            assert "API key 'slow' has reached its limit of 0.01 requests per second" in document["error"]
        # Routes without a key, other keys and refused keys have no part in the limit.
        assert http.get("/v1/health/live").status_code == 200
        assert http.get("/openapi.json").status_code == 200
        with served.client(other[0]) as unlimited:
            assert {unlimited.get("/v1/queues").status_code for _ in range(20)} == {200}


def test_requests_of_a_session_count_for_its_key():
    slow = key_of("slow", *Scope, requests_per_s_max=0.01)
    with served_jobs(keys=[slow]) as served, served.client() as http:
        begun = http.post("/v1/session", headers={"authorization": f"Bearer {slow[0]}"})
        assert begun.status_code == 200
        cookie = begun.headers["set-cookie"].partition(";")[0]
        assert http.get("/v1/queues", headers={"cookie": cookie}).status_code == 429


# Bytes per day


def limited(bytes_per_day_max, **more):
    return key_of("web", *Scope, bytes_per_day_max=bytes_per_day_max, **more)


def noon_ledger():
    return MemoryJobLedger(ManualWallClock(NOON_MS))


def put_job(http, payload):
    return http.post("/v1/jobs", params={"model": "m"}, content=payload)


def test_payloads_beyond_the_limit_are_refused_until_the_next_day():
    clock, web = ManualWallClock(NOON_MS), limited(1000)
    with served_jobs(ledger=MemoryJobLedger(clock), keys=[web]) as served, served.client(web[0]) as http:
        assert put_job(http, b"x" * 990).status_code == 202
        refused = put_job(http, b"x" * 20)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == str(DAY_S // 2)
        assert refused.json()["type"] == "OverloadedError"
        assert "limit of 1000 bytes per day of API key 'web'" in refused.json()["error"]
        assert "after 2024-10-05 00:00 UTC" in refused.json()["error"]
        assert put_job(http, b"x" * 1001).status_code == 413
        document = {"model": "m", "input": "x" * 18}
        assert http.post("/v1/jobs", json=document).status_code == 429
        clock.advance(DAY_S * 500)
        assert put_job(http, b"x" * 990).status_code == 202


def new_upload(http):
    return http.post("/v1/uploads").json()["url"]


def in_parts(data, size=100_000):
    """Return the data as a body without a declared length."""
    return (data[begin : begin + size] for begin in range(0, len(data), size))


def test_uploads_count_declared_and_chunked():
    web = limited(5 * MIB)
    with served_jobs(ledger=noon_ledger(), keys=[web]) as served, served.client(web[0]) as http:
        assert http.put(new_upload(http), content=b"x" * MIB).status_code == 201
        assert http.put(new_upload(http), content=in_parts(b"x" * MIB)).status_code == 201
        again = new_upload(http)
        for _ in range(2):
            assert http.put(again, content=b"x" * MIB).status_code == 201
        for body in (b"x" * (MIB + 1), in_parts(b"x" * 3 * MIB)):
            refused = http.put(new_upload(http), content=body)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == str(DAY_S // 2)
        assert http.put(new_upload(http), content=b"x" * (6 * MIB)).status_code == 413
        # What arrived of the chunked upload is counted, and nothing of the declared ones.
        assert put_job(http, b"x").status_code == 429
        assert len(list(served.stores.for_uri(STORE).list(STORE))) == 3


def test_declared_upload_is_refused_before_it_is_read():
    web = limited(1000)
    with served_jobs(ledger=noon_ledger(), keys=[web]) as served, served.client(web[0]) as http:
        assert put_job(http, b"x" * 500).status_code == 202
        connection = send_head(served, web[0], new_upload(http), 501)
        assert connection.getresponse().status == 429
        connection.close()


def send_head(served, key, path, size):
    """Begin an upload without its body, and return the connection."""
    url = httpx.URL(served.url)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=WAIT_S)
    connection.putrequest("PUT", path)
    connection.putheader("authorization", f"Bearer {key}")
    connection.putheader("content-length", str(size))
    connection.endheaders()
    return connection


def test_running_upload_holds_its_declared_bytes():
    web = limited(1000)
    with served_jobs(ledger=noon_ledger(), keys=[web]) as served, served.client(web[0]) as http:
        connection = send_head(served, web[0], new_upload(http), 900)
        wait_until(lambda: served.ledger._table.usage)
        assert put_job(http, b"x" * 101).status_code == 429
        connection.send(b"x" * 400)
        connection.close()
        # What arrived stays counted, although none of it was written.
        wait_until(lambda: served.ledger._table.usage["web"][1] < 900)
        assert put_job(http, b"x" * 601).status_code == 429
        assert put_job(http, b"x" * 600).status_code == 202


@pytest.mark.parametrize("declared", [True, False])
def test_concurrent_uploads_never_exceed_the_limit(declared):
    web, size = limited(8 * MIB), MIB + 1000
    with served_jobs(ledger=noon_ledger(), keys=[web]) as served, served.client(web[0]) as http:
        paths = [new_upload(http) for _ in range(16)]

        def put(path):
            body = b"x" * size
            return http.put(path, content=body if declared else in_parts(body)).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(put, paths))
        kept = sum(info.size_bytes for info in served.stores.for_uri(STORE).list(STORE))
        assert set(statuses) == {201, 429}
        assert kept == statuses.count(201) * size <= 8 * MIB
        if declared:
            assert statuses.count(201) == 7


def test_restart_keeps_the_count(tmp_path):
    web = limited(1000)
    for payload, status in ((b"x" * 600, 202), (b"x" * 401, 429), (b"x" * 300, 202), (b"x" * 101, 429)):
        ledger = SqliteJobLedger(tmp_path / "jobs.db", wall_ms=lambda: NOON_MS)
        with served_jobs(ledger=ledger, keys=[web]) as served, served.client(web[0]) as http:
            assert put_job(http, payload).status_code == status


def test_servers_share_the_count(tmp_path):
    web, path = limited(1000), tmp_path / "jobs.db"
    with (
        served_jobs(ledger=SqliteJobLedger(path, wall_ms=lambda: NOON_MS), keys=[web]) as first,
        served_jobs(ledger=SqliteJobLedger(path, wall_ms=lambda: NOON_MS), keys=[web]) as second,
        first.client(web[0]) as one,
        second.client(web[0]) as two,
    ):
        assert put_job(one, b"x" * 600).status_code == 202
        assert put_job(two, b"x" * 401).status_code == 429
        assert put_job(two, b"x" * 400).status_code == 202
