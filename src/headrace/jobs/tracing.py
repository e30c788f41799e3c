"""The spans of a job, from its submission to its notifications, for a tracer that exports them.

The ledger keeps the trace context of a job's submission (`NewJob.trace`). The spans of all
processes that work on a job are children of that one, and therefore one trace. Without a
`JobTracer`, nothing of this module runs. Names and attributes follow the OpenTelemetry conventions
for messaging.
"""

import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Final, Protocol

from headrace.core.predictor import RequestTimes
from headrace.jobs.job import Expired, Failed, Job, NewJob, Settlement
from headrace.jobs.state import Cause, cause_of

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,200})?")
_NS_OF_MS: Final = 1_000_000
_OUTCOME: Final = "headrace.job.outcome"
_LOST: Final = "lost"
"""The outcome, and the error, of an attempt that does not count."""

Attributes = Mapping[str, str | int | bool]
_NO_ATTRIBUTES: Final[Attributes] = MappingProxyType({})


def read_traceparent(text: str | None) -> str:
    """Return a W3C ``traceparent`` if it is well-formed, else ""."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else ""


class SpanKind(Enum):
    """The kinds of spans of OpenTelemetry that jobs use."""

    PRODUCER = auto()
    CONSUMER = auto()
    CLIENT = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True)
class SpanError:
    """The error of a span: its type, one of a small number, and its description for the operator."""

    type: str
    why: str


class StartedSpan(Protocol):
    """A span that has begun, as a tracer created it."""

    @property
    def traceparent(self) -> str:
        """The trace context of its children; "" if the span could not be created."""
        ...

    def end(self, at_ns: int, attributes: Attributes, error: SpanError | None) -> None:
        """End the span, with further attributes. Never raise."""
        ...


class JobTracer(Protocol):
    """A tracer of jobs. Thread-safe. It must be quick, and its methods never raise."""

    def start(
        self, name: str, kind: SpanKind, parent: str, at_ns: int, attributes: Attributes
    ) -> StartedSpan:
        """Begin a span, in nanoseconds since the epoch, below the span of a ``traceparent``.

        Without a valid `parent` the span begins a trace.
        """
        ...


class TimedSpan:
    """A span whose times are those of the monotonic clock since its begin.

    The span, and those of its children that it places, therefore never end before they begin,
    whatever the clocks of hosts do. `began_ns` is this host's time unless it is given.
    """

    def __init__(
        self,
        tracer: JobTracer,
        name: str,
        kind: SpanKind,
        parent: str,
        attributes: Attributes,
        *,
        began_ns: int | None = None,
    ) -> None:
        self._began_s = time.monotonic()
        self._began_ns = time.time_ns() if began_ns is None else began_ns
        self._span = tracer.start(name, kind, parent, self._began_ns, attributes)
        self.traceparent: Final = self._span.traceparent

    def epoch_ns(self, time_s: float) -> int:
        """Return a time of the monotonic clock as nanoseconds since the epoch, never before the begin."""
        return self._began_ns + max(0, round((time_s - self._began_s) * 1e9))

    def end(self, attributes: Attributes = _NO_ATTRIBUTES, error: SpanError | None = None) -> None:
        """End the span now."""
        self._span.end(self.epoch_ns(time.monotonic()), attributes, error)


class SubmissionSpan:
    """The span of a submission, from its way to the ledger to the ledger's reply.

    `job` has the span as its trace context, for all later spans of the job.
    """

    def __init__(self, tracer: JobTracer, job: NewJob) -> None:
        attributes = _messaging("send", job, job.id) | _job(job, job.id)
        self._span = TimedSpan(tracer, f"send {job.queue}", SpanKind.PRODUCER, job.trace, attributes)
        self.job: Final = replace(job, trace=self._span.traceparent or job.trace)

    def fail(self, error: BaseException) -> None:
        """End the span of a submission that was refused."""
        self._span.end(error=SpanError(type(error).__name__, str(error)))

    def end(self, job_id: str, *, created: bool) -> None:
        """End the span with the ledger's job; one that is not `created` has a trace of its own."""
        self._span.end(
            {"messaging.message.id": job_id, "headrace.job.id": job_id, "headrace.job.created": created}
        )


class AttemptSpan:
    """The span of an attempt, from its claim to its settlement, with the wait before as a child.

    The claim has the ledger's time. An attempt that is never settled has no span, because its
    worker died: the span of the next attempt shows the number of crashes.
    """

    def __init__(self, tracer: JobTracer, job: Job) -> None:
        spec, began_ns = job.spec, (job.started_at_ms or 0) * _NS_OF_MS
        attributes = {
            **_messaging("process", spec, job.id),
            **_job(spec, job.id),
            "messaging.client.id": job.worker,
            "headrace.job.attempt": job.attempt,
            "headrace.job.crashes": job.crashes,
        }
        self._tracer = tracer
        name = f"process {spec.queue}"
        self._span = TimedSpan(tracer, name, SpanKind.CONSUMER, spec.trace, attributes, began_ns=began_ns)
        due_ns = min(job.due_at_ms * _NS_OF_MS, began_ns)
        self._child("queue", due_ns, began_ns)

    def add_call(self, times: RequestTimes) -> None:
        """Add the call of the model as a child, unless the request never began."""
        if times.began_s is not None and times.ended_s is not None:
            self._child("predict", self._span.epoch_ns(times.began_s), self._span.epoch_ns(times.ended_s))

    def end(self, settlement: Settlement | None) -> None:
        """End the span with the settlement that counted; None for an attempt that does not count."""
        if settlement is None:
            self._span.end({_OUTCOME: _LOST}, SpanError(_LOST, "the lease was lost"))
            return
        outcome, error = settlement.outcome, None
        if isinstance(outcome, Failed):
            error = SpanError(outcome.failure.cause.value, outcome.failure.message)
        elif isinstance(outcome, Expired):
            error = SpanError(Cause.EXPIRED.value, "the deadline of the job has passed")
        self._span.end({_OUTCOME: type(outcome).__name__.lower()}, error)

    def _child(self, name: str, began_ns: int, ended_ns: int) -> None:
        child = self._tracer.start(name, SpanKind.INTERNAL, self._span.traceparent, began_ns, _NO_ATTRIBUTES)
        child.end(max(began_ns, ended_ns), _NO_ATTRIBUTES, None)


@contextmanager
def publication_span(tracer: JobTracer | None, job: Job) -> Generator[None]:
    """Trace one try to publish a job's end. An exception is its error."""
    if tracer is None:
        yield
        return
    attributes = _job(job.spec, job.id)
    span = TimedSpan(tracer, "publish", SpanKind.INTERNAL, job.spec.trace, attributes)
    try:
        yield
    except BaseException as error:
        span.end(error=SpanError(cause_of(error).value, str(error)))
        raise
    span.end()


def notification_span(
    tracer: JobTracer,
    target_kind: str,
    parent: str,
    *,
    job_id: str,
    event: str,
    receiver_id: str,
    attempt: int,
) -> TimedSpan:
    """Return the span of one attempt to deliver a notification. Its receiver continues the trace."""
    attributes: Attributes = {
        "headrace.job.id": job_id,
        "headrace.notification.type": event,
        "headrace.receiver.id": receiver_id,
        "headrace.delivery.attempt": attempt,
    }
    return TimedSpan(tracer, f"notify {target_kind}", SpanKind.CLIENT, parent, attributes)


def _messaging(operation: str, spec: NewJob, job_id: str) -> dict[str, str | int | bool]:
    """Return the attributes of a span that sends or processes a job."""
    return _known(
        {
            "messaging.system": "headrace",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": spec.queue,
            "messaging.message.id": job_id,
        }
    )


def _job(spec: NewJob, job_id: str) -> dict[str, str | int | bool]:
    """Return the attributes of every span of a job, by which its spans are found."""
    return _known(
        {
            "headrace.job.id": job_id,
            "headrace.job.kind": spec.kind,
            "headrace.model.name": spec.model,
            "headrace.endpoint": spec.endpoint,
        }
    )


def _known(texts: dict[str, str]) -> dict[str, str | int | bool]:
    return {name: text for name, text in texts.items() if text}
