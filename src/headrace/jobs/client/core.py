"""The job API client's logic without I/O, as generators that serve threads and event loops alike.

An exchange yields the next step (`Send`, `Open`, `Read`, `Pause`, `Emit`) and receives the step's
result. `headrace.jobs.client.sync` and `headrace.jobs.client.aio` perform the steps.
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
from headrace.jobs.client.messages import (
    INLINE_BYTES_MAX,
    ApiResponse,
    EventReader,
    SubmitRequest,
    encode_submit_request,
    error_from_response,
    read_document,
)
from headrace.jobs.documents import read_history, read_job
from headrace.jobs.job import HistoryEntry, Job

T = TypeVar("T")

RETRY_S: Final = 30.0
TIMEOUT_S: Final = 60.0
WAIT_S: Final = 25.0
"""Seconds of one long poll. Proxies cut off connections that are silent for a minute."""
RECONNECT_S: Final = 0.5
PAGE: Final = 200
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_BEGUN: Final = frozenset({429, 503})
_NO_CONTENT: Final = 204
_PARTIAL: Final = 206


class ConnectionLostError(Exception):
    """No connection was made, or it broke. `sent`: the request may have reached the server."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class ApiCall:
    """An HTTP request.

    `url` is a path of the API, or a full address elsewhere that receives no key.

    `repeatable`: the request may be repeated if its arrival is unknown.
    """

    method: str
    url: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | Path | None = None
    repeatable: bool = True
    extra_s: float = 0.0
    """Seconds that the response may take beyond the usual timeout."""


@dataclass(frozen=True, slots=True)
class Send:
    """Step: send a request. Result: an `ApiResponse` with its body."""

    call: ApiCall


@dataclass(frozen=True, slots=True)
class Open:
    """Step: send a request; `Read` reads its body.

    Result: an `ApiResponse`; only error bodies are read.
    """

    call: ApiCall


@dataclass(frozen=True, slots=True)
class Read:
    """Step: read on from the last opened response. Result: bytes, None at the end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Emit:
    """Step: yield a value to the caller's iteration."""

    value: Any


Step = Send | Open | Read | Pause | Emit
ApiExchange = Generator[Step, Any, T]


def next_step(exchange: ApiExchange[Any], outcome: Any) -> Step:
    """Return the exchange's next step after a step's result. StopIteration at its end."""
    return exchange.throw(outcome) if isinstance(outcome, ConnectionLostError) else exchange.send(outcome)


@dataclass(frozen=True, slots=True)
class ClientCore:
    """The operations of the job API. `api_key` is sent to the API only, never to redirect targets."""

    url: str
    api_key: str = ""
    retry_s: float = RETRY_S
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[], float] = random.random

    # Jobs

    def submit(self, order: SubmitRequest) -> ApiExchange[Job]:
        """Submit a job; upload a large payload first."""
        source = order.source
        if source is not None and _size(source) > INLINE_BYTES_MAX:
            upload = yield from self.upload(source)
            order = replace(order, source=None, upload=upload)
        call = encode_submit_request(order)
        response = yield from self._request(
            ApiCall("POST", "/v1/jobs", call.params, call.headers, call.content, repeatable=order.repeatable)
        )
        return _job(response)

    def get(self, job_id: str, wait_s: float = 0.0) -> ApiExchange[Job]:
        """Return a job; with `wait_s`, once it has ended or after that time."""
        params = (("wait", f"{wait_s:g}"),) if wait_s else ()
        response = yield from self._request(ApiCall("GET", _path(job_id), params, extra_s=wait_s))
        return _job(response)

    def wait(self, job_id: str, timeout_s: float | None) -> ApiExchange[Job]:
        """Return a job once it has ended."""
        began_s = self.clock.now()
        while True:
            left_s = WAIT_S if timeout_s is None else timeout_s - (self.clock.now() - began_s)
            job = yield from self.get(job_id, max(0.0, min(WAIT_S, left_s)))
            if job.state.ended:
                return job
            if timeout_s is not None and self.clock.now() - began_s >= timeout_s:
                raise DeadlineError(f"job {job_id} is {job.state.value} after {timeout_s:g} s")

    def listing(self, params: tuple[tuple[str, str], ...], page: int = PAGE) -> ApiExchange[None]:
        """Emit jobs, newest first, page by page."""
        after = ""
        while True:
            paged = (*params, ("limit", str(page)), ("after", after))
            response = yield from self._request(ApiCall("GET", "/v1/jobs", paged))
            document = read_document(response)
            for job in document["jobs"]:
                yield Emit(read_job(job))
            after = document["next_after"]
            if not after:
                return

    def history(self, job_id: str) -> ApiExchange[list[HistoryEntry]]:
        """Return a job's history."""
        response = yield from self._request(ApiCall("GET", f"{_path(job_id)}/history"))
        return [read_history(entry) for entry in read_document(response)["history"]]

    def cancel(self, job_id: str) -> ApiExchange[Job]:
        """Cancel a job."""
        return _job((yield from self._request(ApiCall("POST", f"{_path(job_id)}/cancel"))))

    def retry(self, job_id: str) -> ApiExchange[Job]:
        """Requeue a job.

        Not repeated if the first request may have arrived: the second would be refused.
        """
        return _job((yield from self._request(ApiCall("POST", f"{_path(job_id)}/retry", repeatable=False))))

    def delete(self, job_id: str) -> ApiExchange[None]:
        """Delete a job.

        If a response was lost and the job does not exist then, the lost request deleted it.
        """
        tries: list[str] = []
        try:
            yield from self._request(ApiCall("DELETE", _path(job_id)), tries)
        except JobNotFoundError:
            if not tries:
                raise

    def events(self, job_id: str) -> ApiExchange[None]:
        """Emit the job now and after each change until it has ended, reconnecting as needed."""
        last = ""
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
            response = yield from self._request(
                ApiCall("GET", f"{_path(job_id)}/events", headers=headers), stream=True
            )
            if response.status == _NO_CONTENT:
                return
            reader = EventReader()
            while (chunk := (yield from _next())) is not None:
                for event in reader.feed(chunk):
                    if event.name == "gone":
                        raise JobNotFoundError(job_id)
                    last = event.id or last
                    job = read_job(read_document(ApiResponse(200, {}, event.data, "")))
                    yield Emit(job)
                    if job.state.ended:
                        return
            yield Pause(RECONNECT_S * (0.5 + self.draw()))

    # Payloads

    def upload(self, source: bytes | Path) -> ApiExchange[str]:
        """Send a payload to the location that the API gives. Return the upload's id."""
        document = read_document((yield from self._request(ApiCall("POST", "/v1/uploads"))))
        headers = {"content-length": str(_size(source))}
        yield from self._request(ApiCall("PUT", document["url"], headers=headers, content=source))
        return document["id"]

    def result(self, job_id: str) -> ApiExchange[None]:
        """Emit the result's bytes as chunks; resume after interruptions."""
        call = ApiCall("GET", f"{_path(job_id)}/result")
        response = yield from self._request(call, stream=True)
        etag, at = response.headers.get("etag", ""), 0
        size = response.headers.get("content-length", "")
        while True:
            try:
                while (chunk := (yield Read())) is not None:
                    at += len(chunk)
                    yield Emit(chunk)
            except ConnectionLostError as lost:
                if not etag:
                    raise self._unavailable(call, f"the result broke off after {at} bytes: {lost}") from lost
            else:
                return
            if size == str(at):
                return
            yield Pause(RECONNECT_S * (0.5 + self.draw()))
            going_on = replace(call, headers={"range": f"bytes={at}-", "if-range": etag})
            response = yield from self._request(going_on, stream=True)
            if at and response.status != _PARTIAL:
                raise self._unavailable(call, f"the result broke off after {at} bytes and has changed since")

    # Queues

    def document(self, method: str, path: str, content: bytes | None = None) -> ApiExchange[dict[str, Any]]:
        """Send one repeatable request and return the JSON object of its response."""
        headers = {} if content is None else {"content-type": "application/json"}
        response = yield from self._request(ApiCall(method, path, headers=headers, content=content))
        return read_document(response)

    # Shared by all operations

    def _request(
        self, call: ApiCall, tries: "list[str] | None" = None, *, stream: bool = False
    ) -> ApiExchange[ApiResponse]:
        """Return the first successful response; retry transient failures within `retry_s`.

        `tries` collects the errors of lost attempts.
        """
        policy, attempt, trouble_s = RetryPolicy(retry_s=self.retry_s), 0, 0.0
        call = self._keyed(call)
        while True:
            after_s: float | None = None
            try:
                response: ApiResponse = yield (Open(call) if stream else Send(call))
            except ConnectionLostError as lost:
                error: HeadraceError = self._unavailable(call, str(lost))
                retry = call.repeatable or not lost.sent
            else:
                if response.status < 400:
                    return response
                error = error_from_response(response)
                retry = response.status in (_PASSING if call.repeatable else _NOT_BEGUN)
                # Unlike other 503s, a closed queue stays closed until it is opened manually.
                retry = retry and not isinstance(error, QueueClosedError)
                after_s = retry_after_s(response.headers.get("retry-after"), 0.0)
            if not retry:
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

    def _keyed(self, call: ApiCall) -> ApiCall:
        if not self.api_key or "://" in call.url:
            return call
        return replace(call, headers={**call.headers, "authorization": f"Bearer {self.api_key}"})

    def _unavailable(self, call: ApiCall, why: str) -> EndpointUnavailableError:
        where = call.url.partition("?")[0] if "://" in call.url else f"{self.url}{call.url}"
        return EndpointUnavailableError(where, why)


def _next() -> ApiExchange[bytes | None]:
    """Return the next chunk of a stream that is reopened after interruptions; None if it broke."""
    try:
        return (yield Read())
    except ConnectionLostError:
        return None


def _job(response: ApiResponse) -> Job:
    try:
        return read_job(read_document(response))
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointRefusedError(response.url, f"the response is no job: {error!r}") from error


def _path(job_id: str) -> str:
    # An id may be typed by a person: whatever it is, it must stay one path segment.
    safe = "".join(c if c.isalnum() and c.isascii() else "-" if c == "-" else "_" for c in job_id)
    return f"/v1/jobs/{safe or '_'}"


def _size(source: bytes | Path) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size
