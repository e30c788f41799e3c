"""The obstore adapter module, without a server."""

import pytest

from headrace.core.errors import AccessDeniedError, ConfigError
from headrace.storage.cloud import Bucket, CloudSettings

KEYS = {"HOME": "/nonexistent", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.mark.parametrize(
    ("scheme", "name", "environ", "sorts_keys"),
    [
        ("s3", "box", {}, True),
        ("s3", "box--use1-az4--x-s3", {}, False),
        ("s3", "box", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, False),
        ("gs", "box", {"GOOGLE_SKIP_SIGNATURE": "true"}, True),
    ],
)
def test_only_known_services_sort_their_listings(scheme, name, environ, sorts_keys, monkeypatch):
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    assert Bucket(scheme, name, CloudSettings(KEYS | environ)).sorts_keys is sorts_keys


def test_azure_without_account_raises_config_error(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="Account must be specified"):
        Bucket("az", "box", CloudSettings({"AZURE_SKIP_SIGNATURE": "true"}))


def test_unreadable_certificate_file_is_named():
    with pytest.raises(ConfigError, match=r"/nonexistent/ca\.pem \(AWS_CA_BUNDLE\)"):
        Bucket("s3", "box", CloudSettings(KEYS | {"AWS_CA_BUNDLE": "/nonexistent/ca.pem"}))


def test_google_without_credentials_raises_before_any_request():
    with pytest.raises(AccessDeniedError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        Bucket("gs", "box", CloudSettings({"HOME": "/nonexistent"}))
