"""Fault 6: other sessions take all connections of the database."""

import contextlib

import httpx
import psycopg
import pytest

from faults.bench import ApiProcess
from servers.polling import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(240)]

SESSIONS_MAX = 300


def test_fault_06_connections_all_taken_by_idle_sessions(postgres_bench, postgres):
    """Fault 6: jobs wait, no process deadlocks or exits, and all jobs complete once connections are free."""
    name = postgres_bench.ledger_url.rpartition("/")[2]
    workers = postgres_bench.start_workers(2)
    api = postgres_bench.api()
    first = postgres_bench.submit(8, work_ms=50)
    postgres_bench.wait_ended(first)
    later = postgres_bench.submit(20, work_ms=50, delay_ms=1500)
    # The test's own session opens while connections are free.
    with postgres.connect("postgres") as session, contextlib.ExitStack() as idle:
        taken, refused = 0, 0

        def take_all() -> None:
            nonlocal taken, refused
            while refused < SESSIONS_MAX:
                try:
                    idle.callback(postgres.connect("postgres").close)
                    taken += 1
                except psycopg.OperationalError:
                    refused += 1
                    return

        # headrace's sessions are ended until the idle sessions have all connections.
        def refused_everywhere() -> bool:
            session.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
            take_all()
            return any(worker.warnings() for worker in workers) and (
                _get_job(api, postgres_bench.ids[0]).status_code == 503
            )

        wait_until(refused_everywhere, "a refused connection of the API")
        assert taken > 50
        assert refused
        response = _get_job(api, postgres_bench.ids[0])
        assert response.status_code == 503, response.text
        assert int(response.headers["Retry-After"]) >= 1
        assert name not in response.text, "the response names the database"
        postgres_bench.fault_happens()
    postgres_bench.wait_ended(later)
    wait_until(api.responds, "a response of the API")
    assert all(worker.running for worker in workers)
    postgres_bench.costs()


def _get_job(api: ApiProcess, job_id: str) -> httpx.Response:
    return httpx.get(f"{api.url}/v1/jobs/{job_id}", timeout=60)
