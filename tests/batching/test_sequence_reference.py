"""Random operations on the sequence table and on a slow reference, compared after each one.

The operations are starts, requests of 0 to 3 rows, every result of a step, withdrawals, cancels,
restarts, passing time, evictions, instances that die, retire and return, checkpoints that another
process changes or deletes, and interleaving. Simulated instances hold the states: each step must
find exactly the earlier steps of its sequence, in order.
"""

import re
from collections import Counter
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import levels
from batching.sequence_reference import Item, Reference, ReferenceSequence, Refused
from headrace.batching.live_sequence import SequenceStage
from headrace.batching.sequence import LiveSequence, SequenceTable
from headrace.core.errors import (
    PredictorError,
    SequenceFullError,
    SequenceGoneError,
    SequenceLostError,
    StoppedError,
    TooManySequencesError,
)
from headrace.core.sequence import SequenceControl, SequenceEnd, SequenceLimits

IDS = ("a", "b", "c")
IDLE_S = 8
REFUSALS = {
    "gone": SequenceGoneError,
    "lost": SequenceLostError,
    "full": SequenceFullError,
    "many": TooManySequencesError,
    "stopped": StoppedError,
}
MESSAGES = {
    None: "no such sequence",
    SequenceEnd.ENDED: "ended it",
    SequenceEnd.RESTARTED: "replaced it",
    SequenceEnd.CANCELLED: "cancelled",
    SequenceEnd.IDLE: "idle_ms",
    SequenceEnd.TIMED_OUT: "time_ms_max",
    SequenceEnd.EVICTED: "evicted",
    SequenceEnd.INSTANCE_LOST: "died",
    SequenceEnd.STOPPED: "stopped",
}

_SHARES = (
    (12, ("take_all", "step")),
    (5, ("offer", "offer_more", "restore")),
    (2, ("take", "room", "all_work", "time_passes", "replace", "another_process")),
    (1, ("withdraw", "cancel", "nothing_to_do", "next_expiry", "lost", "instance_changes", "collect")),
)
ACTIONS = tuple(action for share, actions in _SHARES for action in actions * share)
RANDOMS = st.randoms(use_true_random=True)
"""Evenly drawn: what is drawn by the strategies themselves seldom gets far."""


MET = {
    *(f"ended: {why}" for why in SequenceEnd),
    *(f"refused: {kind}" for kind in REFUSALS),
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
    "kept by a draining instance",
    "done again from the start",
}


def often(random: Random) -> bool:
    return random.random() < 0.4


def seldom(random: Random) -> bool:
    return random.random() < 0.1


class SequenceMachine(RuleBasedStateMachine):
    """The table and the reference, with simulated clients, instances and checkpoints."""

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
        evicts_saved = limits.live_max % 2 == 0
        self.instances = instances = random.randint(1, 3)
        self.met: set[str] = set()
        """Situations that occurred, to verify that all of them do."""
        self.table = SequenceTable[Item](
            limits,
            instances,
            queue=self.queued,
            unqueue=self.unqueued,
            checkpoints=checkpoints,
            keeps_checkpoint=lambda _: evicts_saved,
        )
        self.reference = Reference(limits, instances, checkpoints=checkpoints, evicts_saved=evicts_saved)
        self.now = 0.0
        self.queue: dict[int, tuple[LiveSequence[Item], int, Item]] = {}
        self.pairs: dict[int, tuple[LiveSequence[Item], ReferenceSequence]] = {}
        self.loading: set[int] = set()
        self.stepping: set[int] = set()
        self.items: dict[str, tuple[LiveSequence[Item], ReferenceSequence, Item]] = {}
        self.order: list[tuple[LiveSequence[Item], Item]] = []
        self.stepped_items: set[str] = set()
        self.seen_over: dict[str, Any] = {}
        self.collected: list[int] = []
        self.states: list[dict[int, list[str]]] = [{} for _ in range(instances)]
        self.store: dict[str, list[str]] = {}
        self.steps = 0

    @rule(action=st.sampled_from(ACTIONS), random=RANDOMS)
    def act(self, action, random):
        getattr(self, action)(random)

    # Callbacks of the table

    def queued(self, sequence: LiveSequence[Item]) -> None:
        assert sequence.number not in self.queue
        assert sequence.stage is SequenceStage.WAITING
        assert sequence.current is not None
        assert sequence.current.rows
        self.queue[sequence.number] = (sequence, sequence.instance, sequence.current)

    def unqueued(self, sequence: LiveSequence[Item]) -> None:
        _, instance, item = self.queue.pop(sequence.number)
        assert (sequence.instance, sequence.current) == (instance, item), (
            "the sequence must be where it was queued"
        )

    # Clients

    def offer(self, random: Random) -> None:
        start = random.choice((False, True, "auto", "auto"))
        self._offer(random.choice(("", *IDS)), start, random.choice((0, 1, 1, 2, 3)), ends=seldom(random))

    def offer_more(self, random: Random) -> None:
        """Offer requests of a live sequence."""
        ids = [expected.id for expected in self.reference.live if expected.id]
        if ids:
            id = random.choice(ids)
            for _ in range(random.randint(1, 4)):
                start = random.choice((False, "auto"))
                self._offer(id, start, random.choice((0, 1, 1, 1, 3)), ends=seldom(random))

    def _offer(self, id: str, start: bool | str, rows: int, *, ends: bool = False) -> None:
        item = Item(f"r{len(self.items)}", rows, ends)
        control = SequenceControl(id, start=start is True and bool(id), end=ends, auto=start == "auto")
        refused = None
        try:
            expected = self.reference.offer(item, control, self.now)
        except Refused as error:
            refused = error
        before = Counter(sequence.number for sequence in self.table)
        # Each side keeps the progress in an item of its own.
        twin = _twin(item)
        try:
            sequence = self.table.offer(twin, control, self.now)
        except PredictorError as error:
            self._refused(id, error, refused)
            return
        assert refused is None, f"only the reference refuses: {refused}"
        if sequence.number not in before:
            assert expected.instance == -1
            assert sequence.number not in self.pairs
            assert sequence.anonymous == (not id)
            assert sequence.instance in self.reference.preferred_instances()
            expected.instance = sequence.instance
        self.pairs[sequence.number] = (sequence, expected)
        self.items[item.name] = (sequence, expected, twin)

    def _refused(self, id: str, error: PredictorError, refused: Refused | None) -> None:
        assert refused is not None, f"only the table refuses: {error}"
        self.met.add(f"refused: {refused.kind}")
        assert type(error) is REFUSALS[refused.kind]
        assert str(error).startswith(f"sequence {id!r}: " if id else "a sequence without an id: ")
        if isinstance(error, (SequenceFullError, TooManySequencesError)):
            assert error.retry_after_s > 0
            return
        ago = "" if refused.at_s is None else f"({self.now - refused.at_s:.1f} s ago)"
        assert MESSAGES[refused.end_reason] in str(error)
        assert ago in str(error)

    def open_items(self) -> list[str]:
        return [name for name in self.items if name not in self.reference.outcomes]

    def withdraw(self, random: Random) -> None:
        if self.open_items():
            self._withdraw(random.choice(self.open_items()))

    def nothing_to_do(self, random: Random) -> None:
        """Withdraw finished requests, and resume sequences that are not held: nothing may change."""
        over = [name for name in self.items if name in self.reference.outcomes]
        if over:
            sequence, _, item = self.items[random.choice(over[-3:])]
            self.table.withdraw(sequence, item, self.now)
        for sequence, expected in list(self.pairs.values())[-4:]:
            if expected.stage != "held":
                self.table.resume(sequence, self.now)

    def _withdraw(self, name: str) -> None:
        sequence, expected, item = self.items[name]
        self.met.add(f"withdrawn while {expected.stage}{', first' if expected.items[0].name == name else ''}")
        self.table.withdraw(sequence, item, self.now)
        mine = next(one for one in expected.items if one.name == name)
        self.reference.withdraw(expected, mine, self.now)

    def replace(self, random: Random) -> None:
        """Restart a sequence after a request that ends it."""
        id = random.choice(IDS)
        expected = self.reference.find(id)
        if expected is None:
            return
        self._offer(id, False, random.choice((0, 1, 1, 2)), ends=True)
        self._offer(id, True, 1)
        if expected.replaced:
            self.met.add(f"replaced while {expected.stage}")

    def cancel(self, random: Random) -> None:
        id = random.choice(IDS)
        self.reference.expire(self.now)
        expected = self.reference.find(id)
        if expected is not None:
            self.met.add(f"cancelled while {expected.stage}")
            self.reference.end(expected, SequenceEnd.CANCELLED, self.now)
        assert self.table.cancel(id, self.now) == (expected is not None)

    # Instances

    def take(self, random: Random) -> None:
        if self.queue:
            self._take(random.choice(sorted(self.queue)))

    def take_all(self, _: Random) -> None:
        for number in sorted(self.queue):
            self._take(number)

    def _take(self, number: int) -> None:
        sequence, _, item = self.queue.pop(number)
        assert self.table.begin_step(sequence) is item
        expected = self.pairs[number][1]
        expected.stepping = True
        if expected.loaded:
            expected.instance_knows = True
            self.stepping.add(number)
        else:
            self.loading.add(number)

    def restore(self, random: Random) -> None:
        if self.loading:
            self._restore(random.choice(sorted(self.loading)))

    def _restore(self, number: int) -> None:
        sequence, expected = self.pairs[number]
        self.loading.remove(number)
        stored = self.store.get(expected.id)
        if stored is not None:
            self.table.state_loaded(sequence, len(stored))
            self.reference.state_loaded(expected, stored)
            self.states[expected.instance][number] = list(stored)
            self.stepping.add(number)
            return
        self.met.add(
            f"missing, while {expected.stage}: known {expected.instance_knows}, auto {expected.auto_restart}"
        )
        anew = self.reference.state_missing(expected, self.now)
        assert self.table.state_missing(sequence, self.now) == anew
        if anew:
            self.states[expected.instance][number] = []
            self.stepping.add(number)

    def step(self, random: Random) -> None:
        if self.stepping:
            self._step(
                random.choice(sorted(self.stepping)),
                state_changed=not seldom(random),
                reschedule=often(random),
                end_sequence=seldom(random),
                finish_request=seldom(random),
                hold=often(random),
                output_seen=often(random),
            )

    def all_work(self, random: Random) -> None:
        """Finish all queued work, with plain results."""
        self.take_all(random)
        for number in sorted(self.loading):
            self._restore(number)
        for number in sorted(self.stepping):
            self._step(number, reschedule=seldom(random))

    def _step(self, number: int, *, output_seen: bool = False, **flags: bool) -> None:
        sequence, expected = self.pairs[number]
        flags = {
            "state_changed": True,
            "reschedule": False,
            "end_sequence": False,
            "finish_request": False,
            "hold": False,
            **flags,
        }
        self.stepping.remove(number)
        self.steps += 1
        name = "" if expected.over else expected.items[0].name
        step = f"{name}/{self.steps}"
        state = self.states[sequence.instance].setdefault(number, [])
        assert state == expected.steps_done, "a step must find the state of all earlier steps"
        if flags["state_changed"]:
            state.append(step)
            if self.checkpoints and expected.id and not expected.over:
                self.store[expected.id] = list(state)
        if name:
            self.items[name][2].output_seen |= output_seen
            expected.items[0].output_seen |= output_seen
        done = self.reference.end_step(expected, self.now, step=step, **flags)
        assert self.table.end_step(sequence, self.now, **flags) == done
        if done:
            assert name not in self.stepped_items
            self.stepped_items.add(name)
            self.order.append((sequence, self.items[name][2]))

    def room(self, random: Random) -> None:
        held = [number for number, (_, expected) in self.pairs.items() if expected.stage == "held"]
        if held:
            sequence, expected = self.pairs[random.choice(held)]
            self.table.resume(sequence, self.now)
            self.reference.resume(expected)

    # Time

    def time_passes(self, random: Random) -> None:
        self.now += random.choice((1, 1, 1, 2, 4))
        if often(random):
            self._expire()

    def _expire(self) -> None:
        self.reference.expire(self.now)
        self.table.expire(self.now)

    def next_expiry(self, _: Random) -> None:
        """Move the time to the next expiry, at which a sequence must end."""
        at_s = self.table.next_expiry_s()
        if at_s is not None:
            self.now = max(self.now, at_s)
            count = len(self.table)
            self._expire()
            assert len(self.table) < count

    # Instances

    def lost(self, random: Random) -> None:
        instance = random.randrange(self.instances)
        numbers = [n for n in sorted(self.loading | self.stepping) if self.pairs[n][0].instance == instance]
        for expected in [self.pairs[number][1] for number in numbers] + self.reference.on_instance(instance):
            self.met.add(f"lost while {expected.stage}")
        self.states[instance].clear()
        self.loading -= set(numbers)
        self.stepping -= set(numbers)
        done = {id(expected) for expected in self.reference.on_instance(instance) if expected.steps_done}
        self.reference.instance_lost(instance, [self.pairs[number][1] for number in numbers], self.now)
        self.table.instance_lost(instance, [self.pairs[number][0] for number in numbers], self.now)
        if any(
            id(expected) in done and not expected.steps_done
            for expected in self.reference.on_instance(instance)
        ):
            self.met.add("done again from the start")
        if seldom(random):
            self.vacate(instance)

    def instance_changes(self, random: Random) -> None:
        instance = random.randrange(self.instances)
        what = random.choice(("up", "up", "down", "retired", "draining"))
        if what == "retired":
            self.vacate(instance)
            return
        if what == "draining":
            self.drain(instance)
            return
        self.table.set_available(instance, available=what == "up")
        if what == "up" or self.reference.availability[instance] != "retired":
            self.reference.availability[instance] = what

    def vacate(self, instance: int) -> None:
        self.states[instance] = {n: state for n, state in self.states[instance].items() if n in self.stepping}
        moving = self.reference.retire_instance(instance, self.now)
        self.table.retire_instance(instance, self.now)
        self.place(moving)

    def drain(self, instance: int) -> None:
        moving = self.reference.drain_instance(instance)
        assert len(self.table.drain_instance(instance)) == len(moving)
        left = [sequence for sequence in self.table if sequence.instance == instance]
        assert self.table.count(instance) == len(left)
        moved = {id(expected) for expected in moving}
        for number, (_, expected) in self.pairs.items():
            if id(expected) in moved:
                self.states[instance].pop(number, None)
        if len(self.reference.on_instance(instance)) > len(moving):
            self.met.add("kept by a draining instance")
        self.place(moving)

    def place(self, moving: list[ReferenceSequence]) -> None:
        """Assert that sequences moved to the best instances."""
        instances = {id(expected): sequence.instance for sequence, expected in self.pairs.values()}
        for expected in moving:
            self.met.add("moved")
            expected.instance = -2
            assert instances[id(expected)] in self.reference.preferred_instances()
            expected.instance = instances[id(expected)]

    # Checkpoints, and other processes that use them

    def another_process(self, random: Random) -> None:
        """Change or delete a checkpoint elsewhere. The next step must see the change."""
        if not self.store:
            return
        id = random.choice(sorted(self.store))
        if often(random):
            del self.store[id]
        else:
            self.steps += 1
            self.store[id].append(f"elsewhere/{self.steps}")
        expected = self.reference.find(id)
        if expected is None or expected.stepping or not expected.steps_done:
            return
        expected.loaded = False
        self.table.unload_state(next(sequence for sequence, its in self.pairs.values() if its is expected))
        if often(random):
            self._offer(id, "auto", 1)

    # Ends

    def collect(self, random: Random) -> None:
        if random.random() < 0.05:
            for expected in list(self.reference.live):
                self.reference.end(expected, SequenceEnd.STOPPED, self.now)
            self.table.stop(self.now)
        self._collect()

    def _collect(self) -> None:
        for sequence in self.table.ended_sequences:
            assert sequence.stage is SequenceStage.ENDED
            self.collected.append(sequence.number)
            self.states[sequence.instance].pop(sequence.number, None)
            resumable = (SequenceEnd.STOPPED, SequenceEnd.EVICTED)
            if sequence.end_reason not in resumable and self.table.find(sequence.id) is None:
                self.store.pop(sequence.id, None)
        self.table.ended_sequences.clear()
        # Only live sequences, and those with a running last step, may have a state left.
        for instance, states in enumerate(self.states):
            for number in states:
                sequence, _ = self.pairs[number]
                assert sequence.stage is not SequenceStage.ENDED
                assert sequence.instance == instance
        assert len(self.collected) == len(set(self.collected)), "a sequence ends once"
        numbers = {id(expected): number for number, (_, expected) in self.pairs.items()}
        assert sorted(self.collected) == sorted(numbers[id(expected)] for expected in self.reference.reported)

    # Invariants

    @invariant()
    def request_ends_match(self):
        for over in self.table.request_ends:
            name = over.item.name
            assert name not in self.seen_over, "a request ends once"
            assert name not in self.stepped_items
            self.seen_over[name] = over
            if over.error is None:
                self.order.append((over.sequence, over.item))
        self.table.request_ends.clear()
        outcomes = self.reference.outcomes
        withdrawn = {name for name, outcome in outcomes.items() if outcome.what == "withdrawn"}
        assert self.seen_over.keys() | self.stepped_items == outcomes.keys() - withdrawn
        for name, over in self.seen_over.items():
            outcome = outcomes[name]
            assert over.sequence is self.items[name][0]
            if outcome.what == "without steps":
                assert over.error is None
                continue
            expected = {SequenceEnd.INSTANCE_LOST: SequenceLostError, SequenceEnd.STOPPED: StoppedError}
            assert type(over.error) is expected.get(outcome.why, SequenceGoneError)
            assert MESSAGES[outcome.why] in str(over.error)
            assert re.match(r"sequence '\w': |a sequence without an id: ", str(over.error))
        names = [(id(self.items[item.name][1]), item.name) for _, item in self.order]
        assert sorted(names) == sorted((id(expected), item.name) for expected, item in self.reference.order)
        for _, expected in self.pairs.values():
            mine = [name for of, name in names if of == id(expected)]
            assert mine == [item.name for of, item in self.reference.order if of is expected]
            if not self.limits.interleave:
                assert mine == sorted(mine, key=lambda name: int(name[1:])), "in the order of the requests"

    @invariant()
    def table_matches(self):
        table, reference = self.table, self.reference
        living = [(sequence, self.pairs[sequence.number][1]) for sequence in table]
        assert [expected for _, expected in living] == sorted(
            reference.live, key=lambda expected: expected.created_s
        )
        assert len(table) == len(reference.live) <= self.limits.live_max
        for id in IDS:
            found = table.find(id)
            assert (found and self.pairs[found.number][1]) is reference.find(id)
        for sequence, expected in self.pairs.values():
            _same(sequence, expected)
        open_items = [item for expected in reference.live for item in expected.items]
        assert table.requests == len(open_items)
        assert table.rows == sum(item.rows for item in open_items)
        assert all(len(sequence.waiting) <= self.limits.requests_max for sequence in table)
        assert {why: count for why, count in table.end_counts.items() if count} == dict(reference.end_counts)
        assert table.next_expiry_s() == reference.next_expiry_s()
        waiting = {sequence.number for sequence in table if sequence.stage is SequenceStage.WAITING}
        assert self.queue.keys() == waiting

    def teardown(self):
        """Finish running steps and end all sequences: nothing may be left."""
        if not hasattr(self, "table"):
            return
        while self.loading or self.stepping:
            if self.loading:
                number = min(self.loading)
                sequence, expected = self.pairs[number]
                self.loading.remove(number)
                self.reference.state_loaded(expected, self.store.get(expected.id, []))
                self.table.state_loaded(sequence, len(expected.steps_done))
                self.states[sequence.instance][number] = list(expected.steps_done)
                self.stepping.add(number)
            else:
                self._step(min(self.stepping))
        for expected in list(self.reference.live):
            self.reference.end(expected, SequenceEnd.STOPPED, self.now)
        self.table.stop(self.now)
        self.request_ends_match()
        self.table_matches()
        self._collect()
        assert (len(self.table), self.table.requests, self.table.rows) == (0, 0, 0)
        assert not self.queue
        assert not any(self.states)
        assert not self.open_items()


def _twin(item: Item) -> Item:
    return Item(item.name, item.rows, item.ends)


def _same(sequence: LiveSequence[Item], expected: ReferenceSequence) -> None:
    """Compare every visible attribute of a sequence."""
    assert sequence.stage.value == expected.stage
    assert (sequence.id, sequence.end_reason, sequence.instance_knows) == (
        expected.id,
        expected.end_reason,
        expected.instance_knows,
    )
    if expected.over:
        assert (sequence.current, len(sequence.waiting)) == (None, 0)
        return
    items = [] if sequence.current is None else [sequence.current, *sequence.waiting]
    assert [(item.name, item.row, item.again) for item in items] == [
        (item.name, item.row, item.again) for item in expected.items
    ]
    assert (sequence.current is None) == (not items)
    assert sequence.steps == len(expected.steps_done)
    assert (sequence.instance, sequence.loaded, sequence.abandoned) == (
        expected.instance,
        expected.loaded,
        expected.abandoned is not None,
    )
    assert sequence.started_s == expected.created_s
    assert sequence.request_started == (bool(expected.items) and expected.items[0].begun)
    if expected.items:
        assert (sequence.key, sequence.priority, sequence.rows) == ("k", 10, 1)
    else:
        assert sequence.idle_since_s == expected.idle_since_s


def test_table_matches_the_reference():
    run_state_machine_as_test(
        SequenceMachine,
        settings=settings(
            max_examples=levels.by_level(30, 300, 6000),
            stateful_step_count=80,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )


def test_long_runs_meet_every_situation():
    """Long runs, which meet rare combinations. `MET` lists those that must occur."""
    met: set[str] = set()
    # Seed 100 is the first with an instance lost while a sequence without a checkpoint ends.
    for seed in (*range(levels.by_level(19, 100, 1500)), 100):
        random = Random(seed)
        machine = SequenceMachine()
        machine.begin(random=random)
        for _ in range(300):
            getattr(machine, random.choice(ACTIONS))(random)
            machine.request_ends_match()
            machine.table_matches()
        machine.teardown()
        met |= machine.met | {f"ended: {why}" for why in machine.reference.end_counts}
    assert met >= MET
