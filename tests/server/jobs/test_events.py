"""A job's event stream: what is told, in which order, and how a reader that was cut off goes on."""

import threading

import pytest

from headrace.jobs.client.event_stream import EventReader
from headrace.jobs.documents import mark_of
from headrace.jobs.job import Progress
from headrace.server.jobs.api import ApiSettings
from jobs.desk_support import WAIT_S, served_jobs
from server.jobs.test_job_routes import submit


class Reader:
    """Reads a stream, event by event."""

    def __init__(self, http, job_id, last=""):
        self._opened = http.stream(
            "GET", f"/v1/jobs/{job_id}/events", headers={"last-event-id": last} if last else {}
        )
        self.response = self._opened.__enter__()
        self._chunks = self.response.iter_bytes()
        self._reader = EventReader()
        self._events = []
        self.raw = b""

    def next(self):
        """The next event; None at the end."""
        while not self._events:
            chunk = next(self._chunks, None)
            if chunk is None:
                return None
            self.raw += chunk
            self._events = self._reader.feed(chunk)
        return self._events.pop(0)

    def close(self):
        """Go away."""
        self._opened.__exit__(None, None, None)


def state(event):
    import orjson

    return event.name, orjson.loads(event.data)["state"]


def test_a_job_is_told_from_its_queue_to_its_end(served, http):
    job_id = submit(http)["id"]
    reader = Reader(http, job_id)
    assert reader.response.headers["content-type"].startswith("text/event-stream")
    assert state(reader.next()) == ("state", "pending")
    run = served.claim()
    assert state(reader.next()) == ("state", "running")
    served.tell(run, Progress(1, 2))
    assert state(reader.next()) == ("progress", "running")
    served.complete(run)
    assert state(reader.next()) == ("state", "completed")
    assert reader.next() is None
    reader.close()


def test_whoever_comes_again_is_told_nothing_twice(served, http):
    job_id = submit(http)["id"]
    first = Reader(http, job_id)
    pending = first.next()
    first.close()
    # Nothing has happened meanwhile: what it is told first is what happens next.
    again = Reader(http, job_id, pending.id)
    run = served.claim()
    running = again.next()
    assert state(running) == ("state", "running")
    again.close()
    served.tell(run, Progress(2, 2))
    third = Reader(http, job_id, running.id)
    assert state(third.next()) == ("progress", "running")
    served.complete(run)
    last = third.next()
    assert third.next() is None
    third.close()
    over = http.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": last.id})
    assert (over.status_code, over.content) == (204, b"")


def test_a_job_that_is_deleted_is_gone(served, http):
    job_id = submit(http)["id"]
    served.claim()
    reader = Reader(http, job_id)
    reader.next()
    follower = served.desk._follower
    while not follower.followers:
        assert http.get("/v1/health/live").status_code == 200
    # By hand, in one step: else its end would be told first.
    served.ledger.get_many = lambda ids: {}
    follower._wakeup.wake()
    assert reader.next().name == "gone"
    assert reader.next() is None
    reader.close()


def test_a_silent_stream_says_that_it_is_there_and_ends_some_time(make_ledger):
    settings = ApiSettings(heartbeat_s=0.02, stream_s_max=0.1)
    with served_jobs(ledger=make_ledger(), settings=settings) as served, served.client() as http:
        reader = Reader(http, submit(http)["id"])
        assert state(reader.next()) == ("state", "pending")
        assert reader.next() is None
        assert b"\n\n: still here\n\n" in reader.raw
        reader.close()


def test_readers_hold_no_thread_and_leave_nothing(served, http):
    job_id = submit(http)["id"]
    readers = []
    clients = [served.client() for _ in range(30)]
    for client in clients:
        reader = Reader(client, job_id)
        reader.next()
        readers.append(reader)
    workers = [t for t in threading.enumerate() if t.name.startswith("headrace-jobs-api")]
    assert len(workers) <= 8
    for reader, client in zip(readers, clients, strict=True):
        reader.close()
        client.close()
    gone = threading.Event()
    follower = served.desk._follower
    for _ in range(int(WAIT_S * 100)):
        if not follower.followers:
            gone.set()
            break
        http.get("/v1/health/live")
    assert gone.is_set()


def test_a_server_that_goes_down_ends_its_streams(make_ledger):
    with served_jobs(ledger=make_ledger()) as served, served.client() as http:
        reader = Reader(http, submit(http)["id"])
        reader.next()
        served.desk.stop()
        assert reader.next() is None
        reader.close()


@pytest.mark.parametrize("last", ["nonsense", "pending.x.y"])
def test_an_id_of_nothing_begins_anew(served, http, last):
    job_id = submit(http)["id"]
    reader = Reader(http, job_id, last)
    event = reader.next()
    assert state(event) == ("state", "pending")
    assert event.id == mark_of(served.ledger.get(job_id))
    reader.close()
