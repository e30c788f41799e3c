"""Fault 6: others hold all connections that the database gives."""

import contextlib

import psycopg
import pytest

from faults.bench import until

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(240)]

TRIES = 300


def test_fault_06_connections_all_taken_by_300_idle_sessions(postgres_bench, postgres):
    """Fault 6: jobs wait; nobody deadlocks or gives up, and all is done once there is room."""
    name = postgres_bench.ledger_url.rpartition("/")[2]
    workers = postgres_bench.fleet(2)
    first = postgres_bench.submit(8, work_ms=50)
    postgres_bench.wait_ended(first)
    later = postgres_bench.submit(20, work_ms=50, delay_ms=1500)
    with contextlib.ExitStack() as idle:
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

        take()
        # The workers' own sessions go, and others are first to take what is free then.
        with (
            contextlib.suppress(psycopg.OperationalError),
            contextlib.closing(_spare(idle, postgres)) as session,
        ):
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
                (name,),
            )
            take()
        assert taken > 50
        assert refused
        until(
            lambda: any("does not answer" in worker.said("warning") for worker in workers), what="a refusal"
        )
        postgres_bench.wreck()
    postgres_bench.wait_ended(later)
    assert all(worker.running for worker in workers)
    postgres_bench.tally()


def _spare(idle, postgres):
    """A session in the place of one of the idle ones."""
    idle._exit_callbacks.pop()[1](None, None, None)
    return postgres.connect("postgres")
