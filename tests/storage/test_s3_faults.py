"""A real S3 server that is killed and restarted, and its refusals."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from cases import for_each
from headrace.core.errors import AccessDeniedError, NotFoundError, UnavailableError
from headrace.storage import Stores
from headrace.testing import ManualClock
from headrace.testing.storage import LARGE_BYTES, _bytes

pytestmark = pytest.mark.s3


def test_operations_survive_a_server_restart(s3_server):
    data, prefix = _bytes(LARGE_BYTES), f"s3://{s3_server.bucket()}"
    stores = Stores(s3_server.environ, retry_s=100, timeout_s=10)
    store = stores.for_uri(prefix)
    store.put(f"{prefix}/in", data)
    store.put(f"{prefix}/goes", b"")
    stream = store.stream(f"{prefix}/in", etag=store.head(f"{prefix}/in").etag)
    received = [next(stream), next(stream)]
    writer = store.writer(f"{prefix}/out")
    writer.write(data[: 9 << 20])

    s3_server.stop()
    restart = s3_server.start_in_background()
    with ThreadPoolExecutor(6) as pool:
        # All of these start while the server is down, and none of them fails.
        rest = pool.submit(lambda: b"".join(stream))
        small = pool.submit(store.put, f"{prefix}/small", b"small")
        claim = pool.submit(store.put_if_absent, f"{prefix}/claim", b"claim")
        listed = pool.submit(lambda: [i.uri for i in store.list(f"{prefix}/i")])
        gone = pool.submit(store.delete, f"{prefix}/goes")
        size = pool.submit(lambda: store.head(f"{prefix}/in").size_bytes)
        writer.write(data[9 << 20 :])
        writer.close()
        assert b"".join(received) + rest.result() == data
        for future in (small, claim, gone):
            future.result()
        assert listed.result() == [f"{prefix}/in"]
        assert size.result() == len(data)
    restart.join()
    assert store.get(f"{prefix}/out") == data
    assert [i.uri for i in store.list(prefix)] == [f"{prefix}/{n}" for n in ("claim", "in", "out", "small")]


def test_unreachable_s3_server_raises_after_retry_s(s3_server):
    clock = ManualClock(auto=True)
    environ = s3_server.environ | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    store = Stores(environ, clock=clock, retry_s=50, seed=1).for_uri("s3://ready")
    with pytest.raises(
        UnavailableError, match=r"s3://box/k: reading still fails after \d+ attempts over 50.0 s"
    ):
        store.get("s3://box/k")
    assert clock.now() == pytest.approx(50)


@for_each("operation", ["get", "head", "put", "list", "writer"])
@for_each("credentials", ["no rights", "wrong secret", "unknown key"])
def test_denied_credentials_raise_without_retry(s3_server, operation: str, credentials: str):
    environ = {
        "no rights": s3_server.denied_environ,
        "wrong secret": s3_server.environ | {"AWS_SECRET_ACCESS_KEY": "wrong"},
        "unknown key": s3_server.environ | {"AWS_ACCESS_KEY_ID": "unknown"},
    }[credentials]
    clock = ManualClock(auto=True)
    store = Stores(environ, clock=clock).for_uri("s3://ready")
    call = {
        "get": lambda: store.get("s3://ready/ready"),
        "head": lambda: store.head("s3://ready/ready"),
        "put": lambda: store.put("s3://ready/new", b""),
        "list": lambda: list(store.list("s3://ready/")),
        "writer": lambda: _write_large(store, "s3://ready/new"),
    }[operation]
    with pytest.raises(AccessDeniedError, match="s3://ready"):
        call()
    assert clock.slept_s == ()


def _write_large(store, uri: str) -> None:
    with store.writer(uri) as writer:
        writer.write(bytes(10 << 20))


@for_each("operation", ["get", "head", "put", "list", "delete", "stream"])
def test_missing_bucket_error_names_the_bucket(s3_server, operation: str):
    store = Stores(s3_server.environ).for_uri("s3://ready")
    call = {
        "get": lambda: store.get("s3://no-such-bucket/k"),
        "head": lambda: store.head("s3://no-such-bucket/k"),
        "put": lambda: store.put("s3://no-such-bucket/k", b""),
        "list": lambda: list(store.list("s3://no-such-bucket/k/")),
        "delete": lambda: store.delete("s3://no-such-bucket/k"),
        "stream": lambda: list(store.stream("s3://no-such-bucket/k")),
    }[operation]
    with pytest.raises(NotFoundError) as raised:
        call()
    assert raised.value.uri == "s3://no-such-bucket"
    assert "no such bucket" in str(raised.value)


def test_real_server_listing_omits_folder_markers(s3_server):
    bucket = s3_server.bucket()
    client = s3_server.client()
    for key in ("in/", "in/deep/", "in/deep/object", "in/empty"):
        client.put_object(Bucket=bucket, Key=key, Body=b"x" if key.endswith("object") else b"")
    store = Stores(s3_server.environ).for_uri("s3://ready")
    wanted = [f"s3://{bucket}/in/deep/object", f"s3://{bucket}/in/empty"]
    assert [i.uri for i in store.list(f"s3://{bucket}/")] == wanted
    assert [i.uri for i in store.list(f"s3://{bucket}/i")] == wanted


def test_aborted_upload_leaves_no_parts_on_the_server(s3_server):
    bucket = s3_server.bucket()
    store = Stores(s3_server.environ).for_uri("s3://ready")
    writer = store.writer(f"s3://{bucket}/aborted")
    writer.write(bytes(20 << 20))
    writer.abort()
    assert not s3_server.client().list_multipart_uploads(Bucket=bucket).get("Uploads")
