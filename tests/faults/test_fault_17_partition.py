"""Fault 17: the wire between a worker and the database is cut."""

import threading

import pytest

from faults.bench import Bench, until
from servers.netns import Namespace
from servers.postgres import PostgresServer
from servers.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(240)]


def _through(bench: Bench, host: str, port: int) -> str:
    """The ledger's URL by another way, with a wire that is given up after two seconds."""
    name = bench.ledger_url.rpartition("/")[2]
    return f"postgresql+psycopg://postgres@{host}:{port}/{name}?connect_timeout=2&tcp_user_timeout=2000"


def test_fault_17_partition_shorter_than_the_lease(postgres_bench: Bench, postgres: PostgresServer):
    """Fault 17: nothing comes of it: no lease is lost, nothing is done twice."""
    with Namespace() as far, TcpProxy(postgres.port, host=far.outside) as proxy:
        url = _through(postgres_bench, far.outside, proxy.port)
        # A lease far above the cut, since only their order is of interest.
        worker = postgres_bench.worker(
            ledger_url=url, prefix=far.command(), lease_s=30.0, beat_s=0.5
        ).wait_ready()
        near = postgres_bench.worker().wait_ready()
        numbers = postgres_bench.submit(40, work_ms=200)
        until(lambda: len(postgres_bench.executions()) > 8)
        far.cut()
        threading.Event().wait(2.5)
        far.heal()
        postgres_bench.wreck()
        postgres_bench.wait_ended(numbers)
        assert worker.running
        assert near.running
        assert {job.lease for job in postgres_bench.jobs().values()} == {1}
        assert postgres_bench.tally().duplicate_executions == 0


def test_fault_17_partition_longer_than_the_lease(postgres_bench: Bench, postgres: PostgresServer):
    """Fault 17: others take over, the one beyond the cut is refused when it is back, and it goes on to work."""
    with Namespace() as far, TcpProxy(postgres.port, host=far.outside) as proxy:
        url = _through(postgres_bench, far.outside, proxy.port)
        beyond = postgres_bench.worker(ledger_url=url, prefix=far.command()).wait_ready()
        held = postgres_bench.submit(1, deed="wait_once")
        postgres_bench.wait_executing(held)
        far.cut()
        postgres_bench.wreck(beyond.name)
        heir = postgres_bench.worker().wait_ready()
        others = postgres_bench.submit(20, work_ms=50)
        postgres_bench.wait_ended([*held, *others])
        done = postgres_bench.job(held[0])
        assert (done.worker, done.lease) == (heir.name, 2)
        # Also beyond the cut the work comes to its end, and is to be settled.
        postgres_bench.go()
        far.heal()
        assert heir.end() == 0
        later = postgres_bench.submit(10, work_ms=10)
        postgres_bench.wait_ended(later)
        assert beyond.running
        assert postgres_bench.job(held[0]) == done
        postgres_bench.tally()


def test_fault_17_partition_by_a_way_that_takes_all_and_gives_nothing(
    postgres_bench: Bench, postgres: PostgresServer
):
    """Fault 17: what is between them acknowledges everything and passes nothing on; others take over meanwhile."""
    with TcpProxy(postgres.port) as proxy:
        beyond = postgres_bench.worker(
            ledger_url=_through(postgres_bench, "127.0.0.1", proxy.port)
        ).wait_ready()
        held = postgres_bench.submit(1, deed="wait_once")
        postgres_bench.wait_executing(held)
        proxy.hold()
        postgres_bench.wreck(beyond.name)
        heir = postgres_bench.worker().wait_ready()
        postgres_bench.wait_ended(held)
        done = postgres_bench.job(held[0])
        assert (done.worker, done.lease) == (heir.name, 2)
        postgres_bench.go()
        proxy.heal()
        assert heir.end() == 0
        later = postgres_bench.submit(10, work_ms=10)
        postgres_bench.wait_ended(later)
        assert beyond.running
        assert postgres_bench.job(held[0]) == done
        postgres_bench.tally()
