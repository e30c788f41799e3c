"""Fixtures that several packages' tests use."""

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from servers import rabbitmq
from servers.http_files import HttpFiles
from servers.moto_server import MotoServer
from servers.postgres import PostgresServer
from servers.rabbitmq import RabbitServer
from servers.seaweed import S3Server
from servers.valkey import ValkeyServer


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Restore the loggers after each test: commands that run in this process configure them."""
    loggers = [logging.getLogger(name) for name in ("", "headrace", "headrace.access")]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    yield
    logging.captureWarnings(capture=False)
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers, one.level, one.propagate = handlers, level, propagate


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Yield a real S3 server, one per test process. A test that stops it must start it again."""
    server = S3Server(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield a real PostgreSQL, one per test process. A test that stops it must start it again."""
    server = PostgresServer(fsync=False)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """Yield the SQLAlchemy URL of a fresh, empty database, which is dropped afterwards with all
    connections.
    """
    name = postgres.create_database()
    yield postgres.url(name)
    if not postgres.running:  # a test that failed half way must not take the others with it
        postgres.kill()
        postgres.start()
    postgres.drop_database(name)


@pytest.fixture
def http_files() -> Iterator[HttpFiles]:
    """Yield a plain HTTP server whose objects and faults the test chooses."""
    with HttpFiles() as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """Yield a real Valkey, one per test process. A test that stops it must start it again."""
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    """Yield a real RabbitMQ, one per test process. A test that stops it must start it again."""
    if why := rabbitmq.missing():
        pytest.skip(why)
    # Not below pytest's own folder, which the user that the node runs as may not enter.
    with tempfile.TemporaryDirectory(prefix="headrace-rabbitmq-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = RabbitServer(folder)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """Yield an imitation of SQS, SNS and S3, one per test process. A test that stops it must start
    it again.
    """
    server = MotoServer(tmp_path_factory.mktemp("moto"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate authority, and certificates of a server and a client."""
    folder = tmp_path_factory.mktemp("pems")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("server", "client"):
        issued = authority.issue_cert("localhost", common_name=name)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return folder
