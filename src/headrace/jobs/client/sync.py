"""`Client`: the job API for threads."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from headrace.jobs.client.answers import Answer
from headrace.jobs.client.calls import (
    FILE_BYTES,
    ClientSettings,
    address,
    answer_of,
    base_url,
    lost,
    options,
    timeouts,
)
from headrace.jobs.client.faces import Face, Saving
from headrace.jobs.client.orders import NOTHING, Filters, SubmitOptions, order_of, query_of
from headrace.jobs.client.talk import Call, Emit, LostError, Open, Pause, Read, Send, Step, Talk, advanced
from headrace.jobs.job import HistoryEntry, Job

T = TypeVar("T")


class Client(Face):
    """Submits jobs, follows them, and fetches what came of them. Safe from any thread; a context manager.

    What may pass (no connection, a full queue, a server that goes down) is tried again for `retry_s`; a submission
    carries an idempotency key, one made for it unless one is given, so that being sent twice makes one job of it.

    Errors are those of `headrace.core.errors`, as the API raised them: JobNotFoundError, JobStateError, IdempotencyError,
    QueueFullError, QueueClosedError, DataError, UnauthenticatedError, ForbiddenError and so on; EndpointUnavailableError
    where it could not be asked, EndpointRefusedError for an answer that is not a job API's.
    """

    def __init__(self, url: str, *, api_key: str = "", settings: ClientSettings | None = None) -> None:
        super().__init__(base_url(url), api_key, settings or ClientSettings())
        self._http = httpx.Client(**options(self.settings))

    def close(self) -> None:
        """Let go of connections. Twice does nothing."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, model: str = "", input: Any = NOTHING, **options: Unpack[SubmitOptions]) -> Job:
        """Submit a job; returns when it is in the ledger for good.

        `input` is the payload: bytes, a `Path` to a file, text (with a `content_type` that is not JSON), or whatever JSON
        has. Large ones are uploaded first.
        """
        return self._run(self.talks.submit(order_of(model, input, options)))

    def get(self, job_id: str) -> Job:
        """A job as it is."""
        return self._run(self.talks.get(job_id))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """A job once it has ended, however that is. DeadlineError where it has not after `timeout_s`."""
        return self._run(self.talks.wait(job_id, timeout_s))

    def events(self, job_id: str) -> Iterator[Job]:
        """The job as it is, and again whenever its state or progress changes, until it has ended.

        A connection that breaks is made again, and goes on where it was. Of changes meanwhile the last is told.
        """
        return self._iterate(self.talks.events(job_id))

    def list(self, **wanted: Unpack[Filters]) -> Iterator[Job]:
        """Jobs that fit all that is given, newest first; asks for pages as they are needed."""
        return self._iterate(self.talks.listing(query_of(wanted)))

    def history(self, job_id: str) -> Sequence[HistoryEntry]:
        """What went wrong with a job, and what was done to it by hand, oldest first."""
        return self._run(self.talks.history(job_id))

    def result(self, job_id: str) -> bytes:
        """A completed job's result. JobStateError where it has none, ResultGoneError where it is no longer there."""
        return b"".join(self.stream_result(job_id))

    def stream_result(self, job_id: str) -> Iterator[bytes]:
        """A completed job's result in pieces; goes on where a connection broke."""
        return self._iterate(self.talks.result(job_id))

    def save_result(self, job_id: str, path: Path) -> int:
        """Write a completed job's result to a file, which is there when it is whole; its size in bytes."""
        saving = Saving(path)
        try:
            for piece in self.stream_result(job_id):
                saving.write(piece)
            return saving.finish()
        finally:
            saving.close()

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: a pending one is cancelled then, a running one soon. Twice does nothing."""
        return self._run(self.talks.cancel(job_id))

    def retry(self, job_id: str) -> Job:
        """Put a job back that ended without a result."""
        return self._run(self.talks.retry(job_id))

    def delete(self, job_id: str) -> None:
        """Remove an ended job, with what was stored for it alone."""
        self._run(self.talks.delete(job_id))

    def upload(self, source: bytes | Path) -> str:
        """Send a large payload to the store; the id that a submission names it by as ``upload``."""
        return self._run(self.talks.upload(source))

    def queues(self) -> Sequence[dict[str, Any]]:
        """All queues, with what is in them."""
        return self._run(self.talks.document("GET", "/v1/queues"))["queues"]

    def queue(self, name: str) -> dict[str, Any]:
        """One queue."""
        return self._run(self._about_queue("GET", name))

    def pause_queue(self, name: str) -> dict[str, Any]:
        """Have none of its jobs given out."""
        return self._run(self._about_queue("POST", name, "/pause"))

    def resume_queue(self, name: str) -> dict[str, Any]:
        """Have its jobs given out, and submissions taken, again."""
        return self._run(self._about_queue("POST", name, "/resume"))

    def drain_queue(self, name: str) -> dict[str, Any]:
        """Have no submissions taken."""
        return self._run(self._about_queue("POST", name, "/drain"))

    def bound_queue(self, name: str, pending_max: int | None) -> dict[str, Any]:
        """Bound how many jobs may wait in it; None for no bound."""
        return self._run(self._bounding(name, pending_max))

    def scale(self, name: str) -> dict[str, Any]:
        """How many workers a queue wants."""
        return self._run(self._about_queue("GET", name, "/scale"))

    # Doing what talks say

    def _run(self, talk: Talk[T]) -> T:
        """What a talk returns; what it emits is nobody's."""
        session = _Session(self._http, self)
        try:
            step = next(talk)
            while True:
                step = advanced(talk, session.outcome(step))
        except StopIteration as end:
            return end.value
        finally:
            talk.close()
            session.close()

    def _iterate(self, talk: Talk[None]) -> Iterator[Any]:
        """What a talk emits."""
        session = _Session(self._http, self)
        try:
            step = next(talk)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                    step = talk.send(None)
                else:
                    step = advanced(talk, session.outcome(step))
        except StopIteration:
            return
        finally:
            talk.close()
            session.close()


class _Session:
    """One talk's hold on the network: at most one open response."""

    def __init__(self, http: httpx.Client, face: Face) -> None:
        self._http = http
        self._face = face
        self._open: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def outcome(self, step: Step) -> Any:
        """What came of one step; LostError as a value."""
        try:
            return self.do(step)
        except LostError as error:
            return error

    def do(self, step: Step) -> Any:
        """Do one step. LostError."""
        match step:
            case Send(call):
                return self._send(call, stream=False)
            case Open(call):
                return self._send(call, stream=True)
            case Read():
                return self._read()
            case Pause(seconds):
                time.sleep(seconds)
                return None
            case Emit():
                return None

    def close(self) -> None:
        """Let go of what is open."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _send(self, call: Call, *, stream: bool) -> Answer:
        self.close()
        settings, content = self._face.settings, call.content
        try:
            request = self._http.build_request(
                call.method,
                address(self._face.base, call),
                params=list(call.params) or None,
                headers=dict(call.headers),
                content=_pieces(content) if isinstance(content, Path) else content,
                timeout=timeouts(settings, call),
            )
            response = self._http.send(request, stream=stream)
            if not stream or response.status_code >= 400:
                body = response.read()
                response.close()
                return answer_of(response, body)
        except httpx.HTTPError as error:
            raise lost(error) from error
        self._open = response
        self._chunks = response.iter_bytes()
        return answer_of(response, b"")

    def _read(self) -> bytes | None:
        try:
            chunk = next(self._chunks, None)
        except httpx.HTTPError as error:
            raise lost(error) from error
        if chunk is None:
            self.close()
        return chunk


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(FILE_BYTES):
            yield piece
