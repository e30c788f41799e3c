"""Checkpoints in engines whose stores are shared, stale and unavailable."""

import asyncio
import threading

import pytest

from engine.sequences.sum_model import FaultyStore, SumModel, engine, infer_sums, sum_request, sums
from headrace.checkpoints.codec import decode_state, encode_state
from headrace.core.errors import UnavailableError
from headrace.engine.sequences.instance_steps import PURGE_S
from headrace.testing import ManualClock


@pytest.fixture
def store():
    return FaultyStore()


@pytest.fixture
def two(store):
    """Yield two engines over one store."""
    with engine(store) as a, engine(store) as b:
        yield a, b


class EndingModel(SumModel):
    """Records the ends that are reported to it."""

    ended = ()

    def sequence_ended(self, state, why):
        self.ended.append((state.id, str(why), state.steps))


def marks(of):
    """Return the number of sequences that each state loader knows."""
    return [len(loop._committer._state_loader._marks) for loop in of.loops]


# Outdated copies


def test_sequence_moves_between_engines(two):
    a, b = two
    assert sums(a, 1, 2, sequence_id="s", sequence_start=True) == [1, 3]
    assert sums(b, 3, sequence_id="s") == [6]
    assert sums(a, 4, 5, sequence_id="s") == [10, 15]
    assert sums(b, 6, sequence_id="s") == [21]
    assert sums(b, 7, sequence_id="s") == [28]
    assert sums(a, 8, sequence_id="s", sequence_end=True) == [36]
    assert sums(b, 9, sequence_id="s") == "SequenceGoneError"


def test_namespaces_have_checkpoints_of_their_own(store):
    model = EndingModel()
    model.ended = []
    with engine(store, lambda: model) as a:
        assert sums(a, 1, sequence_id="s", sequence_start=True) == [1]
        assert sums(a, 10, namespace="shop", sequence_id="s", sequence_start="auto") == [10]
        assert sums(a, 1, namespace="farm", sequence_id="s") == "SequenceGoneError"
        assert [(info.namespace, info.id) for info in a.sequences()] == [("", "s"), ("shop", "s")]
        assert store.ids == ["s", "shop/s"]
    assert sorted(id for id, _, _ in model.ended) == ["s", "shop/s"]
    with engine(store) as b:
        assert sums(b, 10, namespace="shop", sequence_id="s") == [20]
        assert sums(b, namespace="shop", sequence_id="s", sequence_cancel=True) == []
        assert sums(b, 1, namespace="shop", sequence_id="s") == "SequenceGoneError"
        b.cancel_sequence("s", "farm")
        assert sums(b, 1, sequence_id="s") == [2]
        b.cancel_sequence("s")
        b.stop()
        assert store.ids == []


def test_step_on_stale_state_is_redone(store, two):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    assert sums(b, 5, sequence_id="s") == [6]
    # `a` has the state after one step, and does the same second step.
    assert sums(a, 5, sequence_id="s") == [11]
    assert len({checkpoint.steps for checkpoint in store.saves}) == 4, "one of them was not kept"
    assert sums(b, 1, sequence_id="s") == [12]


def test_sequence_restarted_elsewhere_continues(two):
    a, b = two
    sums(a, 1, 2, sequence_id="s", sequence_start=True)
    assert sums(b, 10, 10, sequence_id="s", sequence_start=True) == [10, 20]
    assert sums(a, 1, sequence_id="s") == [21], "after as many steps: not one more on the old state"


def test_sequence_ended_elsewhere_is_gone(two):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    assert sums(b, 1, sequence_id="s", sequence_end=True) == [2]
    assert sums(a, 1, sequence_id="s") == "SequenceGoneError"
    assert sums(b, 7, sequence_id="s", sequence_start="auto") == [7]
    assert sums(a, 1, sequence_id="s", sequence_start="auto") == [8]


def test_auto_start_restarts_stale_sequence(two):
    a, b = two
    assert sums(a, 1, sequence_id="s", sequence_start="auto") == [1]
    assert sums(b, 1, sequence_id="s", sequence_start="auto", sequence_end=True) == [2]
    assert sums(a, 5, sequence_id="s", sequence_start="auto") == [5]
    assert sums(b, 5, sequence_id="s") == [10]


# Ends


def test_ending_step_deletes_checkpoint(store):
    with engine(store) as only:
        for number in range(20):
            assert sums(only, 1, sequence_id=f"s{number}", sequence_start=True, sequence_end=True) == [1]
            assert store.ids == []
        assert sums(only, 1, sequence_id="m", sequence_start=True, over=True) == [1]
        assert store.ids == []
        assert marks(only) == [0]


@pytest.mark.parametrize("how", ["sequence_end", "sequence_cancel"])
@pytest.mark.parametrize("where", ["here", "stale", "elsewhere"])
def test_end_without_step_deletes_checkpoint_first(store, two, how, where):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    if where == "stale":
        sums(b, 1, sequence_id="s")
    assert sums(b if where == "elsewhere" else a, sequence_id="s", **{how: True}) == []
    assert store.ids == []
    assert sums(a, 1, sequence_id="s") == sums(b, 1, sequence_id="s") == "SequenceGoneError"


@pytest.mark.parametrize("how", ["sequence_end", "sequence_cancel"])
def test_end_of_unknown_sequence_is_error(store, how):
    with engine(store) as only:
        assert sums(only, sequence_id="s", **{how: True}) == "SequenceGoneError"


def test_cancel_sequence_deletes_checkpoint(store, two):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    assert b.cancel_sequence("s")
    b.stop()
    assert store.ids == []
    assert b.cancel_sequence("s") is False, "it has stopped"


@pytest.mark.parametrize("again", [True, "auto"])
@pytest.mark.parametrize("here", [True, False])
def test_sequence_started_during_end_is_kept(store, two, again, here):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    only = a if here else b
    deleting, release = threading.Event(), threading.Event()

    def wait():
        deleting.set()
        assert release.wait(20)

    async def both():
        store.faults["delete"] = wait
        end = asyncio.create_task(infer_sums(only, sequence_id="s", sequence_cancel=True))
        assert await asyncio.to_thread(deleting.wait, 20)
        begins = asyncio.create_task(infer_sums(only, 10, sequence_id="s", sequence_start=again))
        await asyncio.sleep(0)
        release.set()
        return await end, await begins

    assert asyncio.run(both()) == ([], [10])
    assert sums(only, 1, sequence_id="s") == [11]
    assert sums(b if here else a, 1, sequence_id="s") == [12]


def test_expired_idle_copy_keeps_newer_checkpoint(store):
    early, late = ManualClock(), ManualClock()
    with (
        engine(store, clock=early, sequences={"idle_ms": 1000.0}) as a,
        engine(store, clock=late, sequences={"idle_ms": 1000.0}) as b,
    ):
        sums(a, 1, sequence_id="s", sequence_start=True)
        sums(a, 1, sequence_id="t", sequence_start=True)
        sums(b, 1, sequence_id="s")
        early.advance(2.0)
        assert a.sequences() == ()
        # The next batch of the same state loader comes after the endings.
        sums(a, 1, sequence_id="u", sequence_start=True)
        assert store.ids == ["s", "u"]
        assert marks(a) == [1]
        assert sums(b, 1, sequence_id="s") == [3]


def test_evicted_sequence_resumes_from_checkpoint(store):
    with engine(store, sequences={"live_max": 1, "evict_idle_ms": 1e-6}) as only:
        assert sums(only, 1, sequence_id="s", sequence_start=True) == [1]
        assert sums(only, 1, sequence_id="t", sequence_start=True) == [1]
        assert sums(only, 1, sequence_id="s") == [2]
        assert sums(only, 1, sequence_id="t") == [2]
        assert marks(only) == [1]


def test_sequences_beyond_the_live_limit_take_turns(store):
    """A client of an evicted sequence notices nothing."""
    with engine(store, EndingModel, sequences={"live_max": 2}) as only:
        EndingModel.ended = []
        for step in (1, 2, 3):
            for id in "abcd":
                assert sums(only, 1, sequence_id=id, sequence_start=step == 1) == [step]
        assert only.model_statistics().sequences.ends["evicted"] == len(EndingModel.ended) == 10
        assert {why for _, why, _ in EndingModel.ended} == {"evicted"}
        assert [sums(only, 1, sequence_id=id, sequence_end=True) for id in "abcd"] == [[4]] * 4
        assert (store.ids, marks(only)) == ([], [0])


def test_sequences_that_ended_elsewhere_occupy_no_place(store):
    limits = {"live_max": 2}
    with engine(store, sequences=limits) as a, engine(store, sequences=limits) as b:
        for number in range(6):
            assert sums(a, 1, sequence_id=f"s{number}", sequence_start=True) == [1]
            assert sums(b, 1, sequence_id=f"s{number}", sequence_end=True) == [2]
        assert sums(a, 1, sequence_id="s5") == "SequenceGoneError"


def test_live_limit_refuses_while_all_places_are_busy_or_not_saved(store):
    with engine(store, sequences={"live_max": 1}) as only:
        assert sums(only, -1, sequence_id="unsaved", sequence_start=True) == "RefusedRowsError"
        assert sums(only, 1, sequence_id="s", sequence_start=True) == "TooManySequencesError"
        assert sums(only, 1, sequence_id="unsaved") == [1]
        store.faults["save"] = "before"
        assert sums(only, 1, sequence_id="unsaved") == "UnavailableError"
        store.faults.clear()
        # The store has its step before.
        assert sums(only, 1, sequence_id="s", sequence_start=True) == [1]
        assert sums(only, 1, sequence_id="unsaved") == [2]


def test_sequence_whose_delete_is_pending_is_not_evicted(store):
    """The delete would take its checkpoint for that of the sequence before."""
    with engine(store, sequences={"live_max": 1}) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        pending = only._session.sequences.state_deletes._pending
        pending["s"] = 1
        assert sums(only, 1, sequence_id="t", sequence_start=True) == "TooManySequencesError"
        pending.clear()
        assert sums(only, 1, sequence_id="t", sequence_start=True) == [1]


def test_memory_address_evicts_nothing():
    """Its store would take the place that the limit saves."""
    with engine("memory:", sequences={"live_max": 1}) as only:
        assert sums(only, 1, sequence_id="s", sequence_start=True) == [1]
        assert sums(only, 1, sequence_id="t", sequence_start=True) == "TooManySequencesError"


def test_first_step_replaced_before_end_is_not_saved(store):
    """It would replace the checkpoint of the sequence that replaced it."""
    holding, release = threading.Event(), threading.Event()

    class Slow(SumModel):
        def step(self, states, x):
            if x[0, 0] == 100:
                holding.set()
                assert release.wait(20)
            return super().step(states, x)

    with engine(store, Slow, instances=2) as only:

        async def both():
            await infer_sums(only, 1, sequence_id="first", sequence_start=True)
            old = asyncio.create_task(infer_sums(only, 100, sequence_id="s", sequence_start=True))
            assert await asyncio.to_thread(holding.wait, 20)
            # The other instance has fewer sequences now.
            await infer_sums(only, sequence_id="first", sequence_cancel=True)
            new = await infer_sums(only, 1, sequence_id="s", sequence_start=True)
            ended_result = await old
            release.set()
            return ended_result, new

        assert asyncio.run(both()) == ("SequenceGoneError", [1])
        # Each instance has finished its steps.
        for number in range(4):
            sums(only, 1, sequence_id=f"o{number}", sequence_start=True)
        assert sums(only, 1, sequence_id="s") == [2]
    assert {decode_state(c.state)["total"].item() for c in store.saves} == {1.0, 2.0}


# Steps that fail


@pytest.mark.parametrize("rows", [(-1,), (1, -1, 1)])
def test_failed_step_after_load_keeps_state(store, two, rows):
    a, b = two
    sums(a, 1, 2, sequence_id="s", sequence_start=True)
    assert sums(b, *rows, sequence_id="s") == "RefusedRowsError"
    done = sum(rows[: rows.index(-1)])
    assert sums(b, 1, sequence_id="s") == [4 + done]
    assert sums(a, 1, sequence_id="s") == [5 + done]


def test_unreadable_checkpoint_is_replaced_by_start(store, two):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    store.rewrite("s", lambda state: state[:-1])
    assert sums(b, 1, sequence_id="s") == sums(b, 1, sequence_id="s") == "SequenceLostError"
    assert sums(b, 1, sequence_id="s", sequence_start=True) == [1]


# Stores that are unavailable


@pytest.mark.parametrize("parameters", [{}, {"sequence_end": True}])
def test_failed_load_fails_its_request_only(store, two, parameters):
    a, b = two
    sums(a, 1, sequence_id="s", sequence_start=True)
    sums(b, 1, sequence_id="t", sequence_start=True)
    store.faults["load"] = "before"
    assert sums(b, 1, 1, sequence_id="s", **parameters) == "UnavailableError"
    assert sums(b, 1, sequence_id="t") == [2], "what is there needs nothing brought"
    store.faults.clear()
    assert sums(b, 1, sequence_id="s", **parameters) == [2]


@pytest.mark.parametrize("parameters", [{}, {"sequence_end": True}])
@pytest.mark.parametrize("fault", ["before", "after"])
def test_failed_save_is_resolved_by_next_step(store, fault, parameters):
    with engine(store) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        store.faults["save"] = fault
        assert sums(only, 10, 10, sequence_id="s", **parameters) == "UnavailableError"
        store.faults.clear()
        assert sums(only, 100, sequence_id="s") == [101 if fault == "before" else 111]
        assert sums(only, 1, sequence_id="s", sequence_end=True) == [102 if fault == "before" else 112]
        assert (store.ids, marks(only)) == ([], [0])


def test_unsaved_start_is_gone(store):
    with engine(store) as only:
        store.faults["save"] = "before"
        assert sums(only, 1, sequence_id="s", sequence_start=True) == "UnavailableError"
        store.faults.clear()
        assert sums(only, 1, sequence_id="s") == "SequenceGoneError"
        assert sums(only, 1, sequence_id="s", sequence_start=True) == [1]


@pytest.mark.parametrize("fault", ["before", "after"])
def test_unsaved_end_is_not_reported(store, fault):
    with engine(store) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        store.faults["delete"] = fault
        assert sums(only, 10, sequence_id="s", sequence_end=True) == "UnavailableError"
        store.faults.clear()
        assert sums(only, 1, sequence_id="s") == ([12] if fault == "before" else "SequenceGoneError")


@pytest.mark.parametrize("how", ["sequence_end", "sequence_cancel"])
def test_unsaved_end_without_step_can_be_retried(store, how):
    with engine(store) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        store.faults["load"] = store.faults["delete"] = "before"
        assert sums(only, sequence_id="s", **{how: True}) == "UnavailableError"
        asyncio.run(infer_sums(only, 1))  # the instance knows it too
        store.faults.clear()
        assert sums(only, sequence_id="s", **{how: True}) == []
        assert store.ids == []


def test_unavailable_store_does_not_block_idle_end(store):
    clock = ManualClock()
    with engine(store, clock=clock, sequences={"idle_ms": 1000.0}) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        clock.advance(2.0)
        store.faults["delete"] = "before"
        assert sums(only, 1, sequence_id="t", sequence_start=True) == [1]


def test_lenient_request_learns_missing_rows(store):
    with engine(store) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        store.faults["save"] = "before"
        response = only.submit(sum_request(1, 1, sequence_id="s")).result(20)
        assert [failure.row for failure in response.failures] == [0, 1]
        store.faults.clear()
        assert sums(only, 1, sequence_id="s") == [2]


# Requests in the middle


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 2])
def test_rows_resume_after_instance_death(store, tmp_path, instances):
    marker = tmp_path / "die"
    marker.write_text("4")
    with engine(store, isolation="process", instances=instances) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        assert sums(only, 1, 2, 3, 4, 5, sequence_id="s", die=str(marker)) == [2, 4, 7, 11, 16]
        assert not marker.read_text()
        assert sums(only, 1, sequence_id="s") == [17]
        assert only.model_statistics().restarts == 1


def test_rescheduled_request_resumes_after_instance_death(store, tmp_path):
    marker = tmp_path / "die"
    marker.write_text("4")

    async def read(only):
        request = sum_request(1, times=6, sequence_id="s", sequence_start=True, die=str(marker))
        return [item.outputs[0].data.tolist() async for item in only.stream(request)]

    with engine(store, isolation="process") as only:
        assert asyncio.run(read(only)) == [[1], [2], [3], [4], [5], [6]]
        assert not marker.read_text()
        assert sums(only, 1, sequence_id="s") == [7]


def test_rows_end_if_another_process_continued(store, tmp_path):
    """Their first rows were steps of a state that is gone."""

    def elsewhere(state):
        values = decode_state(state)
        return encode_state({**values, "total": values["total"] + 100})

    with engine(store) as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        saves = len(store.saves)

        def once():
            if len(store.saves) == saves + 2:
                store.faults.clear()
                store.rewrite("s", elsewhere)

        store.faults["save"] = once
        # The second of its rows is undone, after as many steps as the checkpoint has.
        assert sums(only, 1, 1, 1, sequence_id="s") == "SequenceGoneError"
        assert store.ids == ["s"], "it is another process's"
        assert sums(only, 1, sequence_id="s") == [103]


# Old ones


def test_idle_checkpoints_are_purged():
    clock = ManualClock()
    store = FaultyStore(clock=clock)
    with engine(store, sequences={"idle_ms": 1000.0}) as gone:
        sums(gone, 1, sequence_id="old", sequence_start=True)
    assert store.ids == ["old"], "a stop ends nothing for good"
    with engine(store, clock=clock, sequences={"idle_ms": 1000.0}) as only:
        clock.advance(PURGE_S - 1)
        assert sums(only, 1, sequence_id="old") == "SequenceGoneError", "it was idle for too long"
        sums(only, 1, sequence_id="new", sequence_start=True)
        assert store.ids == ["new", "old"]
        assert store.calls["purge"] == 0
        clock.advance(1)
        store.faults["purge"] = "before"
        assert sums(only, 1, sequence_id="other", sequence_start=True) == [1]
        store.faults.clear()
        clock.advance(PURGE_S)
        sums(only, 1, sequence_id="last", sequence_start=True)
        assert store.ids == ["last"]
        sums(only, 1, 1, 1, sequence_id="last")
        assert store.calls["purge"] == 2


def test_ended_sequences_are_forgotten(store):
    with engine(store, instances=2) as only:

        async def live(number):
            id = f"s{number}"
            await infer_sums(only, 1, 2, sequence_id=id, sequence_start=True)
            if number % 3:
                how = "sequence_end" if number % 3 == 1 else "sequence_cancel"
                await infer_sums(only, *([1] if number % 2 else []), sequence_id=id, **{how: True})
            else:
                await infer_sums(only, 1, sequence_id=id, sequence_end=True)

        async def all_of_them():
            await asyncio.gather(*(live(number) for number in range(60)))
            # Each instance does something after the last end.
            await asyncio.gather(*(infer_sums(only, 1) for _ in range(20)))

        asyncio.run(all_of_them())
        assert store.ids == []
        assert marks(only) == [0, 0]


def test_anonymous_sequence_is_not_saved(store):
    with engine(store) as only:
        assert sums(only, 1, 2) == [1, 3]
    assert store.saves == []


# Marks


def test_loaded_state_knows_its_steps(two):
    a, b = two
    sums(a, 1, 1, 1, sequence_id="s", sequence_start=True)
    sums(b, 1, sequence_id="s")
    assert [info.steps for info in b.sequences()] == [4]


def test_last_step_is_deleted_once(store):
    with engine(store) as only:
        sums(only, 1, sequence_id="s", sequence_start=True, sequence_end=True)
        sums(only, 1, sequence_id="t", sequence_start=True, sequence_end=True)
        sums(only, 1)
    assert store.calls["delete"] == 2


def test_interleaved_requests_survive_failed_save(store):
    saves = len(store.saves)

    def third():
        if len(store.saves) == saves + 3:
            store.faults.clear()
            raise UnavailableError("memory:", "it does not answer")

    async def both(only):
        texts = [{"times": 4, "sequence_id": "s", "sequence_start": start} for start in (True, False)]
        return await asyncio.gather(*(infer_sums(only, 1, **text) for text in texts))

    store.faults["save"] = third
    with engine(store, sequences={"interleave": True}) as only:
        assert asyncio.run(both(only)) == ["UnavailableError", [2, 3, 4, 5]]


@pytest.mark.slow
def test_rows_end_if_store_lost_data(store, tmp_path):
    """A completed row would be missing, or done twice."""
    marker = tmp_path / "die"
    marker.write_text("4")

    def fall_back():
        store.faults.clear()
        before = store.saves[-2]
        store.delete(["s"])
        store.save([before._replace(previous_steps=0)])

    with engine(store, isolation="process") as only:
        sums(only, 1, sequence_id="s", sequence_start=True)
        store.faults["load"] = fall_back
        assert sums(only, 1, 1, 1, sequence_id="s", die=str(marker)) == "SequenceLostError"
        assert sums(only, 1, sequence_id="s") == [3]


def test_start_elsewhere_during_end_is_kept(store, two):
    def elsewhere():
        store.faults.clear()
        store.save([store.saves[0]._replace(steps=77 << 32 | 1)])

    a, b = two
    sums(a, 5, sequence_id="s", sequence_start=True)
    store.faults["delete"] = elsewhere
    assert sums(b, sequence_id="s", sequence_cancel=True) == []
    assert sums(b, 1, sequence_id="s") == [6]


@pytest.mark.slow
def test_request_survives_deaths_except_two_in_one_step(store, tmp_path):
    marker = tmp_path / "die"
    marker.write_text("3 4 6")
    with engine(store, isolation="process", max_batch_rows=1) as only:
        asked_of = {"sequence_id": "s", "die": str(marker)}
        assert sums(only, 1, times=7, sequence_start=True, **asked_of) == [1, 2, 3, 4, 5, 6, 7]
        marker.write_text("9 9")
        assert sums(only, 1, 1, 1, **asked_of) == "InstanceLostError"
        assert sums(only, 1, sequence_id="s") == [9]
