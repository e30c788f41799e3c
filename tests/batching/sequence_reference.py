"""What sequences should do, as plainly as it can be said: lists, no indexes, everything looked up by looking at all.

Written from what `SequenceTable` and `SequenceLimits` promise. `Story` is one sequence with the steps that were done, so that
what a step finds can be compared with what it should find.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from headrace.core.sequence import SequenceAsk, SequenceEnd, SequenceLimits


@dataclass(eq=False)
class Item:
    """A request. `shown`: its caller has seen some of its answer."""

    name: str
    rows: int = 1
    ends: bool = False
    key: str = "k"
    priority: int = 10
    row: int = 0
    again: bool = False
    shown: bool = False

    @property
    def begun(self) -> bool:
        return self.row > 0 or self.again

    def rewind(self) -> bool:
        return not self.shown


@dataclass(eq=False)
class Story:
    """One sequence. `items` are its requests, whoever's turn it is first; `left` is one that nobody wants, in its step."""

    id: str
    born_s: float
    place: int
    known: bool = False
    loaded: bool = True
    orphan: bool = False
    auto: bool = False
    items: list[Item] = field(default_factory=list[Item])
    done: list[str] = field(default_factory=list[str])
    settled: bool = False
    doing: bool = False
    held: bool = False
    left: Item | None = None
    idle_since_s: float = 0.0
    why: SequenceEnd | None = None
    over: bool = False
    replaced: bool = False

    @property
    def stage(self) -> str:
        if self.over:
            return "ending" if self.doing else "ended"
        if self.doing:
            return "stepping"
        if not self.items:
            return "idle"
        return "held" if self.held else "waiting"


class Refused(Exception):  # noqa: N818 - it is no error of headrace's
    """A request that was not taken: "gone", "lost", "stopped", "full" or "many", and what is known of the end, with its time."""

    def __init__(self, what: str, why: SequenceEnd | None = None, at_s: float | None = None) -> None:
        super().__init__(what)
        self.what, self.why, self.at_s = what, why, at_s


@dataclass
class Outcome:
    """How a request ended: "stepped", "asked for no step", "withdrawn", or the end of its sequence."""

    what: str
    why: SequenceEnd | None = None


class Reference:
    """All sequences of a model."""

    def __init__(self, limits: SequenceLimits, places: int, *, checkpoints: bool) -> None:
        self.limits = limits
        self.checkpoints = checkpoints
        self.up = ["up"] * places
        self.living: list[Story] = []
        self.outcomes: dict[str, Outcome] = {}
        self.order: list[tuple[Story, Item]] = []
        """Requests that ended by their steps, or asked for none, in that order."""
        self.told: list[Story] = []
        self.ends: Counter[SequenceEnd] = Counter()
        self.recent: dict[str, tuple[SequenceEnd, float]] = {}

    # What there is

    def find(self, id: str) -> Story | None:
        return next((story for story in self.living if id and story.id == id and not story.replaced), None)

    def at(self, place: int) -> list[Story]:
        return [story for story in self.living if story.place == place]

    def good_places(self) -> set[int]:
        """Where one more may go: the emptiest of those that are best off."""
        best = next(kind for kind in ("up", "down", "vacant") if kind in self.up)
        fewest = min(len(self.at(place)) for place, kind in enumerate(self.up) if kind == best)
        return {place for place, kind in enumerate(self.up) if kind == best and len(self.at(place)) == fewest}

    def time_over_s(self, story: Story) -> tuple[float, SequenceEnd]:
        idle_s = story.idle_since_s + self.limits.idle_ms / 1000 if story.stage == "idle" else inf
        lived_s = inf if self.limits.time_ms_max is None else story.born_s + self.limits.time_ms_max / 1000
        return min((idle_s, SequenceEnd.IDLE), (lived_s, SequenceEnd.TIMED_OUT))

    def next_s(self) -> float | None:
        at_s = min((self.time_over_s(story)[0] for story in self.living), default=inf)
        return at_s if at_s < inf else None

    # Requests

    def offer(self, item: Item, ask: SequenceAsk, now: float) -> Story:
        """The place of a new sequence is -1, for the caller to choose."""
        self.expire(now)
        story = None if ask.start else self.find(ask.id)
        if story is not None and max(len(story.items) - 1, 0) >= self.limits.requests_max:
            raise Refused("full")
        if story is None:
            story = self._begin(ask, now)
        story.auto = ask.auto and (story.auto or not story.items)
        story.items.append(item)
        if len(story.items) == 1:
            self._go_on(story, now)
        return story

    def _begin(self, ask: SequenceAsk, now: float) -> Story:
        old = self.find(ask.id)
        last = old is not None and old.items and old.items[-1].ends and not self.checkpoints
        if old is not None and not last:
            self.end(old, SequenceEnd.RESTARTED, now)
        stored = bool(ask.id) and not ask.start
        if stored and not ask.auto and not self.checkpoints:
            raise self.refusal(ask.id)
        if len(self.living) >= self.limits.live_max:
            self._evict(now)
        if old is not None:
            old.replaced = True
        story = Story(ask.id, now, -1, loaded=not (stored and self.checkpoints), idle_since_s=now)
        self.living.append(story)
        return story

    def refusal(self, id: str) -> Refused:
        why, at_s = self.recent.get(id, (None, None))
        what = {SequenceEnd.INSTANCE_LOST: "lost", SequenceEnd.STOPPED: "stopped"}.get(why, "gone")
        return Refused(what, why, at_s)

    def _evict(self, now: float) -> None:
        idle = [story for story in self.living if story.stage == "idle"]
        idlest = min(idle, key=lambda story: story.idle_since_s, default=None)
        if idlest is None or self.limits.evict_idle_ms is None:
            raise Refused("many")
        if now < idlest.idle_since_s + self.limits.evict_idle_ms / 1000:
            raise Refused("many")
        # Of several that have been idle for equally long, any may go: none such here, for ids of tests are few.
        self.end(idlest, SequenceEnd.EVICTED, now)

    def _go_on(self, story: Story, now: float) -> None:
        """Whoever asks for no step, and is next, is over."""
        while story.items and not story.items[0].rows:
            item = story.items.pop(0)
            self.outcomes[item.name] = Outcome("asked for no step")
            self.order.append((story, item))
            if item.ends or not story.id:
                self.end(story, SequenceEnd.ENDED, now)
                return
        if not story.items:
            story.idle_since_s = now
            if story.replaced:
                self.end(story, SequenceEnd.RESTARTED, now)

    def withdraw(self, story: Story, item: Item, now: float) -> None:
        if not story.id:
            self.end(story, SequenceEnd.CANCELLED, now)
        elif story.doing and story.items[0] is item:
            story.left = item
        else:
            first = story.items[0] is item
            self._drop(story, item, Outcome("withdrawn"))
            if first:
                story.held = False
                self._go_on(story, now)

    def _drop(self, story: Story, item: Item, outcome: Outcome) -> None:
        story.items.remove(item)
        story.settled |= bool(story.done) and item.begun
        self.outcomes[item.name] = outcome
        if story.left is item:
            story.left = None

    # Steps

    def stepped(
        self,
        story: Story,
        now: float,
        *,
        step: str,
        counts: bool,
        goes_on: bool,
        ends: bool,
        finished: bool,
        held: bool,
    ) -> bool:
        story.doing = False
        if counts:
            story.done.append(step)
        if story.over:
            self._tell(story)
            return False
        item = story.items[0]
        item.again = goes_on and not ends
        item.row += not item.again
        complete = finished or item.row == item.rows
        if complete or ends or item is story.left:
            self._drop(story, item, Outcome("stepped"))
            self.order.append((story, item))
            if ends or not story.id or (complete and item.ends):
                self.end(story, SequenceEnd.ENDED, now)
            else:
                self._go_on(story, now)
            return True
        story.held = held
        if not held:
            self._turn(story)
        return False

    def room(self, story: Story) -> None:
        if story.stage == "held":
            story.held = False
            self._turn(story)

    def _turn(self, story: Story) -> None:
        """The current request, if it goes on, goes behind all that may take turns with it."""
        item, *others = story.items
        together: list[Item] = []
        for other in others:
            if other.ends or not other.rows:
                break
            together.append(other)
        if self.limits.interleave and item.again and not item.ends:
            story.items = [*together, item, *others[len(together) :]]

    # Ends

    def end(self, story: Story, why: SequenceEnd, now: float) -> None:
        story.why = why
        self.ends[why] += 1
        if story.id and not story.replaced:
            self.recent[story.id] = (why, now)
        self._leave(story, Outcome("ended", why))
        if not story.doing:
            self._tell(story)

    def _leave(self, story: Story, outcome: Outcome) -> None:
        story.over = True
        self.living.remove(story)
        for item in story.items:
            self.outcomes[item.name] = outcome
        story.items = []

    def _tell(self, story: Story) -> None:
        """Somebody knows of it: its place, or whoever keeps its checkpoint."""
        if story.known or not story.loaded:
            self.told.append(story)

    def expire(self, now: float) -> None:
        while late := [story for story in self.living if self.time_over_s(story)[0] <= now]:
            first = min(late, key=self.time_over_s)
            self.end(first, self.time_over_s(first)[1], now)

    # Places

    def found(self, story: Story, done: list[str]) -> None:
        story.known = story.loaded = True
        story.orphan = False
        story.done = list(done)
        story.settled = bool(done)

    def missing(self, story: Story, now: float) -> bool:
        if not story.over and story.auto and not story.items[0].begun:
            self.found(story, [])
            return True
        story.doing = False
        if story.over:
            pass
        elif story.known:
            self.end(story, SequenceEnd.INSTANCE_LOST if story.orphan else SequenceEnd.ENDED, now)
            return False
        else:
            self._leave(story, Outcome("gone", self.recent.get(story.id, (None, 0.0))[0]))
        if story.known:
            self.told.append(story)
        return False

    def lost(self, place: int, stepping: list[Story], now: float) -> None:
        for story in stepping:
            story.doing = False
            if story.over:
                self._tell(story)
            elif story.left is not None:
                self.withdraw(story, story.left, now)
        for story in self.at(place):
            if not story.done:
                continue
            if self.checkpoints and story.id:
                story.orphan |= story.loaded
                story.loaded = False
                continue
            begun = [item for item in story.items if item.begun]
            if story.settled or any(item.shown for item in begun):
                self.end(story, SequenceEnd.INSTANCE_LOST, now)
                continue
            for item in begun:
                item.row, item.again = 0, False
            story.done = []
            story.held = False

    def vacate(self, place: int, now: float) -> list[Story]:
        """Those that go elsewhere, one by one, for the caller to choose where."""
        self.up[place] = "vacant"
        moving: list[Story] = []
        for story in self.at(place):
            if story.doing or (story.done and not (self.checkpoints and story.id)):
                self.end(story, SequenceEnd.INSTANCE_LOST, now)
                continue
            if story.done:
                story.orphan |= story.loaded
                story.loaded = False
            moving.append(story)
        return moving
