"""Fault 17: the network between a worker and the database is cut."""

import pytest

from faults.bench import SHORT_LEASE_S, Bench
from servers.netns import Namespace
from servers.polling import wait_until
from servers.postgres import PostgresServer
from servers.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(240)]


def _url_through(bench: Bench, host: str, port: int) -> str:
    """Return the ledger's URL through a proxy, with connections that give up after two seconds."""
    name = bench.ledger_url.rpartition("/")[2]
    return f"postgresql+psycopg://postgres@{host}:{port}/{name}?connect_timeout=2&tcp_user_timeout=2000"


def test_fault_17_partition_shorter_than_the_lease(postgres_bench: Bench, postgres: PostgresServer):
    """Fault 17: no lease is lost, and no job runs twice."""
    with Namespace() as far, TcpProxy(postgres.port, host=far.outside) as proxy:
        url = _url_through(postgres_bench, far.outside, proxy.port)
        # Both leases are far longer than the cut, and than a busy machine holds up a worker.
        cut_off = postgres_bench.worker(name="cut-off", ledger_url=url, prefix=far.command()).wait_ready()
        near = postgres_bench.worker(name="near").wait_ready()
        numbers = postgres_bench.submit(40, work_ms=100)
        postgres_bench.wait_executions(8)
        far.cut()
        wait_until(cut_off.warnings, "a warning of the worker that is cut off")
        far.heal()
        postgres_bench.fault_happens()
        postgres_bench.wait_ended(numbers)
        assert cut_off.running
        assert near.running
        assert postgres_bench.lost_leases() == []
        postgres_bench.check_single_executions()


def test_fault_17_partition_longer_than_the_lease(postgres_bench: Bench, postgres: PostgresServer):
    """Fault 17: another worker takes over, the late settlement is refused, and the worker works again."""
    with Namespace() as far, TcpProxy(postgres.port, host=far.outside) as proxy:
        url = _url_through(postgres_bench, far.outside, proxy.port)
        cut_off = postgres_bench.worker(
            ledger_url=url, prefix=far.command(), lease_s=SHORT_LEASE_S
        ).wait_ready()
        held = postgres_bench.submit(1, action="wait_once")
        postgres_bench.wait_executing(held)
        far.cut()
        postgres_bench.fault_happens(cut_off.name)
        heir = postgres_bench.worker().wait_ready()
        others = postgres_bench.submit(20, work_ms=50)
        postgres_bench.wait_ended([*held, *others])
        done = postgres_bench.job(held[0])
        assert (done.worker, done.lease) == (heir.name, 2)
        # The call of the worker that is cut off ends too, and its settlement waits.
        postgres_bench.release()
        far.heal()
        assert heir.terminate() == 0
        later = postgres_bench.submit(10, work_ms=10)
        postgres_bench.wait_ended(later)
        assert cut_off.running
        assert postgres_bench.job(held[0]) == done
        postgres_bench.costs()


def test_fault_17_partition_by_a_proxy_that_accepts_and_forwards_nothing(
    postgres_bench: Bench, postgres: PostgresServer
):
    """Fault 17: a proxy acknowledges all bytes and forwards none; another worker takes over meanwhile."""
    with TcpProxy(postgres.port) as proxy:
        cut_off = postgres_bench.worker(
            ledger_url=_url_through(postgres_bench, "127.0.0.1", proxy.port), lease_s=SHORT_LEASE_S
        ).wait_ready()
        held = postgres_bench.submit(1, action="wait_once")
        postgres_bench.wait_executing(held)
        proxy.hold()
        postgres_bench.fault_happens(cut_off.name)
        heir = postgres_bench.worker().wait_ready()
        postgres_bench.wait_ended(held)
        done = postgres_bench.job(held[0])
        assert (done.worker, done.lease) == (heir.name, 2)
        postgres_bench.release()
        proxy.heal()
        assert heir.terminate() == 0
        later = postgres_bench.submit(10, work_ms=10)
        postgres_bench.wait_ended(later)
        assert cut_off.running
        assert postgres_bench.job(held[0]) == done
        postgres_bench.costs()
