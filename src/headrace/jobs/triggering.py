"""Object events to jobs in the ledger: each event once, however often and whichever way it is told."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, cast

from headrace.core.errors import ConfigError, IdempotencyError, JobLedgerUnavailableError
from headrace.jobs.job import KINDS, Kind, NewJob
from headrace.jobs.ledger import Submitted
from headrace.jobs.trigger import Trigger, Triggers, idempotency_key
from headrace.protocols.object_events import ObjectEvent
from headrace.storage.uri import join

_log = logging.getLogger("headrace.jobs.events")

WAIT_S: Final = 60.0
"""How long the ledger may take to answer before the notice is left to be told again."""


@dataclass(frozen=True, slots=True)
class EventOutcome:
    """What became of an event: a job's id, and whether it is new; or, with "" for an id, why there is none."""

    uri: str
    job_id: str = ""
    created: bool = False
    reason: str = ""


class Triggering:
    """Makes jobs of events. Any thread; blocks until the jobs are in the ledger.

    Raises ConfigError for a trigger whose kind there is none of.
    """

    def __init__(self, triggers: Triggers, submit: Callable[[NewJob], "Future[Submitted]"]) -> None:
        for trigger in triggers:
            if trigger.kind not in KINDS:
                raise ConfigError(
                    f"trigger {trigger.name!r}: there is no kind {trigger.kind!r} (there are {', '.join(KINDS)})"
                )
        self._triggers = triggers
        self._submit = submit

    def take(self, events: Sequence[ObjectEvent]) -> list[EventOutcome]:
        """What becomes of each event, in order.

        Raises what the ledger says when it takes none (JobLedgerUnavailableError, QueueFullError, …): then the whole notice is
        to be told again, which doubles nothing.
        """
        decisions = [self._triggers.decide(event) for event in events]
        jobs = [
            job_of(event, decision.trigger) if decision.trigger else None
            for event, decision in zip(events, decisions, strict=True)
        ]
        # All on their way before any is waited for: they share a commit.
        answers = [self._submit(job) if job else None for job in jobs]
        return [
            _outcome(event, decision.reason, answer)
            for event, decision, answer in zip(events, decisions, answers, strict=True)
        ]

    def handle(self, events: Sequence[ObjectEvent]) -> None:
        """`take`, for who only wants it done."""
        for outcome in self.take(events):
            if outcome.reason:
                _log.info("an object event fires nothing", extra={"uri": outcome.uri, "why": outcome.reason})


def job_of(event: ObjectEvent, trigger: Trigger) -> NewJob:
    """The job that an event makes. Below the trigger's output stand the same folders as below its prefix."""
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


def _outcome(event: ObjectEvent, reason: str, answer: "Future[Submitted] | None") -> EventOutcome:
    if answer is None:
        return EventOutcome(event.uri, reason=reason)
    try:
        submitted = answer.result(WAIT_S)
    except IdempotencyError as error:
        # Another trigger, since changed, has made a job of this very event.
        return EventOutcome(event.uri, error.job_id, created=False)
    except TimeoutError:
        raise JobLedgerUnavailableError(
            f"the ledger has not answered within {WAIT_S:g} s: tell of these objects again"
        ) from None
    return EventOutcome(event.uri, submitted.job.id, submitted.created)
