"""The event stream of a job: its events, their order, and reconnection."""

import threading

from cases import for_each
from headrace.jobs.client.messages import EventReader
from headrace.jobs.job import JobProgress, change_tag
from headrace.server.jobs.api import ApiSettings
from jobs.service_support import WAIT_S, served_jobs
from server.jobs.test_job_routes import submit


class Reader:
    """A client that reads a stream event by event."""

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
        """Return the next event, or None at the end."""
        while not self._events:
            chunk = next(self._chunks, None)
            if chunk is None:
                return None
            self.raw += chunk
            self._events = self._reader.feed(chunk)
        return self._events.pop(0)

    def close(self):
        """Disconnect."""
        self._opened.__exit__(None, None, None)


def state(event):
    import orjson

    return event.name, orjson.loads(event.data)["state"]


def test_stream_reports_a_job_until_its_end(served, http):
    job_id = submit(http)["id"]
    reader = Reader(http, job_id)
    assert reader.response.headers["content-type"].startswith("text/event-stream")
    assert state(reader.next()) == ("state", "pending")
    run = served.claim()
    assert state(reader.next()) == ("state", "running")
    served.report_progress(run, JobProgress(1, 2))
    assert state(reader.next()) == ("progress", "running")
    served.complete(run)
    assert state(reader.next()) == ("state", "completed")
    assert reader.next() is None
    reader.close()


def test_reconnected_client_receives_no_event_twice(served, http):
    job_id = submit(http)["id"]
    first = Reader(http, job_id)
    pending = first.next()
    first.close()
    # Nothing has happened meanwhile, so the first event is the next change.
    again = Reader(http, job_id, pending.id)
    run = served.claim()
    running = again.next()
    assert state(running) == ("state", "running")
    again.close()
    served.report_progress(run, JobProgress(2, 2))
    third = Reader(http, job_id, running.id)
    assert state(third.next()) == ("progress", "running")
    served.complete(run)
    last = third.next()
    assert third.next() is None
    third.close()
    over = http.get(f"/v1/jobs/{job_id}/events", headers={"last-event-id": last.id})
    assert (over.status_code, over.content) == (204, b"")


def test_deleted_job_ends_the_stream_with_gone(served, http):
    job_id = submit(http)["id"]
    served.claim()
    reader = Reader(http, job_id)
    reader.next()
    follower = served.service.follower
    while not follower.followers:
        assert http.get("/v1/health/live").status_code == 200
    # One step replaces a delete, whose preceding state change would be reported first.
    served.ledger.get_many = lambda ids: {}
    follower._wakeup.wake()
    assert reader.next().name == "gone"
    assert reader.next() is None
    reader.close()


def test_silent_stream_sends_heartbeats_and_ends(make_ledger):
    settings = ApiSettings(heartbeat_s=0.02, stream_s_max=0.1)
    with served_jobs(ledger=make_ledger(), settings=settings) as served, served.client() as http:
        reader = Reader(http, submit(http)["id"])
        assert state(reader.next()) == ("state", "pending")
        assert reader.next() is None
        assert b"\n\n: still here\n\n" in reader.raw
        reader.close()


def test_open_streams_use_no_thread_and_leave_nothing(served, http):
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
    missing = threading.Event()
    follower = served.service.follower
    for _ in range(int(WAIT_S * 100)):
        if not follower.followers:
            missing.set()
            break
        http.get("/v1/health/live")
    assert missing.is_set()


def test_stopping_server_ends_its_streams(make_ledger):
    with served_jobs(ledger=make_ledger()) as served, served.client() as http:
        reader = Reader(http, submit(http)["id"])
        reader.next()
        served.service.stop()
        assert reader.next() is None
        reader.close()


@for_each("last", ["nonsense", "pending.x.y"])
def test_unknown_last_event_id_starts_from_the_current_state(served, http, last):
    job_id = submit(http)["id"]
    reader = Reader(http, job_id, last)
    event = reader.next()
    assert state(event) == ("state", "pending")
    assert event.id == change_tag(served.ledger.get(job_id))
    reader.close()
