"""Signed URLs: the stores that sign, and the use of the URLs."""

import httpx
import pytest

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.storage import Stores, UrlSigner

KEYS = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


def test_signed_url_reads_an_object_without_credentials(http_files):
    http_files.objects["/signed/a b/k"] = b"x"
    store = Stores({"AWS_ENDPOINT_URL": http_files.url} | KEYS).for_uri("s3://signed/k")
    assert isinstance(store, UrlSigner)
    url = store.sign("GET", "s3://signed/a b/k", 60)
    assert httpx.get(url, trust_env=False).content == b"x"
    assert "X-Amz-Expires=60" in url
    assert "X-Amz-Signature=" in url
    with pytest.raises(ConfigError):
        store.sign("GET", "s3://signed", 60)


def test_signed_urls_put_and_get_an_object(moto_server):
    moto_server.client("s3").create_bucket(Bucket="signed")
    store = Stores(moto_server.environ).for_uri("s3://signed/k")
    url = store.sign("PUT", "s3://signed/a b/k", 60)
    httpx.put(url, content=b"x", trust_env=False).raise_for_status()
    assert store.get("s3://signed/a b/k") == b"x"
    url = store.sign("GET", "s3://signed/a b/k", 60)
    assert httpx.get(url, trust_env=False).content == b"x"


@for_each("uri", ["memory://b/k", "/tmp/k", "https://h/k"])
def test_stores_without_signing_are_no_url_signers(uri):
    assert not isinstance(Stores().for_uri(uri), UrlSigner)
