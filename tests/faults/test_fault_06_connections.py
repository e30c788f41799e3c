"""Fault 6: others hold all connections that the database gives."""

import contextlib

import httpx
import psycopg
import pytest

from faults.bench import until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(240)]

TRIES = 300


def test_fault_06_connections_all_taken_by_300_idle_sessions(postgres_bench, postgres):
    """Fault 6: jobs wait; nobody deadlocks or gives up, and all is done once there is room."""
    name = postgres_bench.ledger_url.rpartition("/")[2]
    workers = postgres_bench.fleet(2)
    api = postgres_bench.api()
    first = postgres_bench.submit(8, work_ms=50)
    postgres_bench.wait_ended(first)
    later = postgres_bench.submit(20, work_ms=50, delay_ms=1500)
    # It needs a session of its own, which it takes while there are some.
    with postgres.connect("postgres") as session, contextlib.ExitStack() as idle:
        taken, refused = 0, 0

        def take() -> None:
            nonlocal taken, refused
            while refused < TRIES:
                try:
                    idle.callback(postgres.connect("postgres").close)
                    taken += 1
                except psycopg.OperationalError:
                    refused += 1
                    return

        # The sessions of headrace go, again and again, until others were first to take what is free then.
        def refused_everywhere() -> bool:
            session.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
            take()
            warned = any("does not answer" in worker.said("warning") for worker in workers)
            return warned and _get(api, postgres_bench.ids[0]).status_code == 503

        until(refused_everywhere, what="a refusal")
        assert taken > 50
        assert refused
        told = _get(api, postgres_bench.ids[0])
        assert told.status_code == 503, told.text
        assert int(told.headers["Retry-After"]) >= 1
        assert name not in told.text, "where the database is, is nobody's business"
        postgres_bench.wreck()
    postgres_bench.wait_ended(later)
    until(api.answers)
    assert all(worker.running for worker in workers)
    postgres_bench.tally()


def _get(api, job_id: str) -> httpx.Response:
    return httpx.get(f"{api.url}/v1/jobs/{job_id}", timeout=60)
