"""The PostgreSQL server of the tests: data that survives, and faults that are real."""

import os

import psycopg
import pytest
from sqlalchemy import create_engine, text

from servers.postgres import PostgresServer, _reachable

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres: PostgresServer, postgres_url: str) -> str:
    """The name of a database with one row in it."""
    name = postgres_url.rpartition("/")[2]
    with postgres.connect(name) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('here')")
    return name


def _words(postgres: PostgresServer, database: str) -> list[tuple[str]]:
    with postgres.connect(database) as connection:
        return connection.execute("SELECT word FROM kept ORDER BY word").fetchall()


@pytest.mark.parametrize(("options", "fsync"), [({}, "on"), ({"fsync": False}, "off")])
def test_server_is_durable_by_default(options, fsync):
    server = PostgresServer(**options)
    try:
        server.start()
        with server.connect() as connection:
            assert connection.execute("SHOW fsync").fetchone() == (fsync,)
            assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
    finally:
        server.close()


@pytest.mark.parametrize("immediate", [False, True])
def test_restart_ends_sessions_and_keeps_data_and_port(postgres, database, immediate):
    port = postgres.port
    session = postgres.connect(database)
    postgres.restart(immediate=immediate)
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    assert postgres.port == port
    assert _words(postgres, database) == [("here",)]


def test_kill_loses_only_uncommitted_data(postgres, database):
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


def test_terminate_backends_of_one_database_keeps_others(postgres, database):
    with postgres.connect() as other:
        sessions = [postgres.connect(database) for _ in range(3)]
        assert postgres.terminate_backends(database) == 3
        for session in sessions:
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_databases_are_empty_and_different(postgres, postgres_url):
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


def test_dropping_a_database_ends_its_sessions(postgres):
    name = postgres.create_database()
    session = postgres.connect(name)
    postgres.drop_database(name)
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")


def test_close_removes_process_and_files():
    server = PostgresServer(fsync=False)
    server.start()
    with server.connect() as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("off",)
    server.close()
    server.close()
    assert not server.running
    assert not server.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")
def test_binaries_that_only_root_can_read_are_copied(tmp_path):
    closed, opened = tmp_path / "closed", tmp_path / "opened"
    (closed / "pginstall" / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    opened.mkdir()
    assert _reachable(closed / "pginstall", opened) == opened / "pginstall"
    assert (opened / "pginstall" / "bin").is_dir()
