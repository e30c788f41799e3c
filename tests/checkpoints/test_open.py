"""Opening of a checkpoint store by its address, without connecting."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from cases import for_each
from headrace.checkpoints import open_store
from headrace.checkpoints.redis import RedisCheckpointStore
from headrace.checkpoints.sqlite import SqliteCheckpointStore
from headrace.checkpoints.store import KEEP_MS, MemoryCheckpointStore
from headrace.core.errors import ConfigError, MissingExtraError


def test_memory_address():
    store = open_store("memory:", "m")
    assert isinstance(store, MemoryCheckpointStore)
    assert store.model == "m"


@pytest.mark.parametrize("form", ["sqlite:///c.db", "sqlite:///{}/c.db", "c.db", "./c.db", "{}/c.db"])
def test_sqlite_address(form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(open_store(form.format(tmp_path), "m")) as store:
        assert isinstance(store, SqliteCheckpointStore)
        assert store.path.resolve() == tmp_path / "c.db"
        assert store.model == "m"
    assert Path("c.db").is_file()


@pytest.mark.parametrize(("options", "level"), [("", 2), ("?synchronous=normal", 1)])
def test_synchronous_option(options, level, tmp_path):
    with closing(open_store(f"sqlite:///{tmp_path}/c.db{options}", "m")) as store:
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert store.path == tmp_path / "c.db"


def test_redis_address_options(tmp_path):
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    store = open_store(f"rediss://u%2F:p%40@h:7000/3?prefix=mine&cafile={authorities}", "m/1")
    assert isinstance(store, RedisCheckpointStore)
    assert store.model == "m/1"
    assert (store._keep_ms, open_store("redis://h", "m", keep_ms=1500.5)._keep_ms) == (KEEP_MS, 1501)
    pool = store._client.connection_pool
    arguments = pool.connection_kwargs
    assert pool.connection_class.__name__ == "SSLConnection"
    assert arguments["ssl_ca_certs"] == str(authorities)
    assert [arguments[name] for name in ("host", "port", "db", "username", "password")] == [
        "h",
        7000,
        3,
        "u/",
        "p@",
    ]
    assert store._keys_of(["a"]) == ["mine:{m%2F1}:saved", "mine:{m%2F1}:of:a"]


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("redis://localhost", "redis at localhost:6379"),
        ("valkey://h:7000/3", "redis at h:7000"),
        ("redis://[::1]:7000", "redis at ::1:7000"),
    ],
)
def test_redis_server_name(address, where):
    assert open_store(address, "m")._server == where


@for_each(
    "address",
    [
        "",
        "memory",
        "memory://",
        "memory:x",
        ":memory:",
        "sqlite://c.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///c.db?mode=ro",
        "sqlite:///c.db?synchronous=off",
        "sqlite:///?synchronous=normal",
        "c.db?synchronous=normal",
        "folder/",
        "no/such/folder/c.db",
        "postgresql://u:secret@h/d",
        "redis://",
        "redis://u:secret@h/name",
        "redis://u:secret@h:port",
        "redis://u:secret@h?ssl_cert_reqs=none",
        "redis://u:secret@h?cafile=x",
        "redis://u:secret@h?prefix=",
        "redis://u:secret@h?prefix",
        "redis://u:secret@h?prefix=a&prefix=b",
        "redis://u:secret/x@h",
        "rediss://u:secret@h?cafile=/no/such/file",
    ],
)
def test_invalid_address_error_hides_the_password(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("memory").mkdir(exist_ok=True)  # the address "memory" is then the path of a folder
    with pytest.raises(ConfigError) as found:
        open_store(address, "m")
    assert "secret" not in str(found.value)


def test_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "headrace.checkpoints.redis", raising=False)
    open_store("memory:", "m")
    with pytest.raises(MissingExtraError) as raised:
        open_store("redis://h", "m")
    assert raised.value.extra == "redis"
