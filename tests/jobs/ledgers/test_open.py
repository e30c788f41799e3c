import sys

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.ledgers.postgres import PostgresJobLedger
from headrace.jobs.ledgers.sqlite import SqliteJobLedger


def test_path_opens_an_sqlite_file(tmp_path):
    for url in (str(tmp_path / "jobs.db"), f"sqlite:///{tmp_path}/jobs.db"):
        ledger = open_ledger(url)
        assert isinstance(ledger, SqliteJobLedger)
        assert ledger.path == tmp_path / "jobs.db"


@for_each("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_url_opens_a_postgres_ledger(scheme):
    assert isinstance(open_ledger(f"{scheme}://user@host/jobs?sslmode=require"), PostgresJobLedger)


@for_each(
    "url",
    [
        "mysql://host/jobs",
        "sqlite://",
        "sqlite:///",
        "sqlite://jobs.db",
        ":memory:",
        "sqlite:///:memory:",
        "",
        "postgresql://host",
        "postgresql://host:port/jobs",
    ],
)
def test_other_urls_are_refused(url):
    with pytest.raises(ConfigError):
        open_ledger(url)


@pytest.mark.parametrize(
    ("package", "url", "extra"),
    [("sqlalchemy", "jobs.db", "jobs"), ("psycopg", "postgresql://host/jobs", "postgres")],
)
def test_missing_package_names_its_extra(monkeypatch, package, url, extra):
    for name in [n for n in sys.modules if n.startswith("headrace.jobs.ledgers") and not n.endswith(".open")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as raised:
        open_ledger(url)
    assert raised.value.extra == extra


def test_messages_do_not_contain_the_password():
    with pytest.raises(ConfigError) as raised:
        open_ledger("postgresql://user:secret@host:port/jobs")
    assert "secret" not in str(raised.value)
