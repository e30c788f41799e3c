"""The table of sequences beside the reference, through random lives: what the one says, the other must say too.

Starts, requests of no to three rows, all that a step can come to, withdrawals, cancels, restarts, time that passes, eviction,
places that die, stand empty and come back, checkpoints that another process goes on with or ends, and turns. After each
step both are compared in all that can be seen. Beside them instances are played, with the states that steps find there:
each step must find what all steps before it left, in order, and nothing else.
"""

import re
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from batching.sequence_reference import Item, Reference, Refused, Story
from headrace.batching.sequence import LiveSequence, SequenceTable
from headrace.batching.sequence_life import SequenceStage
from headrace.core.errors import (
    PredictorError,
    SequenceFullError,
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    TooManySequencesError,
)
from headrace.core.sequence import SequenceAsk, SequenceEnd, SequenceLimits

IDS = ("a", "b", "c")
IDLE_S = 8
REFUSALS = {
    "gone": SequenceGoneError,
    "lost": SequenceLostError,
    "full": SequenceFullError,
    "many": TooManySequencesError,
    "stopped": StoppedError,
}
SAID = {
    None: "no such sequence",
    SequenceEnd.ENDED: "it has ended",
    SequenceEnd.RESTARTED: "was begun in its place",
    SequenceEnd.CANCELLED: "cancelled",
    SequenceEnd.IDLE: "idle_ms",
    SequenceEnd.TIMED_OUT: "time_ms_max",
    SequenceEnd.EVICTED: "made room",
    SequenceEnd.INSTANCE_LOST: "died",
    SequenceEnd.STOPPED: "stopped",
}

_SHARES = (
    (12, ("take_all", "step")),
    (5, ("offer", "offer_more", "restore")),
    (2, ("take", "room", "all_work", "time_passes", "replace", "another_process")),
    (1, ("withdraw", "cancel", "nothing_to_do", "the_next_end_comes", "lost", "a_place_changes", "collect")),
)
ACTIONS = tuple(action for share, actions in _SHARES for action in actions * share)
RANDOMS = st.randoms(use_true_random=True)
"""Evenly drawn: what is drawn by the strategies themselves seldom gets far."""


MET = {
    *(f"ended: {why}" for why in SequenceEnd),
    *(f"refused: {what}" for what in REFUSALS),
    *(f"cancelled while {stage}" for stage in ("idle", "waiting", "stepping", "held")),
    *(f"lost while {stage}" for stage in ("idle", "waiting", "stepping", "held", "ending")),
    *(f"withdrawn while {stage}, first" for stage in ("waiting", "stepping", "held")),
    *(f"withdrawn while {stage}" for stage in ("waiting", "stepping", "held")),
    "missing, while stepping: known False, auto False",
    "missing, while stepping: known False, auto True",
    "missing, while stepping: known True, auto False",
    "missing, while stepping: known True, auto True",
    "missing, while ending: known True, auto False",
    "missing, while ending: known False, auto False",
    *(f"replaced while {stage}" for stage in ("waiting", "stepping", "held")),
    "moved",
    "done again from the start",
}


def often(random: Random) -> bool:
    return random.random() < 0.4


def seldom(random: Random) -> bool:
    return random.random() < 0.1


class Lives(RuleBasedStateMachine):
    """The table, the reference, and what stands around them: callers, instances, and a store of checkpoints."""

    @initialize(random=RANDOMS)
    def begin(self, random):
        self.limits = limits = SequenceLimits(
            live_max=random.randint(1, 4),
            idle_ms=IDLE_S * 1000,
            time_ms_max=random.choice((None, 20_500)),
            requests_max=3,
            evict_idle_ms=random.choice((None, 1000)),
            interleave=random.choice((False, True)),
        )
        self.checkpoints = checkpoints = random.choice((False, True))
        self.places = places = random.randint(1, 3)
        self.met: set[str] = set()
        """What the lives came to, to see that they come to all of it."""
        self.table = SequenceTable[Item](
            limits, places, queue=self.queued, unqueue=self.unqueued, checkpoints=checkpoints
        )
        self.reference = Reference(limits, places, checkpoints=checkpoints)
        self.now = 0.0
        self.queue: dict[int, tuple[LiveSequence[Item], int, Item]] = {}
        self.pairs: dict[int, tuple[LiveSequence[Item], Story]] = {}
        self.loading: set[int] = set()
        self.doing: set[int] = set()
        self.items: dict[str, tuple[LiveSequence[Item], Story, Item]] = {}
        self.order: list[tuple[LiveSequence[Item], Item]] = []
        self.stepped_items: set[str] = set()
        self.seen_over: dict[str, Any] = {}
        self.collected: list[int] = []
        self.states: list[dict[int, list[str]]] = [{} for _ in range(places)]
        self.store: dict[str, list[str]] = {}
        self.steps = 0

    @rule(action=st.sampled_from(ACTIONS), random=RANDOMS)
    def something_happens(self, action, random):
        getattr(self, action)(random)

    # What the table calls

    def queued(self, sequence: LiveSequence[Item]) -> None:
        assert sequence.number not in self.queue
        assert sequence.stage is SequenceStage.WAITING
        assert sequence.current is not None
        assert sequence.current.rows
        self.queue[sequence.number] = (sequence, sequence.place, sequence.current)

    def unqueued(self, sequence: LiveSequence[Item]) -> None:
        _, place, item = self.queue.pop(sequence.number)
        assert (sequence.place, sequence.current) == (place, item), "or it is not found where it was put"

    # Callers

    def offer(self, random: Random) -> None:
        start = random.choice((False, True, "auto", "auto"))
        self._offer(random.choice(("", *IDS)), start, random.choice((0, 1, 1, 2, 3)), ends=seldom(random))

    def offer_more(self, random: Random) -> None:
        """Of what lives."""
        ids = [story.id for story in self.reference.living if story.id]
        if ids:
            id = random.choice(ids)
            for _ in range(random.randint(1, 4)):
                start = random.choice((False, "auto"))
                self._offer(id, start, random.choice((0, 1, 1, 1, 3)), ends=seldom(random))

    def _offer(self, id: str, start: bool | str, rows: int, *, ends: bool = False) -> None:
        item = Item(f"r{len(self.items)}", rows, ends)
        ask = SequenceAsk(id, start=start is True and bool(id), end=ends, auto=start == "auto")
        refused = None
        try:
            story = self.reference.offer(item, ask, self.now)
        except Refused as error:
            refused = error
        before = Counter(sequence.number for sequence in self.table)
        # Both keep its progress, each its own.
        twin = _twin(item)
        try:
            sequence = self.table.offer(twin, ask, self.now)
        except PredictorError as error:
            self._refused(id, error, refused)
            return
        assert refused is None, f"the table takes what is refused: {refused}"
        if sequence.number not in before:
            assert story.place == -1
            assert sequence.number not in self.pairs
            assert sequence.anonymous == (not id)
            assert sequence.place in self.reference.good_places()
            story.place = sequence.place
        self.pairs[sequence.number] = (sequence, story)
        self.items[item.name] = (sequence, story, twin)

    def _refused(self, id: str, error: PredictorError, refused: Refused | None) -> None:
        assert refused is not None, f"the table alone refuses it: {error}"
        self.met.add(f"refused: {refused.what}")
        assert type(error) is REFUSALS[refused.what]
        assert str(error).startswith(f"sequence {id!r}: " if id else "a sequence of one request: ")
        if isinstance(error, (SequenceFullError, TooManySequencesError)):
            assert error.retry_after_s > 0
            return
        ago = "" if refused.at_s is None else f"({self.now - refused.at_s:.1f} s ago)"
        assert SAID[refused.why] in str(error)
        assert ago in str(error)

    def open_items(self) -> list[str]:
        return [name for name in self.items if name not in self.reference.outcomes]

    def withdraw(self, random: Random) -> None:
        if self.open_items():
            self._withdraw(random.choice(self.open_items()))

    def nothing_to_do(self, random: Random) -> None:
        """What is over is withdrawn, and there is room where none was wanted."""
        over = [name for name in self.items if name in self.reference.outcomes]
        if over:
            sequence, _, item = self.items[random.choice(over[-3:])]
            self.table.withdraw(sequence, item, self.now)
        for sequence, story in list(self.pairs.values())[-4:]:
            if story.stage != "held":
                self.table.room(sequence, self.now)

    def _withdraw(self, name: str) -> None:
        sequence, story, item = self.items[name]
        self.met.add(f"withdrawn while {story.stage}{', first' if story.items[0].name == name else ''}")
        self.table.withdraw(sequence, item, self.now)
        mine = next(one for one in story.items if one.name == name)
        self.reference.withdraw(story, mine, self.now)

    def replace(self, random: Random) -> None:
        """One that is asked for its end."""
        id = random.choice(IDS)
        story = self.reference.find(id)
        if story is None:
            return
        self._offer(id, False, random.choice((0, 1, 1, 2)), ends=True)
        self._offer(id, True, 1)
        if story.replaced:
            self.met.add(f"replaced while {story.stage}")

    def cancel(self, random: Random) -> None:
        id = random.choice(IDS)
        self.reference.expire(self.now)
        story = self.reference.find(id)
        if story is not None:
            self.met.add(f"cancelled while {story.stage}")
            self.reference.end(story, SequenceEnd.CANCELLED, self.now)
        assert self.table.cancel(id, self.now) == (story is not None)

    # Instances

    def take(self, random: Random) -> None:
        if self.queue:
            self._take(random.choice(sorted(self.queue)))

    def take_all(self, _: Random) -> None:
        for number in sorted(self.queue):
            self._take(number)

    def _take(self, number: int) -> None:
        sequence, _, item = self.queue.pop(number)
        assert self.table.taken(sequence) is item
        story = self.pairs[number][1]
        story.doing = True
        if story.loaded:
            story.known = True
            self.doing.add(number)
        else:
            self.loading.add(number)

    def restore(self, random: Random) -> None:
        if self.loading:
            self._restore(random.choice(sorted(self.loading)))

    def _restore(self, number: int) -> None:
        sequence, story = self.pairs[number]
        self.loading.remove(number)
        stored = self.store.get(story.id)
        if stored is not None:
            self.table.found(sequence, len(stored))
            self.reference.found(story, stored)
            self.states[story.place][number] = list(stored)
            self.doing.add(number)
            return
        self.met.add(f"missing, while {story.stage}: known {story.known}, auto {story.auto}")
        anew = self.reference.missing(story, self.now)
        assert self.table.missing(sequence, self.now) == anew
        if anew:
            self.states[story.place][number] = []
            self.doing.add(number)

    def step(self, random: Random) -> None:
        if self.doing:
            self._step(
                random.choice(sorted(self.doing)),
                counts=not seldom(random),
                goes_on=often(random),
                ends=seldom(random),
                finished=seldom(random),
                held=often(random),
                shown=often(random),
            )

    def all_work(self, random: Random) -> None:
        """Whatever can be done is done, plainly."""
        self.take_all(random)
        for number in sorted(self.loading):
            self._restore(number)
        for number in sorted(self.doing):
            self._step(number, goes_on=seldom(random))

    def _step(self, number: int, *, shown: bool = False, **said: bool) -> None:
        sequence, story = self.pairs[number]
        said = {"counts": True, "goes_on": False, "ends": False, "finished": False, "held": False, **said}
        self.doing.remove(number)
        self.steps += 1
        name = "" if story.over else story.items[0].name
        step = f"{name}/{self.steps}"
        state = self.states[sequence.place].setdefault(number, [])
        assert state == story.done, "a step finds what all steps before it left"
        if said["counts"]:
            state.append(step)
            if self.checkpoints and story.id and not story.over:
                self.store[story.id] = list(state)
        if name:
            self.items[name][2].shown |= shown
            story.items[0].shown |= shown
        done = self.reference.stepped(story, self.now, step=step, **said)
        assert self.table.stepped(sequence, self.now, **said) == done
        if done:
            assert name not in self.stepped_items
            self.stepped_items.add(name)
            self.order.append((sequence, self.items[name][2]))

    def room(self, random: Random) -> None:
        held = [number for number, (_, story) in self.pairs.items() if story.stage == "held"]
        if held:
            sequence, story = self.pairs[random.choice(held)]
            self.table.room(sequence, self.now)
            self.reference.room(story)

    # Time

    def time_passes(self, random: Random) -> None:
        self.now += random.choice((1, 1, 1, 2, 4))
        if often(random):
            self._expire()

    def _expire(self) -> None:
        self.reference.expire(self.now)
        self.table.expire(self.now)

    def the_next_end_comes(self, _: Random) -> None:
        """Whoever waits for exactly as long as it is told to finds something to do."""
        at_s = self.table.next_s()
        if at_s is not None:
            self.now = max(self.now, at_s)
            count = len(self.table)
            self._expire()
            assert len(self.table) < count

    # Places

    def lost(self, random: Random) -> None:
        place = random.randrange(self.places)
        numbers = [n for n in sorted(self.loading | self.doing) if self.pairs[n][0].place == place]
        for story in [self.pairs[number][1] for number in numbers] + self.reference.at(place):
            self.met.add(f"lost while {story.stage}")
        self.states[place].clear()
        self.loading -= set(numbers)
        self.doing -= set(numbers)
        done = {id(story) for story in self.reference.at(place) if story.done}
        self.reference.lost(place, [self.pairs[number][1] for number in numbers], self.now)
        self.table.lost(place, [self.pairs[number][0] for number in numbers], self.now)
        if any(id(story) in done and not story.done for story in self.reference.at(place)):
            self.met.add("done again from the start")
        if seldom(random):
            self.vacate(place)

    def a_place_changes(self, random: Random) -> None:
        place = random.randrange(self.places)
        what = random.choice(("up", "up", "down", "vacant"))
        if what == "vacant":
            self.vacate(place)
            return
        self.table.up(place, up=what == "up")
        if what == "up" or self.reference.up[place] != "vacant":
            self.reference.up[place] = what

    def vacate(self, place: int) -> None:
        self.states[place] = {n: state for n, state in self.states[place].items() if n in self.doing}
        moving = self.reference.vacate(place, self.now)
        self.table.vacate(place, self.now)
        places = {id(story): sequence.place for sequence, story in self.pairs.values()}
        for story in moving:
            self.met.add("moved")
            story.place = -2
            assert places[id(story)] in self.reference.good_places()
            story.place = places[id(story)]

    # Checkpoints, and the other processes that use them

    def another_process(self, random: Random) -> None:
        """It goes on with a sequence, or ends it; here that is seen before the next step is taken."""
        if not self.store:
            return
        id = random.choice(sorted(self.store))
        if often(random):
            del self.store[id]
        else:
            self.steps += 1
            self.store[id].append(f"elsewhere/{self.steps}")
        story = self.reference.find(id)
        if story is None or story.doing or not story.done:
            return
        story.loaded = False
        self.table.unload(next(sequence for sequence, its in self.pairs.values() if its is story))
        if often(random):
            self._offer(id, "auto", 1)

    # Ends

    def collect(self, random: Random) -> None:
        if random.random() < 0.05:
            for story in list(self.reference.living):
                self.reference.end(story, SequenceEnd.STOPPED, self.now)
            self.table.stop(self.now)
        self._collect()

    def _collect(self) -> None:
        for sequence in self.table.ended:
            assert sequence.stage is SequenceStage.ENDED
            self.collected.append(sequence.number)
            self.states[sequence.place].pop(sequence.number, None)
            if sequence.why is not SequenceEnd.STOPPED and self.table.find(sequence.id) is None:
                self.store.pop(sequence.id, None)
        self.table.ended.clear()
        # What is left of states is of those that live, or whose last step is being done.
        for place, states in enumerate(self.states):
            for number in states:
                sequence, _ = self.pairs[number]
                assert sequence.stage is not SequenceStage.ENDED
                assert sequence.place == place
        assert len(self.collected) == len(set(self.collected)), "a sequence ends once"
        numbers = {id(story): number for number, (_, story) in self.pairs.items()}
        assert sorted(self.collected) == sorted(numbers[id(story)] for story in self.reference.told)

    # What always holds

    @invariant()
    def requests_end_as_they_should(self):
        for over in self.table.over:
            name = over.item.name
            assert name not in self.seen_over, "a request ends once"
            assert name not in self.stepped_items
            self.seen_over[name] = over
            if over.error is None:
                self.order.append((over.sequence, over.item))
        self.table.over.clear()
        outcomes = self.reference.outcomes
        withdrawn = {name for name, outcome in outcomes.items() if outcome.what == "withdrawn"}
        assert self.seen_over.keys() | self.stepped_items == outcomes.keys() - withdrawn
        for name, over in self.seen_over.items():
            outcome = outcomes[name]
            assert over.sequence is self.items[name][0]
            if outcome.what == "asked for no step":
                assert over.error is None
                continue
            expected = {SequenceEnd.INSTANCE_LOST: SequenceLostError, SequenceEnd.STOPPED: StoppedError}
            assert type(over.error) is expected.get(outcome.why, SequenceGoneError)
            assert SAID[outcome.why] in str(over.error)
            assert re.match(r"sequence '\w': |a sequence of one request: ", str(over.error))
        names = [(id(self.items[item.name][1]), item.name) for _, item in self.order]
        assert sorted(names) == sorted((id(story), item.name) for story, item in self.reference.order)
        for _, story in self.pairs.values():
            mine = [name for of, name in names if of == id(story)]
            assert mine == [item.name for of, item in self.reference.order if of is story]
            if not self.limits.interleave:
                assert mine == sorted(mine, key=lambda name: int(name[1:])), "in the order of the asking"

    @invariant()
    def the_table_is_as_the_reference(self):
        table, reference = self.table, self.reference
        living = [(sequence, self.pairs[sequence.number][1]) for sequence in table]
        assert [story for _, story in living] == sorted(reference.living, key=lambda story: story.born_s)
        assert len(table) == len(reference.living) <= self.limits.live_max
        for id in IDS:
            found = table.find(id)
            assert (found and self.pairs[found.number][1]) is reference.find(id)
        for sequence, story in self.pairs.values():
            _same(sequence, story)
        open_items = [item for story in reference.living for item in story.items]
        assert table.requests == len(open_items)
        assert table.rows == sum(item.rows for item in open_items)
        assert all(len(sequence.waiting) <= self.limits.requests_max for sequence in table)
        assert {why: count for why, count in table.ends.items() if count} == dict(reference.ends)
        assert table.next_s() == reference.next_s()
        waiting = {sequence.number for sequence in table if sequence.stage is SequenceStage.WAITING}
        assert self.queue.keys() == waiting

    def teardown(self):
        """All that is being done is done, and all that lives ends: then nothing is left of anything."""
        if not hasattr(self, "table"):
            return
        while self.loading or self.doing:
            if self.loading:
                number = min(self.loading)
                sequence, story = self.pairs[number]
                self.loading.remove(number)
                self.reference.found(story, self.store.get(story.id, []))
                self.table.found(sequence, len(story.done))
                self.states[sequence.place][number] = list(story.done)
                self.doing.add(number)
            else:
                self._step(min(self.doing))
        for story in list(self.reference.living):
            self.reference.end(story, SequenceEnd.STOPPED, self.now)
        self.table.stop(self.now)
        self.requests_end_as_they_should()
        self.the_table_is_as_the_reference()
        self._collect()
        assert (len(self.table), self.table.requests, self.table.rows) == (0, 0, 0)
        assert not self.queue
        assert not any(self.states)
        assert not self.open_items()


def _twin(item: Item) -> Item:
    return Item(item.name, item.rows, item.ends)


def _same(sequence: LiveSequence[Item], story: Story) -> None:
    """All that is seen of a sequence from outside."""
    assert sequence.stage.value == story.stage
    assert (sequence.id, sequence.why, sequence.begun) == (story.id, story.why, story.known)
    if story.over:
        assert (sequence.current, len(sequence.waiting)) == (None, 0)
        return
    items = [] if sequence.current is None else [sequence.current, *sequence.waiting]
    assert [(item.name, item.row, item.again) for item in items] == [
        (item.name, item.row, item.again) for item in story.items
    ]
    assert (sequence.current is None) == (not items)
    assert sequence.steps == len(story.done)
    assert (sequence.place, sequence.loaded, sequence.left) == (
        story.place,
        story.loaded,
        story.left is not None,
    )
    assert sequence.started_s == story.born_s
    assert sequence.goes_on == (bool(story.items) and story.items[0].begun)
    if story.items:
        assert (sequence.key, sequence.priority, sequence.rows) == ("k", 10, 1)
    else:
        assert sequence.touched_s == story.idle_since_s


@pytest.mark.parametrize("examples", [50, pytest.param(600, marks=pytest.mark.slow)])
def test_the_table_does_what_the_reference_does(examples: int):
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=examples,
            stateful_step_count=80,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )


def test_long_lives():
    """Where many things come together that no few of them would lead to; it is seen that all of it was met."""
    met: set[str] = set()
    for seed in range(150):
        random = Random(seed)
        lives = Lives()
        lives.begin(random=random)
        for _ in range(300):
            getattr(lives, random.choice(ACTIONS))(random)
            lives.requests_end_as_they_should()
            lives.the_table_is_as_the_reference()
        lives.teardown()
        met |= lives.met | {f"ended: {why}" for why in lives.reference.ends}
    assert met >= MET
