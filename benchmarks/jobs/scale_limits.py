"""Section scale: the cost of each part of a fleet of workers, on PostgreSQL.

The cost of a statement is the processor time of the database's server for one item, which adds up over
all parts. Its rate is that of this machine, whose cores the clients of the measurement share.
"""

import argparse
import itertools
import json
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import psutil
import psycopg
from disk_limit import rate
from inputs import FOLDER
from job_storage import POSTGRES, JobStorage, open_storage
from large_table import fill
from process_tree import tree_cpu_s, tree_memory_mb
from submits import new_job, running_api
from targets import Target, spread

from headrace.jobs.job import Completed, ResultRef, Settlement, new_job_id
from headrace.jobs.ledger import ClaimRequest, Heartbeat
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.ledgers.sql import SqlJobLedger
from headrace.jobs.maintenance import Retention, Sweeper
from headrace.jobs.notify import make_secret
from headrace.jobs.notify.deliverer import Deliverer
from headrace.jobs.notify.notifiers import WebhookNotifier
from headrace.jobs.outbound import OutboundPolicy, parse_network
from headrace.jobs.outbound.client import OutboundClient
from headrace.jobs.paths import JobPaths
from headrace.jobs.worker_registry import WorkerInfo
from headrace.scaling.actuators.publish import PublishOnly
from headrace.scaling.controller import ScalingController
from headrace.scaling.settings import PoolSettings, WorkerRange
from headrace.storage.resolve import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger
from servers.receiver import Receiver
from servers.seaweed import S3Server

QUEUES = ("default",)
LEASE_MS = 60_000
LEASE_OF_RUNNING_MS = 3_600_000
SLOTS = 8
CLAIM_SIZES = (1, 8, 64)
SUBMIT_SIZES = (1, 100, 1000)
WAITING = 30_000
"""Waiting jobs before claims are measured; two workers take fewer."""
SWEPT = 200
"""Jobs of one round of retention, as the sweeper deletes them."""
LISTENERS = (0, 20, 80)
"""Numbers of listening connections; a server has 100 connections by default."""
NOTICES = 400
WORKERS = 20
"""Workers whose connections are measured."""
RECEIVERS = (1, 16)
FOLLOWED = 500
"""Jobs of one read for the requests that wait for jobs."""
API_BATCH, API_BATCHES = 500, 8
"""Jobs of a request, and requests. Clients without a key may have 10,000 waiting jobs."""
_RESULT = Completed(ResultRef("s3://bucket/attempts/result.out", 120, "application/json"))
_END_S = 60.0


@dataclass(frozen=True)
class Cost:
    """The rate of one kind of item, and the microseconds of the servers' processor time for each.

    Bytes of an item are in the place of the rate, and have no processor time.
    """

    per_s: float
    db_us: float | None = None


Costs = dict[str, Cost]


def section(arguments: argparse.Namespace) -> tuple[list[Target], dict]:
    """Database time of each part of a fleet, on PostgreSQL; listings, deliveries and notices"""
    runs = [one_round(arguments) for _ in range(arguments.pairs)]
    figures = {name: [asdict(run[name]) for run in runs] for name in runs[0]}
    return [target(name, [run[name] for run in runs]) for name in runs[0]], figures


def one_round(arguments: argparse.Namespace) -> Costs:
    """Return the costs of all parts."""
    seconds = arguments.scale_s
    with open_storage([POSTGRES]) as new:
        return {
            **of_jobs(new(POSTGRES), seconds),
            **of_rows(new(POSTGRES), arguments.scale_jobs),
            **of_fleet(new(POSTGRES), arguments.scale_workers, seconds),
            **of_connections(new(POSTGRES)),
            **of_retention(new(POSTGRES), arguments.ended, seconds),
            **of_notices(new(POSTGRES)),
            **of_deliveries(new(POSTGRES), arguments.scale_webhooks),
            **of_api(new(POSTGRES)),
            **of_listing(arguments.scale_objects),
        }


def target(name: str, costs: Sequence[Cost]) -> Target:
    rates = [cost.per_s for cost in costs]
    times_us = [cost.db_us for cost in costs if cost.db_us is not None]
    used = f"{median(times_us):,.0f} µs of the servers each" if times_us else ""
    what = f"{name}, each second" if times_us else name
    return Target("scale", what, used, median(rates), None, True, spread(rates))


def server_cpu_s() -> float:
    """Return the processor time of all started processes without this one."""
    return tree_cpu_s() - time.process_time()


@dataclass
class Meter:
    """The wall time and the servers' processor time since its creation."""

    began_s: float
    used_s: float

    @classmethod
    def started(cls) -> "Meter":
        return cls(time.perf_counter(), server_cpu_s())

    def cost(self, items: int) -> Cost:
        """Return the cost of one of these items."""
        wall_s, used_s = time.perf_counter() - self.began_s, server_cpu_s() - self.used_s
        return Cost(items / wall_s, used_s / items * 1e6)


def cost(seconds: float, do: Callable[[], int], *, threads: int = 1) -> Cost:
    """Return the cost of an item of `do`, which returns the number of its items, over some seconds."""
    items = 0
    lock = threading.Lock()

    def counted() -> None:
        nonlocal items
        done = do()
        with lock:
            items += done

    counted()
    items, meter = 0, Meter.started()
    rate(seconds, threads, counted)
    return meter.cost(items)


def calls(seconds: float, do: Callable[[], object]) -> Cost:
    """Return the cost of a call, over some seconds."""

    def once() -> int:
        do()
        return 1

    return cost(seconds, once)


@contextmanager
def opened(storage: JobStorage, connections_max: int | None = None) -> Iterator[SqlJobLedger]:
    """Yield the ledger, started, with the connections of a worker or of the API."""
    ledger = open_ledger(storage.ledger_url, connections_max=connections_max)
    ledger.start()
    try:
        yield ledger
    finally:
        ledger.stop()


def connect(storage: JobStorage) -> "psycopg.Connection":
    return psycopg.connect(storage.ledger_url.replace("+psycopg", ""), autocommit=True)


def of_jobs(storage: JobStorage, seconds: float) -> Costs:
    """Return the costs of submissions, and of claims with settlements, by their sizes."""
    found: Costs = {}
    with opened(storage) as ledger:
        for size in SUBMIT_SIZES:
            found[f"jobs submitted, {size} at a time"] = cost(
                seconds, lambda size=size: len(ledger.submit([new_job() for _ in range(size)]))
            )
        found["claims of an empty queue"] = idle_claims(storage, seconds)
        for size in CLAIM_SIZES:
            while ledger.counts("default").due < WAITING:
                ledger.submit([new_job() for _ in range(1000)])
            found[f"jobs claimed and settled, {size} at a time"] = claims(storage, size, seconds)
    return found


def claims(storage: JobStorage, size: int, seconds: float) -> Cost:
    """Return the cost of a job: two workers settle the jobs of their last claim with the next one."""
    with opened(storage, 1) as one, opened(storage, 1) as other:
        turns = {ledger: Turns(ledger, size) for ledger in (one, other)}
        free = [one, other]

        def do() -> int:
            # A worker is in one thread at a time.
            ledger = free.pop()
            try:
                return turns[ledger].turn()
            finally:
                free.append(ledger)

        return cost(seconds, do, threads=2)


class Turns:
    """The transactions of one worker that always has as many jobs as it claims."""

    def __init__(self, ledger: SqlJobLedger, size: int) -> None:
        self._ledger = ledger
        self._claim = ClaimRequest("bench", QUEUES, size, LEASE_MS)
        self._settlements: list[Settlement] = []

    def turn(self) -> int:
        """Settle the last jobs and claim the next ones. Return the number of settled jobs."""
        settled = len(self._settlements)
        reply = self._ledger.settle_and_claim(self._settlements, self._claim)
        self._settlements = [Settlement(job.id, job.lease, _RESULT) for job in reply.claimed]
        return settled


def idle_claims(storage: JobStorage, seconds: float) -> Cost:
    """Return the cost of a claim that finds no job."""
    claim = ClaimRequest("idle", ("empty",), SLOTS, LEASE_MS)
    with opened(storage, 1) as ledger:
        return calls(seconds, lambda: ledger.settle_and_claim((), claim))


def of_rows(storage: JobStorage, jobs: int) -> Costs:
    """Return the bytes of an ended job: in the tables with their indexes, and in the write-ahead log."""
    with opened(storage) as ledger, connect(storage) as connection:
        began = one(connection, "SELECT pg_current_wal_insert_lsn()")
        for _ in range(0, jobs, 100):
            ledger.submit([replace(new_job(), deadline_s=604_800) for _ in range(100)])
        turns = Turns(ledger, SLOTS)
        turns.turn()
        while turns.turn():
            pass
        written = one(connection, f"SELECT pg_current_wal_insert_lsn() - '{began}'::pg_lsn")
        connection.execute("VACUUM (ANALYZE) headrace_job")
        stored = one(connection, "SELECT pg_total_relation_size('headrace_job')")
    return {
        "bytes of an ended job with its indexes": Cost(stored / jobs),
        "bytes of a job in the write-ahead log": Cost(float(written) / jobs),
    }


def one(connection: "psycopg.Connection", query: str):
    """Return the value of a query."""
    return connection.execute(query).fetchone()[0]


def of_fleet(storage: JobStorage, workers: int, seconds: float) -> Costs:
    """Return the costs of registered workers: heartbeats, orders, maintenance, lists and decisions."""
    with opened(storage) as ledger:
        names = [f"worker-{number:04}" for number in range(workers)]
        beats = {name: register(ledger, name) for name in names}
        cycle = itertools.cycle(names)

        def beat(jobs: int) -> None:
            name = next(cycle)
            ledger.heartbeat(name, beats[name][:jobs], LEASE_OF_RUNNING_MS)

        controller = ScalingController(ledger, PublishOnly(), PoolSettings(WorkerRange(0, workers)))
        found = {
            "heartbeats without jobs": calls(seconds, partial(beat, 0)),
            f"heartbeats with {SLOTS} jobs": calls(seconds, partial(beat, SLOTS)),
            "reads of orders": calls(seconds, lambda: ledger.worker_orders(next(cycle))),
            "rounds of the reaper": calls(seconds, lambda: ledger.maintain(500)),
            "rounds of the publisher": calls(seconds, lambda: ledger.claim_publications(100)),
            f"lists of {workers} workers": calls(seconds, ledger.workers),
            f"decisions over {workers} workers": calls(seconds, controller.decide_once),
            "counts of a queue": calls(seconds, lambda: ledger.counts("default")),
            "reads of the counters": calls(seconds, ledger.counters),
        }
        ids = [each.job_id for name in names for each in beats[name]][:FOLLOWED]
        followed = cost(seconds, lambda: len(ledger.get_many(ids)))
        return {**found, f"jobs read, {FOLLOWED} at a time": followed}


def register(ledger: SqlJobLedger, name: str) -> list[Heartbeat]:
    """Register a worker with running jobs. Return their heartbeats."""
    ledger.register_worker(WorkerInfo(name, name, "host", 1, "0", QUEUES, ("bench",), SLOTS))
    ledger.submit([new_job() for _ in range(SLOTS)])
    claimed = ledger.settle_and_claim((), ClaimRequest(name, QUEUES, SLOTS, LEASE_OF_RUNNING_MS)).claimed
    return [Heartbeat(job.id, job.lease) for job in claimed]


def of_connections(storage: JobStorage) -> Costs:
    """Return the bytes of the server's memory for the connection of a worker that has claimed."""
    with ExitStack() as left:
        left.enter_context(opened(storage)).submit([new_job() for _ in range(WORKERS)])
        before_mb = server_memory_mb()
        for _ in range(WORKERS):
            turns = Turns(left.enter_context(opened(storage, 1)), 1)
            turns.turn()
            turns.turn()
        used_mb = server_memory_mb() - before_mb
    return {"bytes of a worker's connection in the server's memory": Cost(used_mb * (1 << 20) / WORKERS)}


def server_memory_mb() -> float:
    """Return the memory of all started processes without this one."""
    return tree_memory_mb() - psutil.Process().memory_full_info().pss / (1 << 20)


def of_retention(storage: JobStorage, ended: int, seconds: float) -> Costs:
    """Return the cost of the deletion of an ended job, without its objects."""
    fill(storage, ended, 0)
    with opened(storage) as ledger:

        def sweep() -> int:
            old = ledger.ended_before(ledger.now_ms(), limit=SWEPT)
            return ledger.forget([job.id for job in old])

        return {f"ended jobs deleted, {SWEPT} at a time": cost(seconds, sweep)}


def of_notices(storage: JobStorage) -> Costs:
    """Return the cost of a notice by the number of listening connections, alone and in a burst."""
    found: Costs = {}
    with ExitStack() as left:
        sender = left.enter_context(connect(storage))
        listening: list[psycopg.Connection] = []
        for count in LISTENERS:
            for _ in range(count - len(listening)):
                listening.append(left.enter_context(connect(storage)))
                listening[-1].execute("LISTEN headrace_work")
            for name, burst in (("one after another", 1), ("at once", NOTICES)):
                meter = Meter.started()
                for _ in range(0, NOTICES, burst):
                    for number in range(burst):
                        # Equal notices of one transaction are merged, but not those of several ones.
                        sender.execute("SELECT pg_notify('headrace_work', %s)", (str(number),))
                    for connection in listening:
                        assert len(list(connection.notifies(timeout=_END_S, stop_after=burst))) >= burst
                found[f"notices to {count} listeners, {name}"] = meter.cost(NOTICES)
    return found


def of_deliveries(storage: JobStorage, count: int) -> Costs:
    """Return the cost of a webhook, by the number of receivers; a receiver gets one at a time."""
    found: Costs = {}
    with Receiver() as receiver, opened(storage) as ledger:
        policy = OutboundPolicy(
            plain_http=True, ports=frozenset({receiver.port}), networks=(parse_network("127.0.0.0/8"),)
        )
        for receivers in RECEIVERS:
            end_notified_jobs(ledger, receiver.url, count, receivers)
            receiver.requests.clear()
            meter = Meter.started()
            with OutboundClient(policy) as client:
                deliverer = Deliverer(ledger.outbox, WebhookNotifier(client))
                deliverer.start()
                try:
                    receiver.wait_for(count)
                finally:
                    deliverer.stop()
            found[f"webhooks to {receivers} receivers"] = meter.cost(count)
    return found


def end_notified_jobs(ledger: SqlJobLedger, url: str, count: int, receivers: int) -> None:
    """End jobs that notify receivers in turn."""
    secret = make_secret()
    targets = [{"webhook": f"{url}/{number}", "secret": secret} for number in range(receivers)]
    ledger.submit([replace(new_job(), notify=(targets[number % receivers],)) for number in range(count)])
    turns = Turns(ledger, 64)
    turns.turn()
    while turns.turn():
        pass


def of_api(storage: JobStorage) -> Costs:
    """Return the cost of a job of a batch over HTTP, with its payload in the store."""
    payload = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0.5, 0, 0]}]}
    body = json.dumps({"jobs": [{"model": "bench", "input": payload}] * API_BATCH}).encode()
    headers = {"content-type": "application/json"}
    with running_api(storage) as url:

        def submit() -> None:
            request = urllib.request.Request(f"{url}/v1/jobs/batch", body, headers)
            with urllib.request.urlopen(request, timeout=_END_S) as response:
                statuses = [result["status"] for result in json.load(response)["results"]]
            assert statuses == [202] * API_BATCH, statuses

        submit()
        meter = Meter.started()
        for _ in range(API_BATCHES):
            submit()
        found = meter.cost(API_BATCHES * API_BATCH)
    return {f"jobs submitted over HTTP, {API_BATCH} at a time": found}


def of_listing(objects: int) -> Costs:
    """Return the rate of listed objects: of a folder, and of a bucket."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder, ExitStack() as left:
        for number in range(objects):
            (Path(folder) / f"{number:09}.json").touch()
        found = {"objects listed each second, of a folder": listed(f"{folder}/", objects)}
        server_folder = Path(left.enter_context(tempfile.TemporaryDirectory(prefix="seaweed-")))
        server = S3Server(server_folder)
        server.start()
        left.callback(server.stop)
        bucket, client = server.bucket(), server.client()
        with ThreadPoolExecutor(8) as pool:
            put = partial(client.put_object, Bucket=bucket, Body=b"{}")
            list(pool.map(lambda number: put(Key=f"in/{number:09}.json"), range(objects)))
        left.enter_context(environment_of(server))
        found["objects listed each second, of a bucket"] = listed(f"s3://{bucket}/in/", objects)
        found["jobs whose objects are deleted each second, of a bucket"] = swept(f"s3://{bucket}/jobs/")
    return found


@contextmanager
def environment_of(server: S3Server) -> Iterator[None]:
    """Set the environment variables of a client of the server."""
    before = dict(os.environ)
    os.environ.update(server.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def listed(prefix: str, objects: int) -> Cost:
    """Return the rate at which a prefix is listed once."""
    began_s = time.perf_counter()
    found = sum(1 for _ in Stores().for_uri(prefix).list(prefix))
    assert found == objects, f"{found} of {objects} objects are listed"
    return Cost(found / (time.perf_counter() - began_s))


def swept(store_uri: str) -> Cost:
    """Return the rate at which a sweeper deletes the payloads and results of jobs."""
    paths, stores, ledger = JobPaths(store_uri), Stores(), MemoryJobLedger(ManualWallClock())
    store = stores.for_uri(store_uri)
    ledger.start()
    ids = [new_job_id(number) for number in range(SWEPT)]
    replies = ledger.submit(
        [replace(new_job(), id=job_id, input_uri=paths.input(job_id), owned_input=True) for job_id in ids]
    )
    for job_id in ids:
        store.put(paths.input(job_id), b"{}")
        store.put(f"{paths.attempt(job_id, 1)}result.out", b"{}")
    sweeper = Sweeper(ledger, stores, paths, Retention())
    began_s = time.perf_counter()
    for reply in replies:
        sweeper.remove_objects(reply.job)
    wall_s = time.perf_counter() - began_s
    assert not list(store.list(store_uri)), "all objects are deleted"
    return Cost(SWEPT / wall_s)
