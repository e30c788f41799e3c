"""A model whose Valkey server is away: its readiness, and the requests that need no store."""

import pytest

from engine.sequences.sum_model import engine, sums
from servers.polling import wait_until
from servers.valkey import ValkeyServer


@pytest.fixture
def valkey(tmp_path):
    """Yield a Valkey that the test may stop."""
    server = ValkeyServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
def test_readiness_follows_a_stopped_server(valkey):
    with engine(valkey.url) as only:
        assert only.ready
        valkey.stop()
        wait_until(lambda: not only.ready, "not ready")
        assert sums(only, 1) == [1]
        valkey.start()
        wait_until(lambda: only.ready, "ready")
    valkey.stop()
    with engine(valkey.url) as only:
        assert not only.ready
        valkey.start()
        wait_until(lambda: only.ready, "ready")
