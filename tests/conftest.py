"""Fixtures that more than one room's tests use."""

import signal
from collections.abc import Iterator

import pytest

from servers.http_files import HttpFiles
from servers.seaweed import S3Server


def pytest_configure() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so does all that it starts; tests press it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, one a test process. A test that stops it must start it again."""
    server = S3Server(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def http_files() -> Iterator[HttpFiles]:
    """A plain HTTP server whose objects and faults the test decides."""
    with HttpFiles() as server:
        yield server
