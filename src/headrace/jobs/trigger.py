"""Object events to jobs: the trigger that an event fires, and the submission of its job.

Stores report an object at least once, in any order, over several channels. Every event has a key
that is equal for all its copies; the ledger creates one job for it.

The objects that a job writes cause events too. An object below any known output prefix fires
nothing, whatever the triggers say. Triggers that could only fire on outputs, or on their own, are
refused when they are read.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

import orjson

from headrace.core.errors import ConfigError, IdempotencyError, JobLedgerUnavailableError, OutputTakenError
from headrace.core.settings import Setting
from headrace.core.settings_reader import read_settings
from headrace.jobs.job import KINDS, Kind, NewJob
from headrace.jobs.ledger import SubmitReply
from headrace.protocols.object_events import ObjectEvent
from headrace.storage.uri import join, prefix_location

TRIGGERS_MAX: Final = 1000
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
WAIT_S: Final = 60.0
"""The time limit of the ledger's reply; after it the notice must be reported again."""

_log = logging.getLogger("headrace.jobs.events")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A rule that creates one job for each object that appears below a prefix."""

    name: Annotated[str, Setting("Name for messages and the jobs' correlation id.")]
    prefix: Annotated[
        str, Setting("s3://BUCKET/ and the beginning of keys, as in S3: it may end within a name.")
    ]
    output: Annotated[str, Setting("Folder of the jobs' results, with or without a final slash.")]
    suffix: Annotated[str, Setting('End of matching keys, such as ".csv".')] = ""
    queue: Annotated[str, Setting("Queue of the jobs.")] = "default"
    model: Annotated[str, Setting("Model of the jobs.")] = ""
    kind: Annotated[str, Setting("Kind of the jobs.")] = "infer"
    options: Annotated[Mapping[str, Any], Setting("Options of the jobs.")] = field(
        default_factory=lambda: _NOTHING
    )

    def matches(self, uri: str) -> bool:
        """Return True if an object with this URI fires the trigger."""
        # Prefix and suffix must not overlap, as in S3.
        long_enough = len(uri) >= len(self.prefix) + len(self.suffix)
        return long_enough and uri.startswith(self.prefix) and uri.endswith(self.suffix)


@dataclass(frozen=True, slots=True)
class TriggerDecision:
    """The trigger that an event fires, or None and the reason."""

    trigger: Trigger | None
    reason: str = ""


class Triggers:
    """A consistent set of triggers. Immutable, thread-safe.

    Exactly one trigger fires for an event: of several that match, the one with the longest prefix;
    of several with the same prefix, the first.

    Args:
        triggers: The triggers, in order.
        outputs: Further prefixes of job outputs, such as a queue's default output.

    Raises ConfigError for a repeated name, a prefix that is not ``s3://``, a trigger that can never
    fire (another one always takes precedence, or all that it matches are outputs), or an output
    that the trigger itself matches.
    """

    def __init__(self, triggers: Iterable[Trigger], *, outputs: Iterable[str] = ()) -> None:
        self._triggers = tuple(triggers)
        if len(self._triggers) > TRIGGERS_MAX:
            raise ConfigError(f"{len(self._triggers)} triggers: at most {TRIGGERS_MAX} are permitted")
        self._outputs = tuple(
            dict.fromkeys(_folder(uri) for uri in (*(t.output for t in self._triggers), *outputs) if uri)
        )
        for index, trigger in enumerate(self._triggers):
            _require_sound(trigger)
            for earlier in self._triggers[:index]:
                _require_apart(earlier, trigger)
            self._require_no_loop(trigger)
        # Sorting is stable: triggers of one prefix keep their order.
        self._longest_first = sorted(self._triggers, key=lambda trigger: -len(trigger.prefix))

    def __iter__(self) -> Iterator[Trigger]:
        return iter(self._triggers)

    def __len__(self) -> int:
        return len(self._triggers)

    def decide(self, event: ObjectEvent) -> TriggerDecision:
        """Return the trigger that an event fires, or the reason why none does."""
        uri = event.uri
        if wrong := _unfit(event.key):
            return TriggerDecision(None, f"{uri!a}: {wrong}")
        for output in self._outputs:
            if uri.startswith(output):
                return TriggerDecision(None, f"{uri} lies below {output}, where jobs write")
        for trigger in self._longest_first:
            if trigger.matches(uri):
                return TriggerDecision(trigger)
        return TriggerDecision(None, f"no trigger matches {uri}")

    def _require_no_loop(self, trigger: Trigger) -> None:
        own = _folder(trigger.output)
        if not trigger.suffix and own.startswith(trigger.prefix):
            raise ConfigError(
                f"trigger {trigger.name!r}: its output {own} lies below its own prefix "
                f"{trigger.prefix}, so that it would fire on its own output; "
                "write elsewhere, or set a suffix that outputs do not have"
            )
        for output in self._outputs:
            if trigger.prefix.startswith(output):
                raise ConfigError(
                    f"trigger {trigger.name!r}: its prefix {trigger.prefix} lies below the output "
                    f"{output}; outputs fire nothing, to avoid loops of triggers"
                )


def idempotency_key(event: ObjectEvent) -> str:
    """Return the key of an event, equal for all its copies: ``event-`` and 64 hexadecimal digits.

    It covers the bucket, the key, the version (or else the ETag), and the sequencer if the store
    gives one. A store without versions and sequencers therefore reports nothing new if the same
    bytes are written again.
    """
    # S3 ignores leading zeros and the case.
    sequencer = event.sequencer.upper().lstrip("0")
    identity = [event.bucket, event.key, event.version_id or event.etag, sequencer]
    return f"event-{hashlib.sha256(orjson.dumps(identity)).hexdigest()}"


def read_triggers(tables: Sequence[Any], *, outputs: Iterable[str] = ()) -> Triggers:
    """Read triggers from tables of a settings file, with the fields of `Trigger` as keys.

    Raise ConfigError for an unknown, missing or ill-typed key, and as `Triggers` does.
    """
    return Triggers((_read(table, number) for number, table in enumerate(tables, 1)), outputs=outputs)


def _read(table: Any, number: int) -> Trigger:
    if not isinstance(table, Mapping):
        raise ConfigError(f"trigger {number}: expected a table, not {table!r}")
    values = cast("Mapping[str, Any]", table)
    trigger = read_settings(Trigger, values, f"trigger {values.get('name') or number!r}")
    return replace(trigger, options=MappingProxyType(dict(trigger.options)))


def _require_sound(trigger: Trigger) -> None:
    where = f"trigger {trigger.name!r}"
    if not (trigger.name and trigger.queue and trigger.kind and trigger.output):
        raise ConfigError(f"{where}: name, queue, kind and output must not be empty")
    if not trigger.prefix.startswith("s3://"):
        raise ConfigError(f"{where}: {trigger.prefix!r} is not an S3 prefix; write s3://BUCKET/PREFIX")
    location = prefix_location(trigger.prefix)
    if not trigger.prefix.startswith(f"s3://{location.bucket}/"):
        # Otherwise s3://in would also match objects of the bucket `in-another`.
        raise ConfigError(f"{where}: end the bucket name with a slash: {trigger.prefix}/")


def _require_apart(earlier: Trigger, later: Trigger) -> None:
    if earlier.name == later.name:
        raise ConfigError(f"two triggers are named {later.name!r}")
    if earlier.prefix == later.prefix and later.suffix.endswith(earlier.suffix):
        raise ConfigError(
            f"trigger {later.name!r} can never fire: the earlier {earlier.name!r} matches all its objects; "
            "change prefix or suffix, or put the narrower one first"
        )


def _unfit(key: str) -> str:
    """Return why an object of this name creates no job; "" if it does.

    Anybody may choose an object's name, and the job's output is named after it: it must not lead
    out of the output prefix.
    """
    if not key or key.endswith("/"):
        return "a folder marker is no object"
    if {"", ".", ".."} & set(key.split("/")) or _CONTROL.search(key):
        return "its key has an empty, '.' or '..' segment, or a control character"
    return ""


def _folder(uri: str) -> str:
    return uri if uri.endswith("/") else f"{uri}/"


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
        # A new object of the same name has a new result.
        if_exists="replace",
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
    except OutputTakenError as error:
        return EventOutcome(event.uri, reason=str(error))
    except TimeoutError:
        raise JobLedgerUnavailableError(
            f"the ledger did not respond within {WAIT_S:g} s: report these objects again"
        ) from None
    return EventOutcome(event.uri, submitted.job.id, submitted.created)
