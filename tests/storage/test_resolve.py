"""The mapping of URIs to stores, and missing credentials."""

import sys
import threading

import pytest

from headrace.core.errors import AccessDeniedError, ConfigError, MissingExtraError, UnavailableError
from headrace.storage import Stores
from headrace.storage.http import HttpStore
from headrace.storage.local import LocalStore
from headrace.storage.resolve import MemoryStore
from headrace.testing import ManualClock

NO_CREDENTIALS = {"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}


def test_uris_of_one_scheme_share_a_store():
    stores = Stores({})
    assert isinstance(stores.for_uri("a/b"), LocalStore)
    assert stores.for_uri("/x") is stores.for_uri("file:///y")
    assert isinstance(stores.for_uri("http://h/x"), HttpStore)
    assert stores.for_uri("http://h/x") is stores.for_uri("https://h/x")
    assert isinstance(stores.for_uri("memory://a"), MemoryStore)
    assert stores.for_uri("s3://a/x") is stores.for_uri("s3://b/y")


def test_memory_objects_belong_to_their_stores_instance():
    first, second = Stores({}), Stores({})
    first.for_uri("memory://a").put("memory://a/k", b"1")
    assert list(second.for_uri("memory://a").list("memory://a/")) == []
    assert first.for_uri("memory://b").get("memory://a/k") == b"1"


def test_unknown_scheme_error_lists_known_schemes():
    with pytest.raises(ConfigError, match="use s3://, gs://"):
        Stores({}).for_uri("hdfs://x/y")


def test_missing_credentials_raise_at_once_with_the_sources_searched():
    clock = ManualClock(auto=True)
    store = Stores(NO_CREDENTIALS, clock=clock).for_uri("s3://box")
    with pytest.raises(AccessDeniedError, match=r"AWS_ACCESS_KEY_ID.*'default' in /nonexistent/\.aws/config"):
        store.get("s3://box/k")
    assert clock.slept_s == ()


def test_profile_that_needs_the_sdk_names_the_extra(tmp_path, monkeypatch):
    config = tmp_path / "config"
    config.write_text("[profile p]\ncredential_process = /nonexistent/process\n")
    environ = NO_CREDENTIALS | {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "p"}
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[aws\]'"):
        Stores(environ).for_uri("s3://box").get("s3://box/k")


def test_credential_process_keys_come_through_the_sdk(tmp_path, monkeypatch, http_files):
    script = tmp_path / "keys"
    script.write_text(
        '#!/bin/sh\necho \'{"Version": 1, "AccessKeyId": "from-process", "SecretAccessKey": "s"}\'\n'
    )
    script.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(f"[profile p]\ncredential_process = {script}\n")
    environ = NO_CREDENTIALS | {
        "AWS_CONFIG_FILE": str(config),
        "AWS_PROFILE": "p",
        "AWS_ENDPOINT_URL": http_files.url,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    http_files.objects["/box/k"] = b"1"
    assert Stores().for_uri("s3://box").get("s3://box/k") == b"1"
    assert "Credential=from-process/" in http_files.requests[0][2]["authorization"]


def test_close_ends_all_retry_waits():
    clock, raised = ManualClock(), []
    stores = Stores({}, clock=clock)
    uri = "http://127.0.0.1:9/k"

    def read():
        try:
            stores.for_uri(uri).get(uri)
        except UnavailableError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    clock.wait_for_sleepers()
    stores.close()
    stores.close()
    thread.join(10)
    assert "abandoned" in str(raised[0])


def test_local_store_does_not_import_obstore():
    import subprocess

    code = (
        "import sys; from headrace.storage import Stores; Stores({}).for_uri('x'); "
        "print('obstore' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
