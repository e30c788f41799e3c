"""A model whose Valkey server is away: its readiness, and the requests that need no store."""

import asyncio
import time

import pytest

from engine.sequences.sum_model import engine, infer_sums, sums
from headrace.checkpoints.redis import TIMEOUT_S
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


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_stalled_server_delays_no_request_without_sequence(valkey):
    """It is stopped, so it accepts connections and never responds."""

    async def main(only):
        assert await infer_sums(only, 1, sequence_id="s", sequence_start=True) == [1]
        valkey.pause()
        try:
            steps = [
                asyncio.create_task(infer_sums(only, 10, sequence_id="s")),
                asyncio.create_task(infer_sums(only, 1, sequence_id="elsewhere")),
            ]
            longest_s, requests = 0.0, 0
            while only.ready or not all(step.done() for step in steps):
                began_s = time.monotonic()
                assert await infer_sums(only, 1) == [1]
                longest_s, requests = max(longest_s, time.monotonic() - began_s), requests + 1
            assert [await step for step in steps] == ["UnavailableError"] * 2
            assert requests > 100
            # Not the time-out of the store, also on a busy machine.
            assert longest_s < TIMEOUT_S / 2
            began_s = time.monotonic()
            assert await infer_sums(only, 1, sequence_id="t", sequence_start=True) == "UnavailableError"
            assert time.monotonic() - began_s < TIMEOUT_S / 2
        finally:
            valkey.resume()
        await asyncio.to_thread(wait_until, lambda: only.ready, "ready")
        # The save may have happened late, or not.
        assert await infer_sums(only, 100, sequence_id="s") in ([101], [111])

    with engine(valkey.url) as only:
        asyncio.run(main(only))
