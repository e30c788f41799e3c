"""Addresses at a store: which stores sign, and that what is signed holds."""

import httpx
import pytest
from moto.server import ThreadedMotoServer

from headrace.core.errors import ConfigError
from headrace.storage import Signing, Stores


@pytest.fixture(scope="module")
def environ():
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    httpx.put(f"http://{host}:{port}/signed", trust_env=False).raise_for_status()
    yield {
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    server.stop()


def test_what_is_signed_can_be_put_and_got(environ):
    store = Stores(environ).for_uri("s3://signed/k")
    assert isinstance(store, Signing)
    httpx.put(store.sign("PUT", "s3://signed/a b/k", 60), content=b"x", trust_env=False).raise_for_status()
    assert store.get("s3://signed/a b/k") == b"x"
    address = store.sign("GET", "s3://signed/a b/k", 60)
    assert httpx.get(address, trust_env=False).content == b"x"
    assert "X-Amz-Expires=60" in address
    with pytest.raises(ConfigError):
        store.sign("GET", "s3://signed", 60)


@pytest.mark.parametrize("uri", ["memory://b/k", "/tmp/k", "https://h/k"])
def test_other_stores_do_not_sign(uri):
    assert not isinstance(Stores().for_uri(uri), Signing)
