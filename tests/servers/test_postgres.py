"""The server that other tests stand on: what it keeps, and that its ends are real ends."""

import os

import psycopg
import pytest
from sqlalchemy import create_engine, text

from servers.postgres import PostgresServer, _reachable

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres: PostgresServer, postgres_url: str) -> str:
    """A database with one row in it."""
    name = postgres_url.rpartition("/")[2]
    with postgres.connect(name) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('here')")
    return name


def _words(postgres: PostgresServer, database: str) -> list[tuple[str]]:
    with postgres.connect(database) as connection:
        return connection.execute("SELECT word FROM kept ORDER BY word").fetchall()


@pytest.mark.parametrize(("given", "fsync"), [({}, "on"), ({"fsync": False}, "off")])
def test_it_is_durable_by_default(given, fsync):
    server = PostgresServer(**given)
    try:
        server.start()
        with server.connect() as connection:
            assert connection.execute("SHOW fsync").fetchone() == (fsync,)
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
    finally:
        server.close()


@pytest.mark.parametrize("immediate", [False, True])
def test_a_restart_throws_sessions_out_and_keeps_data_and_port(postgres, database, immediate):
    port = postgres.port
    session = postgres.connect(database)
    postgres.restart(immediate=immediate)
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    assert postgres.port == port
    assert _words(postgres, database) == [("here",)]


def test_a_kill_loses_what_was_not_committed_and_nothing_else(postgres, database):
    session = postgres.connect(database)
    session.autocommit = False
    session.execute("INSERT INTO kept VALUES ('never committed')")
    postgres.kill()
    assert not postgres.running
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        postgres.connect(database)
    postgres.start()
    assert _words(postgres, database) == [("here",)]


def test_thrown_out_are_those_of_one_database(postgres, database):
    with postgres.connect() as other:
        sessions = [postgres.connect(database) for _ in range(3)]
        assert postgres.terminate_backends(database) == 3
        for session in sessions:
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_every_test_has_an_empty_database_of_its_own(postgres, postgres_url):
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        tables = text("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        assert connection.execute(tables).scalar_one() == 0
    name = postgres.create_database()
    assert postgres.url(name) != postgres_url
    postgres.drop_database(name)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        postgres.connect(name)
    engine.dispose()


def test_a_dropped_database_does_not_wait_for_its_users(postgres):
    name = postgres.create_database()
    session = postgres.connect(name)
    postgres.drop_database(name)
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")


def test_nothing_of_it_is_left():
    server = PostgresServer(fsync=False)
    server.start()
    with server.connect() as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("off",)
    server.close()
    server.close()
    assert not server.running
    assert not server.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's own files are closed to whoever it runs as")
def test_binaries_that_only_root_may_reach_are_copied(tmp_path):
    closed, opened = tmp_path / "closed", tmp_path / "opened"
    (closed / "pginstall" / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    opened.mkdir()
    assert _reachable(closed / "pginstall", opened) == opened / "pginstall"
    assert (opened / "pginstall" / "bin").is_dir()
