"""A slow reference of the sequence table: plain lists, no indexes, every lookup a scan.

It follows the documentation of `SequenceTable` and `SequenceLimits`. `ReferenceSequence` records
the finished steps, to compare them with the state that a step finds.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceLimits


@dataclass(eq=False)
class Item:
    """A request. `output_seen` is True if its client has received some of its output."""

    name: str
    rows: int = 1
    ends: bool = False
    key: str = "k"
    priority: int = 10
    row: int = 0
    again: bool = False
    output_seen: bool = False

    @property
    def begun(self) -> bool:
        return self.row > 0 or self.again

    def rewind(self) -> bool:
        return not self.output_seen


@dataclass(eq=False)
class ReferenceSequence:
    """A sequence. `items` are its requests in running order; `abandoned` is withdrawn in its step."""

    id: str
    created_s: float
    instance: int
    instance_knows: bool = False
    loaded: bool = True
    state_lost: bool = False
    auto_restart: bool = False
    items: list[Item] = field(default_factory=list[Item])
    steps_done: list[str] = field(default_factory=list[str])
    has_final_steps: bool = False
    stepping: bool = False
    held: bool = False
    abandoned: Item | None = None
    idle_since_s: float = 0.0
    idle_number: int = 0
    """The place in the order in which sequences became idle, also at the same time."""
    end_reason: SequenceEnd | None = None
    over: bool = False
    replaced: bool = False

    @property
    def stage(self) -> str:
        if self.over:
            return "ending" if self.stepping else "ended"
        if self.stepping:
            return "stepping"
        if not self.items:
            return "idle"
        return "held" if self.held else "waiting"


class Refused(Exception):  # noqa: N818 - not an error of headrace
    """A refused request, of kind "gone", "lost", "stopped", "full" or "many".

    `end_reason` and `at_s` are the end of its sequence, if known.
    """

    def __init__(self, kind: str, end_reason: SequenceEnd | None = None, at_s: float | None = None) -> None:
        super().__init__(kind)
        self.kind, self.end_reason, self.at_s = kind, end_reason, at_s


@dataclass
class Outcome:
    """The end of a request: "stepped", "without steps", "withdrawn", or that of its sequence."""

    what: str
    why: SequenceEnd | None = None


class Reference:
    """All sequences of a model."""

    def __init__(
        self, limits: SequenceLimits, instances: int, *, checkpoints: bool, evicts_saved: bool
    ) -> None:
        self.limits = limits
        self.checkpoints = checkpoints
        self.evicts_saved = evicts_saved
        self.availability = ["up"] * instances
        self.live: list[ReferenceSequence] = []
        self.outcomes: dict[str, Outcome] = {}
        self.order: list[tuple[ReferenceSequence, Item]] = []
        """Requests that ended by their steps, or asked for none, in that order."""
        self.reported: list[ReferenceSequence] = []
        self.end_counts: Counter[SequenceEnd] = Counter()
        self.recent: dict[str, tuple[SequenceEnd, float]] = {}
        self.idle_count = 0

    # Lookups

    def find(self, id: str) -> ReferenceSequence | None:
        return next(
            (sequence for sequence in self.live if id and sequence.id == id and not sequence.replaced), None
        )

    def on_instance(self, instance: int) -> list[ReferenceSequence]:
        return [sequence for sequence in self.live if sequence.instance == instance]

    def preferred_instances(self) -> set[int]:
        """Return the instances for a new sequence: the emptiest of the best available ones."""
        best = next(kind for kind in ("up", "down", "retired") if kind in self.availability)
        fewest = min(
            len(self.on_instance(instance)) for instance, kind in enumerate(self.availability) if kind == best
        )
        return {
            instance
            for instance, kind in enumerate(self.availability)
            if kind == best and len(self.on_instance(instance)) == fewest
        }

    def expiry_s(self, sequence: ReferenceSequence) -> tuple[float, SequenceEnd]:
        idle_s = sequence.idle_since_s + self.limits.idle_ms / 1000 if sequence.stage == "idle" else inf
        lived_s = (
            inf if self.limits.time_ms_max is None else sequence.created_s + self.limits.time_ms_max / 1000
        )
        return min((idle_s, SequenceEnd.IDLE), (lived_s, SequenceEnd.TIMED_OUT))

    def next_expiry_s(self) -> float | None:
        at_s = min((self.expiry_s(sequence)[0] for sequence in self.live), default=inf)
        return at_s if at_s < inf else None

    # Requests

    def offer(self, item: Item, control: SequenceControl, now: float) -> ReferenceSequence:
        """Offer a request. A new sequence has the instance -1, for the caller to set."""
        self.expire(now)
        sequence = None if control.start else self.find(control.id)
        if sequence is not None and max(len(sequence.items) - 1, 0) >= self.limits.requests_max:
            raise Refused("full")
        if sequence is None:
            sequence = self._create(control, now)
        sequence.auto_restart = control.auto and (sequence.auto_restart or not sequence.items)
        sequence.items.append(item)
        if len(sequence.items) == 1:
            self._advance(sequence, now)
        return sequence

    def _create(self, control: SequenceControl, now: float) -> ReferenceSequence:
        old = self.find(control.id)
        last = old is not None and old.items and old.items[-1].ends and not self.checkpoints
        if old is not None and not last:
            self.end(old, SequenceEnd.RESTARTED, now)
        stored = bool(control.id) and not control.start
        if stored and not control.auto and not self.checkpoints:
            raise self.refusal(control.id)
        if len(self.live) >= self.limits.live_max:
            self._evict(now)
        if old is not None:
            old.replaced = True
        sequence = ReferenceSequence(
            control.id, now, -1, loaded=not (stored and self.checkpoints), idle_since_s=now
        )
        self.live.append(sequence)
        return sequence

    def refusal(self, id: str) -> Refused:
        why, at_s = self.recent.get(id, (None, None))
        what = {SequenceEnd.INSTANCE_LOST: "lost", SequenceEnd.STOPPED: "stopped"}.get(why, "gone")
        return Refused(what, why, at_s)

    def _evict(self, now: float) -> None:
        idle = [sequence for sequence in self.live if sequence.stage == "idle"]
        idle.sort(key=lambda sequence: (sequence.idle_since_s, sequence.idle_number))
        if self.checkpoints and self.evicts_saved:
            for sequence in idle:
                if sequence.steps_done or not sequence.loaded:
                    self.end(sequence, SequenceEnd.EVICTED, now)
                    return
        idlest = next(iter(idle), None)
        if idlest is None or self.limits.evict_idle_ms is None:
            raise Refused("many")
        if now < idlest.idle_since_s + self.limits.evict_idle_ms / 1000:
            raise Refused("many")
        self.end(idlest, SequenceEnd.EVICTED, now)

    def _advance(self, sequence: ReferenceSequence, now: float) -> None:
        """End the next requests without steps."""
        while sequence.items and not sequence.items[0].rows:
            item = sequence.items.pop(0)
            self.outcomes[item.name] = Outcome("without steps")
            self.order.append((sequence, item))
            if item.ends or not sequence.id:
                self.end(sequence, SequenceEnd.ENDED, now)
                return
        if not sequence.items:
            self.idle_count += 1
            sequence.idle_since_s, sequence.idle_number = now, self.idle_count
            if sequence.replaced:
                self.end(sequence, SequenceEnd.RESTARTED, now)

    def withdraw(self, sequence: ReferenceSequence, item: Item, now: float) -> None:
        if not sequence.id:
            self.end(sequence, SequenceEnd.CANCELLED, now)
        elif sequence.stepping and sequence.items[0] is item:
            sequence.abandoned = item
        else:
            first = sequence.items[0] is item
            self._drop(sequence, item, Outcome("withdrawn"))
            if first:
                sequence.held = False
                self._advance(sequence, now)

    def _drop(self, sequence: ReferenceSequence, item: Item, outcome: Outcome) -> None:
        sequence.items.remove(item)
        sequence.has_final_steps |= bool(sequence.steps_done) and item.begun
        self.outcomes[item.name] = outcome
        if sequence.abandoned is item:
            sequence.abandoned = None

    # Steps

    def end_step(
        self,
        sequence: ReferenceSequence,
        now: float,
        *,
        step: str,
        state_changed: bool,
        reschedule: bool,
        end_sequence: bool,
        finish_request: bool,
        hold: bool,
    ) -> bool:
        sequence.stepping = False
        if state_changed:
            sequence.steps_done.append(step)
        if sequence.over:
            self._report(sequence)
            return False
        item = sequence.items[0]
        item.again = reschedule and not end_sequence
        item.row += not item.again
        complete = finish_request or item.row == item.rows
        if complete or end_sequence or item is sequence.abandoned:
            self._drop(sequence, item, Outcome("stepped"))
            self.order.append((sequence, item))
            if end_sequence or not sequence.id or (complete and item.ends):
                self.end(sequence, SequenceEnd.ENDED, now)
            else:
                self._advance(sequence, now)
            return True
        sequence.held = hold
        if not hold:
            self._interleave(sequence)
        return False

    def resume(self, sequence: ReferenceSequence) -> None:
        if sequence.stage == "held":
            sequence.held = False
            self._interleave(sequence)

    def _interleave(self, sequence: ReferenceSequence) -> None:
        """Put a rescheduled request behind the requests that may alternate with it."""
        item, *others = sequence.items
        together: list[Item] = []
        for other in others:
            if other.ends or not other.rows:
                break
            together.append(other)
        if self.limits.interleave and item.again and not item.ends:
            sequence.items = [*together, item, *others[len(together) :]]

    # Ends

    def end(self, sequence: ReferenceSequence, why: SequenceEnd, now: float) -> None:
        sequence.end_reason = why
        self.end_counts[why] += 1
        if sequence.id and not sequence.replaced:
            self.recent[sequence.id] = (why, now)
        self._remove(sequence, Outcome("ended", why))
        if not sequence.stepping:
            self._report(sequence)

    def _remove(self, sequence: ReferenceSequence, outcome: Outcome) -> None:
        sequence.over = True
        self.live.remove(sequence)
        for item in sequence.items:
            self.outcomes[item.name] = outcome
        sequence.items = []

    def _report(self, sequence: ReferenceSequence) -> None:
        """Report the end of a sequence that an instance or a checkpoint store knows."""
        if sequence.instance_knows or not sequence.loaded:
            self.reported.append(sequence)

    def expire(self, now: float) -> None:
        while late := [sequence for sequence in self.live if self.expiry_s(sequence)[0] <= now]:
            first = min(late, key=self.expiry_s)
            self.end(first, self.expiry_s(first)[1], now)

    # Instances

    def state_loaded(self, sequence: ReferenceSequence, done: list[str]) -> None:
        sequence.instance_knows = sequence.loaded = True
        sequence.state_lost = False
        sequence.steps_done = list(done)
        sequence.has_final_steps = bool(done)

    def state_missing(self, sequence: ReferenceSequence, now: float) -> bool:
        if not sequence.over and sequence.auto_restart and not sequence.items[0].begun:
            self.state_loaded(sequence, [])
            return True
        sequence.stepping = False
        if sequence.over:
            pass
        elif sequence.instance_knows:
            self.end(sequence, SequenceEnd.INSTANCE_LOST if sequence.state_lost else SequenceEnd.ENDED, now)
            return False
        else:
            self._remove(sequence, Outcome("gone", self.recent.get(sequence.id, (None, 0.0))[0]))
        if sequence.instance_knows:
            self.reported.append(sequence)
        return False

    def instance_lost(self, instance: int, stepping: list[ReferenceSequence], now: float) -> None:
        for sequence in stepping:
            sequence.stepping = False
            if sequence.over:
                self._report(sequence)
            elif sequence.abandoned is not None:
                self.withdraw(sequence, sequence.abandoned, now)
        for sequence in self.on_instance(instance):
            if not sequence.steps_done:
                continue
            if self.checkpoints and sequence.id:
                sequence.state_lost |= sequence.loaded
                sequence.loaded = False
                continue
            begun = [item for item in sequence.items if item.begun]
            if sequence.has_final_steps or any(item.output_seen for item in begun):
                self.end(sequence, SequenceEnd.INSTANCE_LOST, now)
                continue
            for item in begun:
                item.row, item.again = 0, False
            sequence.steps_done = []
            sequence.held = False

    def drain_instance(self, instance: int) -> list[ReferenceSequence]:
        """Return the sequences that move, for the caller to choose their instances; others stay."""
        self.availability[instance] = "retired"
        moving = [
            sequence
            for sequence in self.on_instance(instance)
            if not sequence.stepping and (not sequence.steps_done or (self.checkpoints and sequence.id))
        ]
        for sequence in moving:
            if sequence.steps_done:
                sequence.state_lost |= sequence.loaded
                sequence.loaded = False
        return moving

    def retire_instance(self, instance: int, now: float) -> list[ReferenceSequence]:
        """Return the sequences that move, for the caller to choose their instances."""
        self.availability[instance] = "retired"
        moving: list[ReferenceSequence] = []
        for sequence in self.on_instance(instance):
            if sequence.stepping or (sequence.steps_done and not (self.checkpoints and sequence.id)):
                self.end(sequence, SequenceEnd.INSTANCE_LOST, now)
                continue
            if sequence.steps_done:
                sequence.state_lost |= sequence.loaded
                sequence.loaded = False
            moving.append(sequence)
        return moving
