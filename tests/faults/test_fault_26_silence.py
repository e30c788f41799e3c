"""Faults 26 and 27: a database that never answers, and a store that accepts requests and stalls."""

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import levels
from faults.bench import SHORT_LEASE_S, Bench, WorkerProcess
from headrace.jobs.state import JobState
from servers.polling import wait_until
from servers.postgres import PostgresServer
from servers.tcp_proxy import TcpProxy, Way

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GRACE_S, STOP_S = 1.0, 2.0
EXIT_S_MAX = GRACE_S + STOP_S + 10.0
"""The hard limit of a worker with these settings; see `Worker.stop_s_max`."""
SECOND_EXIT_S_MAX = 5.0
SLACK_S = 10.0
"""For a busy machine."""
JOBS = levels.by_level(10, 20, 300)


def _url_through(bench: Bench, proxy: TcpProxy) -> str:
    name = bench.ledger_url.rpartition("/")[2]
    return f"postgresql+psycopg://postgres@127.0.0.1:{proxy.port}/{name}"


def _exit_s(worker: WorkerProcess, *, signals: int) -> float:
    """Send one SIGTERM, or several. Return the seconds until the process has ended."""
    began_s = time.monotonic()
    worker.signal(signal.SIGTERM)

    def left() -> bool:
        # Two signals may arrive as one, so the second is repeated.
        with suppress(psutil.Error, ProcessLookupError):
            if signals > 1 and worker.running:
                worker.signal(signal.SIGTERM)
        return not worker.running

    wait_until(left, "the worker's exit")
    return time.monotonic() - began_s


@pytest.mark.postgres
@pytest.mark.parametrize("signals", [1, 2])
def test_fault_26_worker_ends_although_the_database_never_answers(
    postgres_bench: Bench, postgres: PostgresServer, signals: int
):
    """Fault 26: SIGTERM ends the worker within its limit, and a second one soon; its jobs run elsewhere.

    Before, the worker was still alive four minutes later.
    """
    with TcpProxy(postgres.port) as proxy:
        grace_s = GRACE_S if signals == 1 else 100.0
        silent = postgres_bench.worker(
            ledger_url=_url_through(postgres_bench, proxy),
            lease_s=SHORT_LEASE_S,
            drain_grace_s=grace_s,
            stop_s=STOP_S,
        ).wait_ready()
        held = postgres_bench.submit(4, action="wait_once")
        others = postgres_bench.submit(JOBS, work_ms=20)
        postgres_bench.wait_any_executing(held)
        proxy.hold()
        proxy.wait_until_held()
        postgres_bench.fault_happens(silent.name)
        limit_s = EXIT_S_MAX if signals == 1 else SECOND_EXIT_S_MAX
        assert _exit_s(silent, signals=signals) < limit_s + SLACK_S
        assert silent.process.returncode == 1
        assert "threads wait in" in silent.log_lines("error")
        proxy.heal()
        postgres_bench.release()
        postgres_bench.worker().wait_ready()
        postgres_bench.wait_ended([*held, *others])
        postgres_bench.costs()


@pytest.mark.postgres
def test_fault_26_worker_continues_when_the_database_answers_again(
    postgres_bench: Bench, postgres: PostgresServer
):
    """Fault 26: calls end by their timeouts, on new connections the worker goes on, nothing is doubled."""
    with TcpProxy(postgres.port) as proxy:
        worker = postgres_bench.worker(ledger_url=_url_through(postgres_bench, proxy)).wait_ready()
        numbers = postgres_bench.submit(JOBS, work_ms=20)
        postgres_bench.wait_executions(2)
        proxy.hold()
        proxy.wait_until_held()
        postgres_bench.fault_happens(worker.name)
        wait_until(lambda: "ledger is unavailable" in worker.log_lines(), "the timeouts of a call")
        proxy.heal()
        postgres_bench.wait_ended(numbers)
        assert worker.running
        postgres_bench.costs()


@pytest.fixture
def s3_bench(tmp_path: Path, s3_server, record):
    """A bench whose ledger is a file and whose store is a bucket."""
    uri = f"s3://{s3_server.bucket()}/jobs/"
    ledger_url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with Bench(tmp_path, ledger_url, uri, record=record, stores_environ=s3_server.environ) as opened:
        yield opened


@pytest.mark.s3
def test_fault_27_store_accepts_and_stalls(s3_bench: Bench, s3_server):
    """Fault 27: a worker that leaves ends within its limit; the other one completes every job, once."""
    port = int(s3_server.endpoint.rpartition(":")[2])
    with TcpProxy(port) as proxy:
        environ = {**s3_server.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
        leaving, staying = s3_bench.start_workers(
            2, environ=environ, lease_s=SHORT_LEASE_S, drain_grace_s=GRACE_S, stop_s=STOP_S
        )
        numbers = s3_bench.submit(JOBS, work_ms=50, output_uri=f"{s3_bench.store_uri}wanted/")
        s3_bench.wait_executions(4)
        proxy.hold()
        proxy.wait_until_held(Way.UP)
        s3_bench.fault_happens(leaving.name)
        assert _exit_s(leaving, signals=1) < EXIT_S_MAX + SLACK_S
        proxy.heal()
        s3_bench.wait_ended(numbers)
        assert staying.running
        assert {job.state for job in s3_bench.jobs(numbers).values()} == {JobState.COMPLETED}
        s3_bench.costs()
