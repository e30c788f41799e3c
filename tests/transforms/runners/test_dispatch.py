"""Who does what, when workers come, work, tell and die in any order: nothing is lost, and nothing is done by two that live."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import InstanceLostError, ModelLoadError
from headrace.pipeline.ledger import Counts
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.runners.deaths import DEATHS_MAX, LEFT_OUT_MAX
from headrace.transforms.runners.dispatch import ASSIGNED_TASKS_MAX, Dispatcher, Hand, busy
from headrace.transforms.runners.messages import Tally
from headrace.transforms.work import Work
from transforms.runners.dispatching import IDLE, READY, ROWS, hand_of, record, told, work_of

REGIONS = st.sampled_from([None, "eu", "us"])


class Dispatching(RuleBasedStateMachine):
    """Runs until too many tasks have killed workers, or too many workers could not load."""

    @initialize(regions=st.lists(REGIONS, min_size=1, max_size=30), workers=st.integers(1, 4))
    def begin(self, regions, workers) -> None:
        self.done: set[int] = set()
        self.work = work_of(regions, lambda record: self.done.add(record.task))
        self.tasks, self.of = self.work.plan.tasks, workers
        self.dispatcher = Dispatcher("double")
        self.dispatcher.begin(self.work, self.tasks, {})
        self.untold: dict[int, list[int]] = {}
        """By hand: what it has committed and not told."""
        self.orphans: list[list[int]] = []
        """What workers were doing that are given up, and live."""
        self.deaths: dict[int, int] = {}
        self.left_out: set[int] = set()
        self.unloaded = 0
        self.over = False

    @property
    def hands(self) -> list[Hand]:
        return self.dispatcher.hands

    def doing(self, hand: Hand) -> list[int]:
        """What a hand has not committed, as it knows."""
        mine = {*hand.done, *self.untold.get(id(hand), ())}
        return [n for n in hand.assigned if n not in mine]

    def chosen(self, data, hands: list[Hand]) -> Hand:
        return hands[data.draw(st.integers(0, len(hands) - 1))]

    @precondition(lambda self: not self.over and len(self.hands) < 6)
    @rule(region=REGIONS, other=st.sampled_from(["idle", "never"]))
    def come(self, region, other) -> None:
        hand_of(self.dispatcher, ready=False, region=region, other_regions=other)

    @precondition(lambda self: any(not h.ready for h in self.hands))
    @rule(data=st.data())
    def load(self, data) -> None:
        self.dispatcher.heard(self.chosen(data, [h for h in self.hands if not h.ready]), READY)
        self.unloaded = 0

    @precondition(lambda self: not self.over and self.hands)
    @rule(data=st.data())
    def take(self, data) -> None:
        hand = self.chosen(data, self.hands)
        before, had = self._left(), hand.assigned
        order = self.dispatcher.assign(hand, of=self.of)
        near = [n for n in before if hand.locality.is_own(self.tasks[n])]
        may = before if hand.locality.other_regions == "idle" else near
        if order is None:
            assert had or not hand.ready or not may
            assert self._left() == before
            return
        assert not had
        assert hand.ready
        assert 1 <= len(order.tasks) <= ASSIGNED_TASKS_MAX
        assert order.run == self.work.run
        assert set(order.tasks) <= set(may)
        if not set(order.tasks) <= set(near):
            assert (near, len(order.tasks)) == ([], 1)
        suspects = [n for n in order.tasks if self.deaths.get(n)]
        assert order.keep_all == bool(suspects)
        assert not suspects or len(order.tasks) == 1

    @precondition(lambda self: any(self.doing(h) for h in self.hands))
    @rule(data=st.data())
    def commit(self, data) -> None:
        hand = self.chosen(data, [h for h in self.hands if self.doing(h)])
        task = self.doing(hand)[0]
        self.work.ledger.commit_task(record(task, attempt=str(id(hand))))
        self.untold.setdefault(id(hand), []).append(task)

    @precondition(lambda self: any(self.untold.get(id(h)) for h in self.hands))
    @rule(data=st.data())
    def tell(self, data) -> None:
        hand = self.chosen(data, [h for h in self.hands if self.untold.get(id(h))])
        self.dispatcher.heard(hand, told(self.untold[id(hand)].pop(0)))

    @precondition(lambda self: any(h.assigned and len(h.done) == len(h.assigned) for h in self.hands))
    @rule(data=st.data())
    def rest(self, data) -> None:
        finished = [h for h in self.hands if h.assigned and len(h.done) == len(h.assigned)]
        self.dispatcher.heard(self.chosen(data, finished), IDLE)

    @precondition(lambda self: any(self.orphans))
    @rule(data=st.data())
    def orphan_commits(self, data) -> None:
        orphan = [o for o in self.orphans if o]
        self.work.ledger.commit_task(
            record(orphan[data.draw(st.integers(0, len(orphan) - 1))].pop(0), attempt="orphan")
        )

    @precondition(lambda self: not self.over and self.hands)
    @rule(data=st.data(), by_itself=st.booleans())
    def die(self, data, by_itself) -> None:
        hand = self.chosen(data, self.hands)
        ledger = self.work.ledger
        undone = [n for n in hand.assigned if n not in hand.done and ledger.task(n) is None]
        if not by_itself:
            self.orphans.append(list(self.doing(hand)))
        self.untold.pop(id(hand), None)
        if by_itself and undone:
            self.deaths[undone[0]] = self.deaths.get(undone[0], 0) + 1
            if self.deaths[undone[0]] >= DEATHS_MAX:
                self.left_out.add(undone[0])
        self.unloaded += by_itself and not hand.ready
        if len(self.left_out) >= LEFT_OUT_MAX or self.unloaded >= DEATHS_MAX:
            self.over = True
            expected = ModelLoadError if self.unloaded >= DEATHS_MAX else InstanceLostError
            with pytest.raises(expected, match="with status 9"):
                self.dispatcher.died(hand, "with status 9", by_itself=by_itself)
            return
        self.dispatcher.died(hand, "with status 9", by_itself=by_itself)
        assert hand not in self.hands

    @precondition(lambda self: self.over)
    @rule()
    def nothing_more(self) -> None:
        """The run has ended with an error."""

    def _left(self) -> list[int]:
        return list(self.dispatcher._left)

    @invariant()
    def every_task_is_at_one_place(self) -> None:
        if not hasattr(self, "work") or self.over:
            return
        left, doing = self._left(), [n for h in self.hands for n in h.assigned if n not in h.done]
        places = [*left, *doing, *self.left_out]
        assert len(places) == len(set(places))
        assert not self.done & set(doing)
        assert {*places, *self.done} == set(range(len(self.tasks)))
        assert self.dispatcher.left == len(left)
        assert busy(self.hands) == any(h.assigned for h in self.hands)

    def teardown(self) -> None:
        """All go on to the end; one more that may do everything comes, or all that is left is others'."""
        if not hasattr(self, "work") or self.over:
            return
        anybody = hand_of(self.dispatcher)
        while self._left() or busy(self.hands):
            for hand in self.hands:
                if hand.ready and not hand.assigned:
                    self.dispatcher.assign(hand, of=self.of)
                for n in [n for n in hand.assigned if n not in hand.done]:
                    self.work.ledger.commit_task(record(n))
                    self.dispatcher.heard(hand, told(n))
                self.dispatcher.heard(hand, IDLE)
        assert anybody in self.hands
        if self.left_out:
            with pytest.raises(InstanceLostError) as caught:
                self.dispatcher.complete(drained=False)
            assert str(caught.value).count("with status 9") == len(self.left_out)
            assert not self.dispatcher.complete(drained=True) or self._all_committed()
        else:
            assert self.dispatcher.complete(drained=False)
            assert self.done == set(range(len(self.tasks)))

    def _all_committed(self) -> bool:
        return len(self.work.ledger.tasks()) == len(self.tasks)


Dispatching.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDispatching = Dispatching.TestCase
TestDispatching.__doc__ = "The machine, as a test."


def tally(records: int, failed: int = 0, **more) -> dict:
    return {"tally": Tally(records=records, rows_out=records - failed, rows_failed=failed, **more).to_json()}


def begun(regions=(None,) * 3, **more) -> tuple[Dispatcher, Work]:
    work = work_of(regions, **more)
    dispatcher = Dispatcher("double")
    dispatcher.begin(work, work.plan.tasks, {})
    return dispatcher, work


def test_two_workers_that_are_alike_are_two():
    dispatcher, _ = begun()
    first, second = (hand_of(dispatcher, ready=False) for _ in range(2))
    dispatcher.died(second, "with its machine", by_itself=False)
    assert dispatcher.hands[0] is first


def test_what_is_done_again_is_counted_once():
    """Else records that fail would be too many since a machine died."""
    dispatcher, work = begun()
    first = hand_of(dispatcher)
    order = dispatcher.assign(first, of=1)
    assert order is not None
    assert order.tasks == (0,)
    # Half of it, and 2 records behind the checkpoint; then it dies with its machine.
    work.ledger.checkpoint(Checkpoint(0, (), counts=Counts(3, 2, 1)))
    dispatcher.heard(first, tally(5, failed=1, batches=4, cpu_s=2.0))
    dispatcher.told()
    assert (work.progress.records, work.progress.rows_failed) == (5, 1)
    dispatcher.died(first, "with its machine", by_itself=False)
    dispatcher.told()
    assert (work.progress.records, work.progress.rows_failed) == (3, 1)
    # Another one goes on from the checkpoint, and does one more task.
    second = hand_of(dispatcher)
    dispatcher.assign(second, of=1)
    dispatcher.heard(second, tally(2))
    work.ledger.commit_task(record(0))
    dispatcher.heard(second, told(0))
    dispatcher.heard(second, IDLE)
    dispatcher.assign(second, of=1)
    dispatcher.heard(second, tally(2 + ROWS, failed=1))
    work.ledger.commit_task(record(1))
    dispatcher.told()
    assert (work.progress.records, work.progress.rows_failed) == (10, 2)
    # It dies too, before it could tell of that one: which stays all the same.
    dispatcher.died(second, "with its machine", by_itself=False)
    dispatcher.told()
    assert (work.progress.records, work.progress.rows_failed) == (2 * ROWS, 2)
    assert work.progress.batches == 4
    assert dispatcher.cpu_s() == 2.0
    assert dispatcher.left == 1


def test_what_was_in_a_checkpoint_before_is_not_counted_twice():
    work = work_of([None])
    checkpoint = Checkpoint(0, (), counts=Counts(3, 2, 1))
    work.progress.records, work.progress.rows_failed = 3, 1
    dispatcher = Dispatcher("double")
    dispatcher.begin(work, work.plan.tasks, {}, {0: checkpoint})
    hand = hand_of(dispatcher)
    dispatcher.assign(hand, of=1)
    dispatcher.heard(hand, tally(2))
    work.ledger.commit_task(record(0))
    dispatcher.heard(hand, told(0))
    dispatcher.died(hand, "with its machine", by_itself=False)
    dispatcher.told()
    assert (work.progress.records, work.progress.rows_failed) == (ROWS, 1)


def test_an_error_that_is_told_is_raised():
    dispatcher, _ = begun()
    hand = hand_of(dispatcher)
    with pytest.raises(ModelLoadError, match="no weights"):
        dispatcher.heard(hand, {"error": {"type": "ModelLoadError", "message": "no weights"}})


def test_an_assignment_has_its_begins_and_names_its_run():
    work = work_of([None, None], run="r1", replaces=True)
    spots = {(0, 0): Spot(7, 1, 2), (5, 0): Spot(9, 1, 2)}
    dispatcher = Dispatcher("double")
    dispatcher.begin(work, work.plan.tasks, spots)
    order = dispatcher.assign(hand_of(dispatcher), of=1)
    assert order is not None
    assert (order.begins, order.run, order.replaces) == ({(0, 0): spots[0, 0]}, "r1", True)


def test_a_task_that_kills_is_found_wherever_it_stands():
    """Those before it are done alone first; two more deaths, and it is out, and the others are done."""
    dispatcher, work = begun((None,) * 64)
    deaths, poison = 0, 5
    hand = hand_of(dispatcher)
    while dispatcher.left or hand.assigned:
        order = dispatcher.assign(hand, of=1)
        assert order is not None
        for task in order.tasks:
            if task == poison:
                deaths += 1
                dispatcher.died(hand, f"with status {deaths}")
                hand = hand_of(dispatcher)
                break
            work.ledger.commit_task(record(task))
            dispatcher.heard(hand, told(task))
        else:
            dispatcher.heard(hand, IDLE)
    assert deaths == DEATHS_MAX
    with pytest.raises(InstanceLostError, match=r"with status 2 at the first records of memory://in/5\.csv"):
        dispatcher.complete(drained=False)
    assert not dispatcher.complete(drained=True)
    assert len(work.ledger.tasks()) == 63


def test_a_machines_death_is_no_tasks_fault_however_often():
    dispatcher, work = begun((None,))
    for _ in range(3 * DEATHS_MAX):
        order = dispatcher.assign(hand := hand_of(dispatcher), of=1)
        assert order is not None
        assert not order.keep_all
        dispatcher.died(hand, "with its machine", by_itself=False)
        dispatcher.died(hand_of(dispatcher, ready=False), "with its machine", by_itself=False)
    assert dispatcher.left == 1
    assert not dispatcher.complete(drained=False)
    assert work.ledger.tasks() == {}


def test_an_engine_gets_all_at_once_and_what_it_lost_is_left_again():
    done: list[int] = []
    work = work_of([None] * 20, lambda record: done.append(record.task))
    dispatcher = Dispatcher("double")
    dispatcher.begin(work, work.plan.tasks, {})
    given = dispatcher.assign_all(of=2)
    assert [n for one in given for n in one.tasks] == list(range(20))
    assert {len(one.tasks) for one in given} == {2}
    assert dispatcher.left == 0
    hand = hand_of(dispatcher)
    # One was done and told, one was done by a worker that could not say so, one was under way.
    for number in (3, 7):
        work.ledger.commit_task(record(number))
    dispatcher.heard(hand, told(3))
    hand.assigned = (4, 5)
    dispatcher.died(hand, "(killed)")
    dispatcher.recover()
    assert sorted(done) == [3, 7]
    assert dispatcher.left == 18
    dispatcher.told()
    assert (work.progress.records, work.progress.rows_failed) == (2 * ROWS, 2)
    again = dispatcher.assign_all(of=2)
    assert [(one.tasks, one.keep_all) for one in again if one.keep_all] == [((4,), True)]
    assert sorted(n for one in again for n in one.tasks) == sorted(set(range(20)) - {3, 7})


def test_what_is_done_again_is_believed_only_by_who_did_it():
    """The ledger has had a record of it from before."""
    work = work_of([None] * 3, replaces=True)
    for number in range(3):
        work.ledger.commit_task(record(number))
    dispatcher = Dispatcher("double")
    dispatcher.begin(work, work.plan.tasks, {})
    dispatcher.assign_all(of=1)
    hand = hand_of(dispatcher)
    dispatcher.heard(hand, told(1))
    dispatcher.released(hand)
    dispatcher.recover()
    assert [n for one in dispatcher.assign_all(of=1) for n in one.tasks] == [0, 2]
