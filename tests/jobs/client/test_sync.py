"""Both clients against a real API: the same questions, in threads and in an event loop."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headrace.core import errors
from headrace.jobs import AsyncClient, Client, ClientSettings
from headrace.jobs.cause import Cause
from headrace.jobs.job import JobFailure, Progress
from headrace.jobs.state import JobState
from jobs.desk_support import WAIT_S, key_of, served_jobs

BIG = bytes(range(256)) * (8 << 10)  # 2 MiB: uploaded before


class InLoop:
    """`AsyncClient` as `Client` is asked."""

    def __init__(self, url, **given):
        self._runner = asyncio.Runner()
        try:
            self._client = self._runner.run(self._made(url, given))
        except BaseException:
            self._runner.close()
            raise

    async def _made(self, url, given):
        return AsyncClient(url, **given)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._runner.run(self._client.close())
        self._runner.close()

    def __getattr__(self, name):
        asked = getattr(self._client, name)

        def ask(*args, **given):
            found = asked(*args, **given)
            return self._runner.run(found) if asyncio.iscoroutine(found) else self._all(found)

        return ask

    def _all(self, found):
        while True:
            try:
                yield self._runner.run(anext(found))
            except StopAsyncIteration:
                return


@pytest.fixture
def served():
    with served_jobs() as made:
        yield made


@pytest.fixture(params=[Client, InLoop], ids=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def client(served, kind):
    with kind(served.url, settings=ClientSettings(timeout_s=WAIT_S, retry_s=5)) as made:
        yield made


@pytest.mark.parametrize(
    ("given", "content_type", "payload"),
    [
        ({"x": [1, 2]}, "application/json", b'{"x":[1,2]}'),
        (b"\xff\x00", "application/octet-stream", b"\xff\x00"),
        (None, "application/json", b"null"),
        (BIG, "application/octet-stream", BIG),
    ],
    ids=["json", "bytes", "null", "large"],
)
def test_a_payload_arrives_as_it_was_given(served, client, given, content_type, payload):
    job = client.submit(
        "m", given, queue="q", tags={"a": "b c"}, options={"columns": [1, 2]}, priority=2, delay_s=0.5
    )
    assert job == client.get(job.id)
    spec = job.spec
    assert (spec.model, spec.queue, spec.tags, spec.options, spec.priority) == (
        "m",
        "q",
        {"a": "b c"},
        {"columns": [1, 2]},
        2,
    )
    assert spec.content_type == content_type
    assert served.stores.for_uri(spec.input_uri).get(spec.input_uri) == payload
    assert job.due_at_ms == job.created_at_ms + 500


def test_files_small_and_large_are_payloads(served, client, tmp_path):
    for name, data in (("a.csv", b"1,2\n"), ("b.parquet", BIG)):
        (tmp_path / name).write_bytes(data)
        spec = client.submit("m", tmp_path / name).spec
        assert served.stores.for_uri(spec.input_uri).get(spec.input_uri) == data
        assert spec.content_type == {"a.csv": "text/csv", "b.parquet": "application/x-parquet"}[name]
    with pytest.raises(errors.ConfigError, match="no such file"):
        client.submit("m", tmp_path / "none.csv")


def test_an_object_that_is_there_is_named(client):
    assert client.submit("m", input_uri="s3://in/k.csv").spec.input_uri == "s3://in/k.csv"
    with pytest.raises(errors.ForbiddenError):
        client.submit("m", input_uri="s3://elsewhere/k")
    with pytest.raises(errors.ConfigError, match="give one of"):
        client.submit("m", 1, input_uri="s3://in/k")


def test_a_job_is_followed_waited_for_and_fetched(served, client, tmp_path):
    job = client.submit("m", 1, queue="followed")
    seen = client.events(job.id)
    assert next(seen).state is JobState.PENDING
    run = served.claim("followed")
    assert next(seen).state is JobState.RUNNING
    served.tell(run, Progress(1, 2, "rows"))
    assert next(seen).progress == Progress(1, 2, "rows")
    served.complete(run, BIG)
    assert [job.state for job in seen] == [JobState.COMPLETED]
    assert client.wait(job.id, 1).result.size_bytes == len(BIG)
    assert client.result(job.id) == BIG
    assert client.save_result(job.id, tmp_path / "out") == len(BIG)
    assert (tmp_path / "out").read_bytes() == BIG
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_errors_are_those_of_the_tree(served, client):
    job = client.submit("m", 1, idempotency_key="errors")
    with pytest.raises(errors.JobNotFoundError) as missing:
        client.get("01a2007b-0000-7000-8000-000000000000")
    assert missing.value.job_id == "01a2007b-0000-7000-8000-000000000000"
    with pytest.raises(errors.IdempotencyError) as other:
        client.submit("m", 2, idempotency_key="errors")
    assert (other.value.job_id, other.value.key) == (job.id, "errors")
    with pytest.raises(errors.JobStateError) as early:
        client.result(job.id)
    assert early.value.state == "pending"
    with pytest.raises(errors.DataError, match="priority"):
        client.submit("m", 1, priority=11)
    with pytest.raises(errors.JobNotFoundError):
        client.get("../queues")
    with pytest.raises(errors.DeadlineError, match="is pending after"):
        client.wait(job.id, 0.05)


def test_failed_jobs_are_listed_retried_and_deleted(served, client):
    jobs = [client.submit("m", n, queue="listed", tags={"n": str(n)}) for n in range(3)]
    served.fail(served.claim("listed"), JobFailure(Cause.MODEL, "it raised", "ValueError"))
    (failed,) = client.list(queue="listed", states=["failed"])
    assert failed.failure == JobFailure(Cause.MODEL, "it raised", "ValueError")
    assert {job.id for job in client.list(queue="listed")} == {job.id for job in jobs}
    assert [job.id for job in client.list(queue="listed", tags={"n": "2"})] == [jobs[2].id]
    assert client.history(failed.id)[0].event == "attempt_failed"
    assert client.retry(failed.id).state is JobState.PENDING
    assert client.cancel(failed.id).state is JobState.CANCELLED
    client.delete(failed.id)
    with pytest.raises(errors.JobNotFoundError):
        client.delete(failed.id)


def test_queues_are_looked_at_and_changed(client):
    client.submit("m", 1, queue="looked")
    assert client.pause_queue("looked")["paused"]
    assert client.drain_queue("looked")["draining"]
    with pytest.raises(errors.QueueClosedError):
        client.submit("m", 1, queue="looked")
    assert not client.resume_queue("looked")["paused"]
    assert client.bound_queue("looked", 1)["pending_max"] == 1
    assert client.scale("looked")["desired"] == 1
    assert "looked" in [queue["queue"] for queue in client.queues()]
    assert client.queue("looked")["queued"] == 1


def test_a_full_queue_is_asked_again_until_it_takes_the_job(served, client):
    first = client.submit("m", 1, queue="full")
    client.bound_queue("full", 1)
    done = threading.Timer(0.2, served.ledger.cancel, (first.id,))
    done.start()
    assert client.submit("m", 1, queue="full").state is JobState.PENDING
    done.join()


def test_nobody_there_is_said_within_the_patience(kind):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with (
            kind(url, settings=ClientSettings(retry_s=0.2)) as client,
            pytest.raises(errors.EndpointUnavailableError, match=url),
        ):
            client.submit("m", 1)


@pytest.mark.parametrize("url", ["localhost:1", "ftp://h", "http://user:pw@h", "", "http://[::"])
def test_an_address_that_is_none_is_said(kind, url):
    with pytest.raises(errors.ConfigError):
        kind(url)


def test_a_key_goes_to_the_api(kind):
    text, digest, known = key_of("shop")
    with served_jobs(keys=[(text, digest, known)]) as guarded:
        with kind(guarded.url) as stranger, pytest.raises(errors.UnauthenticatedError):
            stranger.get("x")
        with kind(guarded.url, api_key=text) as client:
            assert client.submit("m", 1).spec.tenant == "shop"
            assert client.submit("m", BIG).spec.tenant == "shop"


def test_importing_jobs_imports_no_client():
    listed = "import sys, headrace.jobs; print('httpx' in sys.modules, 'headrace.jobs.client' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False"]


# The API is killed between its commit and its reply (fault 3)

_SERVER = """
import os, signal, sys
from jobs.desk_support import served_jobs
from headrace.jobs.ledgers.sqlite import SqliteJobLedger
from headrace.storage import Stores
import headrace.server.jobs.job_routes as routes

folder, port, dies = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "dies"
made = routes.submitted

async def submitted(*args, **given):
    answer = await made(*args, **given)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

routes.submitted = submitted
import headrace.server.listen as listen
bound = listen.bound_socket
listen.bound_socket = lambda host, _: bound(host, port)
with served_jobs(ledger=SqliteJobLedger(folder + "/jobs.db"), store_uri=folder + "/store") as served:
    print("ready", flush=True)
    sys.stdin.read()
"""


def _api(folder: Path, port: int, what: str):
    root = Path(__file__).parents[3]
    environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SERVER), str(folder), str(port), what],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True,
    )  # fmt: skip
    assert process.stdout.readline().strip() == "ready"
    return process


def test_fault_3_a_submission_whose_answer_was_lost_is_one_job(kind, tmp_path):
    """The job is committed, the API is killed before it says so, and the client asks again, by itself, with its key."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dying = _api(tmp_path, port, "dies")
    told = {}

    def submit():
        with kind(f"http://127.0.0.1:{port}", settings=ClientSettings(retry_s=30)) as client:
            told["job"] = client.submit("m", [1, 2])
            told["all"] = [job.id for job in client.list()]

    thread = threading.Thread(target=submit)
    thread.start()
    assert dying.wait(WAIT_S) == -signal.SIGKILL
    dying.stdin.close()
    dying.stdout.close()
    again = _api(tmp_path, port, "lives")
    thread.join(WAIT_S)
    again.communicate("", timeout=WAIT_S)
    assert told["all"] == [told["job"].id]
    # What the second submission had stored is gone too, once it was known to be for nothing.
    assert len(list((tmp_path / "store" / "inputs").iterdir())) == 1
