"""Uploads and results: streams, limits, aborted transfers, and signed URLs of the store."""

import http.client
import socket
import threading

import httpx
import pytest

from cases import for_each
from headrace.core.errors import NotFoundError
from headrace.jobs.client import Client
from headrace.jobs.job import Completed, ResultRef, Settlement
from headrace.server.jobs.api import ApiSettings
from headrace.storage import Stores
from jobs.service_support import STORE, WAIT_S, key_of, served_jobs
from server.jobs.test_job_routes import UNKNOWN, submit

BIG = bytes(range(256)) * (20 << 10)  # 5 MiB


def test_upload_becomes_the_payload_of_one_job(served, http):
    upload = http.post("/v1/uploads")
    assert (upload.status_code, upload.json()["method"]) == (201, "PUT")
    done = http.put(upload.json()["url"], content=iter([BIG[:1], BIG[1:]]))
    assert (done.status_code, done.json()) == (201, {"id": upload.json()["id"], "size_bytes": len(BIG)})
    named = {"model": "m", "upload": upload.json()["id"], "content_type": "x/y"}
    job = http.post("/v1/jobs", json=named)
    assert (job.status_code, job.json()["id"]) == (202, upload.json()["id"])
    assert served.payload(job.json()["id"]) == BIG
    assert http.post("/v1/jobs", json=named).status_code == 200
    assert http.post("/v1/jobs", json={**named, "model": "n"}).status_code == 422
    assert http.put(upload.json()["url"], content=b"other").status_code == 409


@for_each("framing", ["", "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n"])
def test_put_without_a_body_uploads_an_empty_payload(served, http, framing):
    upload = http.post("/v1/uploads").json()
    host, port = served.url.removeprefix("http://").split(":")
    body = "0\r\n\r\n" if "chunked" in framing else ""
    head = f"PUT {upload['url']} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{framing}\r\n"
    with (
        socket.create_connection((host, int(port)), WAIT_S) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall((head + body).encode())
        assert answer.readline() == b"HTTP/1.1 201 Created\r\n"
        assert b'"size_bytes":0' in answer.read()
    named = {"model": "m", "upload": upload["id"], "content_type": "x/y"}
    assert served.payload(http.post("/v1/jobs", json=named).json()["id"]) == b""


def test_unknown_upload_is_not_found(served, http, monkeypatch):
    # A database may refuse the text, for its NUL character.
    monkeypatch.setattr(served.ledger, "get_many", lambda ids: pytest.fail(f"asked for {ids}"))
    for upload_id in (UNKNOWN, "x", "a%00b"):
        response = http.put(f"/v1/uploads/{upload_id}", content=b"x")
        assert (response.status_code, response.json()["type"]) == (404, "ResourceNotFoundError")


def test_unfinished_upload_cannot_be_submitted(http):
    upload = http.post("/v1/uploads").json()
    response = http.post("/v1/jobs", json={"model": "m", "upload": upload["id"], "content_type": "x/y"})
    assert response.status_code == 400
    assert "has no payload yet" in response.json()["error"]


@for_each("upload_id", [UNKNOWN, "x", "..%2f..%2fetc"])
def test_unknown_upload_id_is_refused(refused, upload_id):
    assert refused.put(f"/v1/uploads/{upload_id}", content=b"x").status_code in (400, 404)


def test_too_large_upload_leaves_nothing(make_ledger):
    with served_jobs(ledger=make_ledger(), upload_bytes_max=3 << 20) as served, served.client() as http:
        url = http.post("/v1/uploads").json()["url"]
        assert http.put(url, content=BIG).status_code == 413
        assert http.put(url, content=iter([BIG])).status_code == 413
        assert http.put(url, content=b"x", headers={"content-encoding": "gzip"}).status_code == 400
        assert list(served.stores.for_uri(STORE).list(STORE)) == []


def test_aborted_upload_leaves_nothing(served, http):
    url = http.post("/v1/uploads").json()["url"]
    connection = http_connection(served)
    connection.putrequest("PUT", url)
    connection.putheader("content-length", str(len(BIG)))
    connection.endheaders()
    connection.send(BIG[: 3 << 20])
    connection.close()
    assert http.put(url, content=b"whole").status_code == 201
    (kept,) = served.stores.for_uri(STORE).list(STORE)
    assert kept.size_bytes == 5


def test_silent_upload_times_out(make_ledger):
    settings = ApiSettings(upload_idle_s=0.05)
    with served_jobs(ledger=make_ledger(), settings=settings) as served, served.client() as http:
        url = http.post("/v1/uploads").json()["url"]
        connection = http_connection(served)
        connection.putrequest("PUT", url)
        connection.putheader("content-length", "10")
        connection.endheaders()
        assert connection.getresponse().status == 408
        connection.close()


def test_silent_submission_times_out(make_ledger, monkeypatch):
    monkeypatch.setattr("headrace.server.connection.BODY_IDLE_S_MAX", 0.05)
    with served_jobs(ledger=make_ledger()) as served:
        connection = http_connection(served)
        connection.putrequest("POST", "/v1/jobs")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", "1000")
        connection.endheaders()
        connection.send(b'{"model"')
        assert connection.getresponse().status == 408
        connection.close()


def http_connection(served):
    url = httpx.URL(served.url)
    return http.client.HTTPConnection(url.host, url.port, timeout=WAIT_S)


# Results


def test_result_is_streamed_with_type_and_length(served, http):
    submit(http)
    run = served.claim()
    served.complete(run, BIG, "text/html")
    response = http.get(f"/v1/jobs/{run.id}/result")
    assert response.content == BIG
    assert response.headers["content-type"] == "text/html"
    assert response.headers["content-length"] == str(len(BIG))
    # A browser must not render the output of a model as a page of this server.
    assert response.headers["content-disposition"] == "attachment"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_empty_result_is_returned(served, http):
    submit(http)
    run = served.claim()
    served.complete(run, b"")
    response = http.get(f"/v1/jobs/{run.id}/result")
    assert (response.status_code, response.content) == (200, b"")


def test_range_request_with_etag_returns_the_rest(served, http):
    submit(http)
    run = served.claim()
    served.complete(run, BIG)
    etag = http.get(f"/v1/jobs/{run.id}/result").headers["etag"]
    rest = http.get(f"/v1/jobs/{run.id}/result", headers={"range": "bytes=5000000-", "if-range": etag})
    assert (rest.status_code, rest.content) == (206, BIG[5_000_000:])
    assert rest.headers["content-range"] == f"bytes 5000000-{len(BIG) - 1}/{len(BIG)}"
    for headers in (
        {"range": "bytes=5000000-"},
        {"range": "bytes=5000000-", "if-range": '"other"'},
        {"range": "bytes=99999999-", "if-range": etag},
        {"range": "bytes=0-5", "if-range": etag},
    ):
        whole = http.get(f"/v1/jobs/{run.id}/result", headers=headers)
        assert (whole.status_code, len(whole.content)) == (200, len(BIG))


def test_result_is_read_from_the_own_location(served, http):
    submit(http)
    run = served.claim()
    uri = served.complete(run, b"ours")
    assert http.get(f"/v1/jobs/{run.id}/result").content == b"ours"
    served.stores.for_uri(uri).delete(uri)
    missing = http.get(f"/v1/jobs/{run.id}/result")
    assert (missing.status_code, missing.json()["type"]) == (410, "ResultGoneError")
    assert "memory://" not in missing.text


def test_result_request_waits_for_the_job(served, http):
    job_id = submit(http)["id"]
    received = {}

    def fetch():
        with served.client() as client:
            received["result"] = client.get(f"/v1/jobs/{job_id}/result", params={"wait": 15}).content

    thread = threading.Thread(target=fetch)
    thread.start()
    served.complete(served.claim(), b"42")
    thread.join(WAIT_S)
    assert received["result"] == b"42"


def test_truncated_result_breaks_the_response(served, http):
    submit(http)
    run = served.claim()
    served.complete(run, BIG)
    store = served.stores.for_uri(STORE)
    whole = store.stream

    def breaking(uri, **given):
        yield next(whole(uri, **given))
        raise NotFoundError(uri, "it is gone")

    store.stream = breaking
    with pytest.raises(httpx.RemoteProtocolError):
        http.get(f"/v1/jobs/{run.id}/result")


# A store with signed URLs


@pytest.fixture(scope="module")
def bucket(moto_server):
    httpx.put(f"{moto_server.endpoint}/jobs", trust_env=False).raise_for_status()
    return moto_server.environ


def test_signing_store_receives_uploads_directly(bucket):
    text, digest, known = key_of("shop")
    served = served_jobs(stores=Stores(bucket), store_uri="s3://jobs/headrace", keys=[(text, digest, known)])
    with served as made, made.client(text) as http:
        upload = http.post("/v1/uploads").json()
        assert upload["url"].startswith(bucket["AWS_ENDPOINT_URL"])
        assert "X-Amz-Signature" in upload["url"]
        httpx.put(upload["url"], content=BIG, trust_env=False).raise_for_status()
        named = {"model": "m", "upload": upload["id"], "content_type": "x/y"}
        job = http.post("/v1/jobs", json=named).json()
        assert made.payload(job["id"]) == BIG
        run = made.claim()
        uri = f"s3://jobs/headrace/attempts/{run.id}/1/result.out"
        made.stores.for_uri(uri).put(uri, BIG)
        outcome = Completed(ResultRef(uri, len(BIG), "x/y"))
        made.ledger.settle_and_claim([Settlement(run.id, run.lease, outcome)])
        moved = http.get(f"/v1/jobs/{run.id}/result", params={"redirect": True})
        assert moved.status_code == 307
        # The signed URL needs no key.
        assert httpx.get(moved.headers["location"], trust_env=False).content == BIG
        assert http.get(f"/v1/jobs/{run.id}/result").content == BIG


def test_key_with_a_limit_of_bytes_gets_no_signed_url(bucket):
    text, digest, known = key_of("shop", bytes_per_day_max=len(BIG))
    served = served_jobs(stores=Stores(bucket), store_uri="s3://jobs/limited", keys=[(text, digest, known)])
    with served as made, made.client(text) as http:
        upload = http.post("/v1/uploads").json()
        assert upload["url"] == f"/v1/uploads/{upload['id']}"
        assert http.put(upload["url"], content=BIG).status_code == 201
        assert http.put(upload["url"], content=b"x").status_code == 429
        assert made.stores.for_uri("s3://jobs/x").get(f"s3://jobs/limited/inputs/{upload['id']}") == BIG


def test_private_store_receives_uploads_through_the_api(bucket):
    with (
        served_jobs(stores=Stores(bucket), store_uri="s3://jobs/x", signed_urls=False) as made,
        made.client() as http,
    ):
        upload = http.post("/v1/uploads").json()
        assert upload["url"] == f"/v1/uploads/{upload['id']}"
        assert http.put(upload["url"], content=BIG).status_code == 201
        assert made.stores.for_uri("s3://jobs/x").get(f"s3://jobs/x/inputs/{upload['id']}") == BIG


def test_payload_of_a_job_is_returned(served, http):
    job = http.post("/v1/jobs?model=m", content=b"1,2\n", headers={"content-type": "text/csv"}).json()
    response = http.get(f"/v1/jobs/{job['id']}/input")
    assert (response.status_code, response.content) == (200, b"1,2\n")
    assert response.headers["content-type"] == "text/csv"
    rest = {"range": "bytes=2-", "if-range": response.headers["etag"]}
    assert http.get(f"/v1/jobs/{job['id']}/input", headers=rest).content == b"2\n"
    with Client(served.url) as client:
        assert b"".join(client.stream_input(job["id"])) == b"1,2\n"
    uri = served.ledger.get(job["id"]).spec.input_uri
    served.stores.for_uri(uri).delete(uri)
    gone = http.get(f"/v1/jobs/{job['id']}/input")
    assert (gone.status_code, gone.json()["type"]) == (410, "ResultGoneError")
    assert "the payload of job" in gone.json()["error"]
    own = http.post("/v1/jobs", json={"model": "m", "input_uri": "s3://in/a.csv"}).json()
    refused = http.get(f"/v1/jobs/{own['id']}/input")
    assert (refused.status_code, "s3://in/a.csv" in refused.json()["error"]) == (409, True)
