"""Object events to jobs: which trigger an event fires, and what must never fire one. Pure.

Stores tell of an object at least once, in any order, and by several ways at a time. Every event has a key that is the same
however often and whichever way it comes; the ledger makes one job of it.

A job writes objects, and their events come back. What lies below any known output prefix fires nothing, whatever the
triggers say; and triggers that could only fire on outputs, or on their own, are refused when they are read.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, cast

import orjson

from headrace.core.errors import ConfigError
from headrace.protocols.object_events import ObjectEvent
from headrace.storage.uri import prefix_location

TRIGGERS_MAX: Final = 1000
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_REQUIRED = ("name", "prefix", "output")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Trigger:
    """What becomes of objects that appear below a prefix: one job each."""

    name: str
    """For messages, and the jobs' history."""
    prefix: str
    """``s3://BUCKET`` and the beginning of keys, as S3 has it: it may end in the middle of a name."""
    output: str
    """Where the jobs' results go: a folder, with or without a slash at its end."""
    suffix: str = ""
    """What keys must end in, such as ".csv"."""
    queue: str = "default"
    model: str = ""
    kind: str = "infer"
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """What else the job takes."""

    def matches(self, uri: str) -> bool:
        """Whether an object with this URI is meant."""
        # Both must fit side by side, as S3 has it.
        long_enough = len(uri) >= len(self.prefix) + len(self.suffix)
        return long_enough and uri.startswith(self.prefix) and uri.endswith(self.suffix)


@dataclass(frozen=True, slots=True)
class Decision:
    """What an event comes to: a trigger that fires, or None and why none does."""

    trigger: Trigger | None
    reason: str = ""


class Triggers:
    """A set of triggers that can stand side by side. Immutable; safe from any thread.

    Of several that match, the one with the longest prefix fires; of several with the same prefix, the one that stands
    first. Exactly one fires for an event.

    Args:
        triggers: In order.
        outputs: Further folders that jobs write below, such as a queue's default output.

    Raises ConfigError when a name stands there twice, a prefix is none of ``s3://``, a trigger can never fire (another
    one always goes first, or all that it matches are outputs), or an output lies where the trigger itself matches.
    """

    def __init__(self, triggers: Iterable[Trigger], *, outputs: Iterable[str] = ()) -> None:
        self._triggers = tuple(triggers)
        if len(self._triggers) > TRIGGERS_MAX:
            raise ConfigError(
                f"{len(self._triggers)} triggers: at most {TRIGGERS_MAX} can stand side by side"
            )
        self._outputs = tuple(
            dict.fromkeys(_folder(uri) for uri in (*(t.output for t in self._triggers), *outputs) if uri)
        )
        for place, trigger in enumerate(self._triggers):
            _require_sound(trigger)
            for earlier in self._triggers[:place]:
                _require_apart(earlier, trigger)
            self._require_no_loop(trigger)
        # Sorting is stable: those of one prefix stay in order.
        self._longest_first = sorted(self._triggers, key=lambda trigger: -len(trigger.prefix))

    def __iter__(self) -> Iterator[Trigger]:
        return iter(self._triggers)

    def __len__(self) -> int:
        return len(self._triggers)

    def decide(self, event: ObjectEvent) -> Decision:
        """The trigger that an event fires, or why none does."""
        uri = event.uri
        if wrong := _unfit(event.key):
            return Decision(None, f"{uri!a}: {wrong}")
        for output in self._outputs:
            if uri.startswith(output):
                return Decision(None, f"{uri} lies below {output}, where jobs write")
        for trigger in self._longest_first:
            if trigger.matches(uri):
                return Decision(trigger)
        return Decision(None, f"no trigger is meant for {uri}")

    def _require_no_loop(self, trigger: Trigger) -> None:
        own = _folder(trigger.output)
        if not trigger.suffix and own.startswith(trigger.prefix):
            raise ConfigError(
                f"trigger {trigger.name!r}: its output {own} lies below its own prefix {trigger.prefix}, so that it would "
                "fire on what its jobs write; write elsewhere, or give it a suffix that outputs do not have"
            )
        for output in self._outputs:
            if trigger.prefix.startswith(output):
                raise ConfigError(
                    f"trigger {trigger.name!r}: all below its prefix {trigger.prefix} lies below {output}, where jobs "
                    "write; objects there fire nothing, since a chain of triggers could go round in a loop"
                )


def idempotency_key(event: ObjectEvent) -> str:
    """The same for one event however often and by whichever way it comes; ``event-`` and 64 hexadecimal digits.

    It stands for the bucket, the key, the version (or else the ETag), and the sequencer where the store gives one. So a
    store that gives neither version nor sequencer tells nothing new by putting the same bytes there again.
    """
    # Zeros before it mean nothing to S3, nor does the case.
    sequencer = event.sequencer.upper().lstrip("0")
    identity = [event.bucket, event.key, event.version_id or event.etag, sequencer]
    return f"event-{hashlib.sha256(orjson.dumps(identity)).hexdigest()}"


def read_triggers(tables: Sequence[Any], *, outputs: Iterable[str] = ()) -> Triggers:
    """Triggers from tables of a settings file, keys as the fields of `Trigger`.

    Raises ConfigError for an unknown, missing or ill-typed key, and what `Triggers` does.
    """
    return Triggers((_read(table, number) for number, table in enumerate(tables, 1)), outputs=outputs)


def _read(table: Any, number: int) -> Trigger:
    if not isinstance(table, Mapping):
        raise ConfigError(f"trigger {number}: expected a table, not {table!r}")
    given = dict(cast("Mapping[str, Any]", table))
    where = f"trigger {given.get('name') or number!r}"
    known = [each.name for each in fields(Trigger)]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(f"{where}: no key is called {unknown[0]!r}; known are {', '.join(known)}")
    if missing := [name for name in _REQUIRED if not given.get(name)]:
        raise ConfigError(f"{where}: {missing[0]!r} is missing")
    options = given.pop("options", _NOTHING)
    if not isinstance(options, Mapping):
        raise ConfigError(f"{where}: options must be a table, not {options!r}")
    if wrong := [name for name, value in given.items() if not isinstance(value, str)]:
        raise ConfigError(f"{where}: {wrong[0]} must be text, not {given[wrong[0]]!r}")
    return Trigger(**given, options=MappingProxyType(dict(cast("Mapping[str, Any]", options))))


def _require_sound(trigger: Trigger) -> None:
    where = f"trigger {trigger.name!r}"
    if not (trigger.name and trigger.queue and trigger.kind and trigger.output):
        raise ConfigError(f"{where}: name, queue, kind and output must not be empty")
    if not trigger.prefix.startswith("s3://"):
        raise ConfigError(f"{where}: {trigger.prefix!r} is no prefix of events; write s3://BUCKET/PREFIX")
    location = prefix_location(trigger.prefix)
    if not trigger.prefix.startswith(f"s3://{location.bucket}/"):
        # Else s3://in would match objects of the bucket `in-another` too.
        raise ConfigError(f"{where}: end the bucket's name with a slash: {trigger.prefix}/")


def _require_apart(earlier: Trigger, later: Trigger) -> None:
    if earlier.name == later.name:
        raise ConfigError(f"two triggers are called {later.name!r}")
    if earlier.prefix == later.prefix and later.suffix.endswith(earlier.suffix):
        raise ConfigError(
            f"trigger {later.name!r} can never fire: {earlier.name!r} stands before it, and matches all that it does; "
            "change prefix or suffix, or put the narrower one first"
        )


def _unfit(key: str) -> str:
    """Why no job is made of an object of this name, "" where one is.

    Anybody may choose an object's name, and the job's output is named after it: it must not lead out of there.
    """
    if not key or key.endswith("/"):
        return "this is a folder's marker, no object"
    if {"", ".", ".."} & set(key.split("/")) or _CONTROL.search(key):
        return "its key has an empty, '.' or '..' segment, or a control character"
    return ""


def _folder(uri: str) -> str:
    return uri if uri.endswith("/") else f"{uri}/"
