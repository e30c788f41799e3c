"""What a client of the job API says, and does with what it hears: written once, as generators, for threads and for event loops.

A *talk* yields what is to be done next (`Send`, `Open`, `Read`, `Pause`, `Emit`) and is sent what came of it. It waits for nothing
and opens nothing itself: `headrace.jobs.client.sync` and `headrace.jobs.client.aio` do that.
"""

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import (
    DeadlineError,
    EndpointRefusedError,
    EndpointUnavailableError,
    HeadraceError,
    JobNotFoundError,
    QueueClosedError,
)
from headrace.core.retry import RetryPolicy, retry_after_s
from headrace.jobs.client.answers import Answer, error_of, read_document
from headrace.jobs.client.event_stream import EventReader
from headrace.jobs.client.orders import INLINE_BYTES_MAX, Order, document_of
from headrace.jobs.documents import read_history, read_job
from headrace.jobs.job import HistoryEntry, Job

T = TypeVar("T")

RETRY_S: Final = 30.0
TIMEOUT_S: Final = 60.0
WAIT_S: Final = 25.0
"""One long poll; proxies cut off what is silent for longer than a minute."""
RECONNECT_S: Final = 0.5
PAGE: Final = 200
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_BEGUN: Final = frozenset({429, 503})
_NO_CONTENT: Final = 204
_PARTIAL: Final = 206


class LostError(Exception):
    """The connection could not be had, or broke. `sent`: whether the request may have arrived."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `url` is a path of the API, or a whole address elsewhere, which is told no key.

    `repeatable`: whether it may be sent again when it is not known whether it arrived.
    """

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | Path | None = None
    repeatable: bool = True
    extra_s: float = 0.0
    """How much longer than usual the answer may take."""


@dataclass(frozen=True, slots=True)
class Send:
    """Do: send it. Comes: an `Answer`, its body read."""

    call: Call


@dataclass(frozen=True, slots=True)
class Open:
    """Do: send it, and leave the body to `Read`. Comes: an `Answer`; its body is read only where it is an error's."""

    call: Call


@dataclass(frozen=True, slots=True)
class Read:
    """Do: read on in what was opened last. Comes: bytes, None at the end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Do: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Do: give this to whoever iterates."""

    value: Any


Step = Send | Open | Read | Pause | Emit
Talk = Generator[Step, Any, T]


def advanced(talk: Talk[Any], outcome: Any) -> Step:
    """The next step of a talk that is told what came of the last one. StopIteration at its end."""
    return talk.throw(outcome) if isinstance(outcome, LostError) else talk.send(outcome)


@dataclass(frozen=True, slots=True)
class Talks:
    """What can be asked of a job API. `api_key` goes to the API alone, never to where it sends us."""

    url: str
    api_key: str = ""
    retry_s: float = RETRY_S
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[], float] = random.random

    # Jobs

    def submit(self, order: Order) -> Talk[Job]:
        """Submit a job, its payload uploaded before where it is large."""
        source = order.source
        if source is not None and _size(source) > INLINE_BYTES_MAX:
            upload = yield from self.upload(source)
            order = replace(order, source=None, upload=upload)
        call = document_of(order)
        answer = yield from self._asked(
            Call("POST", "/v1/jobs", call.params, call.headers, call.content, repeatable=order.keyed)
        )
        return _job(answer)

    def get(self, job_id: str, wait_s: float = 0.0) -> Talk[Job]:
        """A job; with `wait_s` once it has ended, or after that time."""
        params = (("wait", f"{wait_s:g}"),) if wait_s else ()
        answer = yield from self._asked(Call("GET", _path(job_id), params, extra_s=wait_s))
        return _job(answer)

    def wait(self, job_id: str, timeout_s: float | None) -> Talk[Job]:
        """A job once it has ended."""
        began_s = self.clock.now()
        while True:
            left_s = WAIT_S if timeout_s is None else timeout_s - (self.clock.now() - began_s)
            job = yield from self.get(job_id, max(0.0, min(WAIT_S, left_s)))
            if job.state.ended:
                return job
            if timeout_s is not None and self.clock.now() - began_s >= timeout_s:
                raise DeadlineError(f"job {job_id} is {job.state.value} after {timeout_s:g} s")

    def listing(self, params: tuple[tuple[str, str], ...], page: int = PAGE) -> Talk[None]:
        """Emits jobs, newest first, page after page."""
        after = ""
        while True:
            paged = (*params, ("limit", str(page)), ("after", after))
            answer = yield from self._asked(Call("GET", "/v1/jobs", paged))
            document = read_document(answer)
            for job in document["jobs"]:
                yield Emit(read_job(job))
            after = document["next_after"]
            if not after:
                return

    def history(self, job_id: str) -> Talk[list[HistoryEntry]]:
        """A job's history."""
        answer = yield from self._asked(Call("GET", f"{_path(job_id)}/history"))
        return [read_history(entry) for entry in read_document(answer)["history"]]

    def cancel(self, job_id: str) -> Talk[Job]:
        """Cancel."""
        return _job((yield from self._asked(Call("POST", f"{_path(job_id)}/cancel"))))

    def retry(self, job_id: str) -> Talk[Job]:
        """Put back. Not repeated where the first may have arrived: it would then be refused."""
        return _job((yield from self._asked(Call("POST", f"{_path(job_id)}/retry", repeatable=False))))

    def delete(self, job_id: str) -> Talk[None]:
        """Remove. Where an answer was lost and the job is gone then, it is ours that removed it."""
        tries: list[str] = []
        try:
            yield from self._asked(Call("DELETE", _path(job_id)), tries)
        except JobNotFoundError:
            if not tries:
                raise

    def events(self, job_id: str) -> Talk[None]:
        """Emits the job as it is, and whenever it changes, until it has ended; comes again when it is cut off."""
        last = ""
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
            answer = yield from self._asked(
                Call("GET", f"{_path(job_id)}/events", headers=headers), stream=True
            )
            if answer.status == _NO_CONTENT:
                return
            reader = EventReader()
            while (chunk := (yield from _next())) is not None:
                for event in reader.feed(chunk):
                    if event.name == "gone":
                        raise JobNotFoundError(job_id)
                    last = event.id or last
                    job = read_job(read_document(Answer(200, {}, event.data, "")))
                    yield Emit(job)
                    if job.state.ended:
                        return
            yield Pause(RECONNECT_S * (0.5 + self.draw()))

    # Payloads

    def upload(self, source: bytes | Path) -> Talk[str]:
        """Send a payload to where the API says; the upload's id."""
        document = read_document((yield from self._asked(Call("POST", "/v1/uploads"))))
        headers = {"content-length": str(_size(source))}
        yield from self._asked(Call("PUT", document["url"], headers=headers, content=source))
        return document["id"]

    def result(self, job_id: str) -> Talk[None]:
        """Emits the result's bytes in pieces; goes on where it was cut off."""
        call = Call("GET", f"{_path(job_id)}/result")
        answer = yield from self._asked(call, stream=True)
        etag, at = answer.headers.get("etag", ""), 0
        size = answer.headers.get("content-length", "")
        while True:
            try:
                while (chunk := (yield Read())) is not None:
                    at += len(chunk)
                    yield Emit(chunk)
            except LostError as lost:
                if not etag:
                    raise self._unavailable(call, f"the result broke off after {at} bytes: {lost}") from lost
            else:
                return
            if size == str(at):
                return
            yield Pause(RECONNECT_S * (0.5 + self.draw()))
            going_on = replace(call, headers={"range": f"bytes={at}-", "if-range": etag})
            answer = yield from self._asked(going_on, stream=True)
            if at and answer.status != _PARTIAL:
                raise self._unavailable(
                    call, f"the result broke off after {at} bytes, and is another one now"
                )

    # Queues

    def document(self, method: str, path: str, content: bytes | None = None) -> Talk[dict[str, Any]]:
        """One request that may be repeated, and the JSON object that answers it."""
        headers = {} if content is None else {"content-type": "application/json"}
        answer = yield from self._asked(Call(method, path, headers=headers, content=content))
        return read_document(answer)

    # What all of them do

    def _asked(self, call: Call, tries: "list[str] | None" = None, *, stream: bool = False) -> Talk[Answer]:
        """The answer, once there is a good one; what may pass is tried again within `retry_s`. `tries` gets what was lost."""
        policy, attempt, trouble_s = RetryPolicy(retry_s=self.retry_s), 0, 0.0
        call = self._keyed(call)
        while True:
            after_s: float | None = None
            try:
                answer: Answer = yield (Open(call) if stream else Send(call))
            except LostError as lost:
                error: HeadraceError = self._unavailable(call, str(lost))
                again = call.repeatable or not lost.sent
            else:
                if answer.status < 400:
                    return answer
                error = error_of(answer)
                again = answer.status in (_PASSING if call.repeatable else _NOT_BEGUN)
                # Of the 503s this one lasts until somebody ends it by hand.
                again = again and not isinstance(error, QueueClosedError)
                after_s = retry_after_s(answer.headers.get("retry-after"), 0.0)
            if not again:
                raise error
            if tries is not None:
                tries.append(str(error))
            attempt += 1
            now_s = self.clock.now()
            trouble_s = trouble_s or now_s
            left_s = self.retry_s - (now_s - trouble_s)
            delay_s = policy.delay_s(attempt, left_s, self.draw(), retry_after_s=after_s)
            if delay_s is None:
                raise error
            yield Pause(delay_s)

    def _keyed(self, call: Call) -> Call:
        if not self.api_key or "://" in call.url:
            return call
        return replace(call, headers={**call.headers, "authorization": f"Bearer {self.api_key}"})

    def _unavailable(self, call: Call, why: str) -> EndpointUnavailableError:
        where = call.url.partition("?")[0] if "://" in call.url else f"{self.url}{call.url}"
        return EndpointUnavailableError(where, why)


def _next() -> Talk[bytes | None]:
    """What comes next in a stream that is begun anew where it breaks off: nothing, where it does."""
    try:
        return (yield Read())
    except LostError:
        return None


def _job(answer: Answer) -> Job:
    try:
        return read_job(read_document(answer))
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointRefusedError(answer.url, f"what came is no job: {error!r}") from error


def _path(job_id: str) -> str:
    # An id is told by people too: whatever it is, it must stay one segment.
    safe = "".join(c if c.isalnum() and c.isascii() else "-" if c == "-" else "_" for c in job_id)
    return f"/v1/jobs/{safe or '_'}"


def _size(source: bytes | Path) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size
