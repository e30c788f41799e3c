"""Object events to jobs in the ledger: one job for each event, however often it is reported."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, cast

from headrace.core.errors import ConfigError, IdempotencyError, JobLedgerUnavailableError
from headrace.jobs.job import KINDS, Kind, NewJob
from headrace.jobs.ledger import SubmitReply
from headrace.jobs.trigger import Trigger, Triggers, idempotency_key
from headrace.protocols.object_events import ObjectEvent
from headrace.storage.uri import join

_log = logging.getLogger("headrace.jobs.events")

WAIT_S: Final = 60.0
"""The time limit of the ledger's reply; after it the notice must be reported again."""


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """The outcome of an event: the job's id and whether it is new, or "" and the reason for no job."""

    uri: str
    job_id: str = ""
    created: bool = False
    reason: str = ""


class EventSubmitter:
    """A submitter of jobs for object events.

    Thread-safe; it blocks until the jobs are in the ledger.

    Raises ConfigError for a trigger with an unknown kind.
    """

    def __init__(self, triggers: Triggers, submit: Callable[[NewJob], "Future[SubmitReply]"]) -> None:
        for trigger in triggers:
            if trigger.kind not in KINDS:
                raise ConfigError(
                    f"trigger {trigger.name!r}: unknown kind {trigger.kind!r} (known: {', '.join(KINDS)})"
                )
        self._triggers = triggers
        self._submit = submit

    def submit(self, events: Sequence[ObjectEvent]) -> list[EventOutcome]:
        """Submit jobs for events, and return the outcome of each, in order.

        Raises the ledger's error if it accepts none (JobLedgerUnavailableError, QueueFullError, …).
        The whole notice must then be reported again, which creates no job twice.
        """
        decisions = [self._triggers.decide(event) for event in events]
        jobs = [
            job_from_event(event, decision.trigger) if decision.trigger else None
            for event, decision in zip(events, decisions, strict=True)
        ]
        # All are submitted before any is awaited, so that they share a commit.
        futures = [self._submit(job) if job else None for job in jobs]
        return [
            _outcome(event, decision.reason, future)
            for event, decision, future in zip(events, decisions, futures, strict=True)
        ]

    def handle(self, events: Sequence[ObjectEvent]) -> None:
        """Submit jobs for events, without outcomes."""
        for outcome in self.submit(events):
            if outcome.reason:
                _log.info(
                    "an object event fires no trigger", extra={"uri": outcome.uri, "why": outcome.reason}
                )


def job_from_event(event: ObjectEvent, trigger: Trigger) -> NewJob:
    """Return the job for an event.

    Below the trigger's output it uses the same folders as below its prefix.
    """
    folder, _, name = event.uri.removeprefix(trigger.prefix).rpartition("/")
    output_uri = join(trigger.output, f"{folder}/".lstrip("/")) if folder else trigger.output
    what = f"{trigger.name}\n{event.uri}"
    return NewJob(
        model=trigger.model,
        kind=cast("Kind", trigger.kind),
        queue=trigger.queue,
        input_uri=event.uri,
        output_uri=output_uri if trigger.kind == "infer" else join(output_uri, f"{name}/"),
        key=name,
        options=trigger.options,
        idempotency_key=idempotency_key(event),
        body_digest=hashlib.sha256(what.encode()).hexdigest(),
        correlation_id=f"trigger:{trigger.name}",
    )


def _outcome(event: ObjectEvent, reason: str, future: "Future[SubmitReply] | None") -> EventOutcome:
    if future is None:
        return EventOutcome(event.uri, reason=reason)
    try:
        submitted = future.result(WAIT_S)
    except IdempotencyError as error:
        # Another trigger, changed since, has created a job for this event.
        return EventOutcome(event.uri, error.job_id, created=False)
    except TimeoutError:
        raise JobLedgerUnavailableError(
            f"the ledger did not respond within {WAIT_S:g} s: report these objects again"
        ) from None
    return EventOutcome(event.uri, submitted.job.id, submitted.created)
