"""Steps of a model, in this process and in one of its own: the same answers, and the same promises about states."""

import functools
import itertools
import json
import threading
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import step_models as models
from engine.support import WAIT_S, nothing_left, rows
from headrace.core import InferRequest, Tensor, current_call
from headrace.core.errors import (
    CancelledRequestError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    SequenceLostError,
)
from headrace.core.model import RowError
from headrace.core.sequence import SequenceEnd, SequenceLimits
from headrace.engine import Engine
from headrace.engine.backend import LocalBackend
from headrace.engine.process import ProcessBackend
from headrace.engine.reason import reason
from headrace.engine.recipe import recipe_of
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import Ending, StepOrder

pytestmark = pytest.mark.timeout(60)
GOES_ON, SILENT, ENDS, QUIET = (
    (True, False, False),
    (False, True, False),
    (False, False, True),
    (False, False, False),
)
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _nothing_left():
    """No process, file, or thread outlives its backend."""
    with nothing_left():
        yield


@pytest.fixture
def made():
    """Makes backends, which are closed."""
    backends = []

    def make(kind, model=models.Summing, **serve):
        set_to = ServeSettings(**serve)
        if kind == "local":
            backend = LocalBackend(model, "m", settings=set_to)
        else:
            backend = ProcessBackend(recipe_of(model, "m"), "m", settings=set_to)
        backends.append(backend)
        return backend

    yield make
    for backend in backends:
        backend.close()


both = pytest.mark.parametrize("kind", ["local", "process"])


def order(number, id="s", steps=0, **said):
    values = {"again": False, "end": False, "parameters": {}, "restore": None, "save": False, **said}
    return StepOrder(number, id, steps, **values)


def step(backend, *orders, x=1.0, do="", call=None):
    """One step of each; `x` and `do` for each, or for all."""
    x, do = ([one] * len(orders) if isinstance(one, (float, str)) else one for one in (x, do))
    parts = [{"x": rows(v), "do": np.array([what], object)} for v, what in zip(x, do, strict=True)]
    return backend.step(parts, orders, call or current_call())


def totals(stepped):
    return stepped.outputs["total"].ravel().tolist()


def seen(stepped, row=0):
    return json.loads(stepped.outputs["seen"][row])


def ended(stepped):
    return json.loads(stepped.outputs["ended"][0])


# Answers


@both
def test_a_step_goes_on_from_the_last_one(made, kind):
    """Each sequence from its own, in any company and any row."""
    backend = made(kind)
    assert totals(step(backend, order(1), x=2.0)) == [2]
    assert totals(step(backend, order(2), order(1, steps=1), order(3), x=[5.0, 3.0, 7.0])) == [5, 5, 7]
    assert totals(step(backend, order(3, steps=1), order(1, steps=2), x=[1.0, 1.0])) == [8, 6]


@both
def test_a_model_is_told_whose_step_it_is(made, kind):
    """And tells of each row how it goes on."""
    backend = made(kind)
    first = step(backend, order(1, "a"), order(2, "ü"), do=["go", ""])
    assert (seen(first)["id"], seen(first, 1)["id"]) == ("a", "ü")
    assert seen(first) == {
        "id": "a", "steps": 0, "start": True, "again": False, "end": False,
        "parameters": {}, "names": ["total"], "log": None,
    }  # fmt: skip
    parameters = {"k": [1, {"n": None}]}
    second = step(
        backend,
        order(1, "a", 1, again=True, end=True, parameters=parameters),
        order(2, "ü", 1),
        order(3, "c"),
        do=["silent", "over", ""],
    )
    assert seen(second) == {
        "id": "a", "steps": 1, "start": False, "again": True, "end": True,
        "parameters": parameters, "names": ["total"], "log": None,
    }  # fmt: skip
    assert first.said == [GOES_ON, QUIET]
    assert second.said == [SILENT, ENDS, QUIET]
    assert (second.saved, backend.metadata.steps) == ([None] * 3, True)


@both
def test_rows_may_come_joined(made, kind):
    """And a call of no rows is one all the same."""
    backend = made(kind)
    part = {"x": rows(1, 2), "do": np.array(["", ""], object)}
    stepped = backend.step((part, part), [order(n) for n in range(4)], current_call())
    assert totals(stepped) == [1, 2, 1, 2]
    none = {"x": np.zeros((0, 1), np.float32), "do": np.array([], object)}
    stepped = backend.step((none,), [], current_call())
    assert (totals(stepped), stepped.said, stepped.saved) == ([], [], [])


@both
def test_times_of_a_step_add_up(made, kind):
    stepped = step(made(kind), order(1))
    assert min(stepped.input_s, stepped.infer_s, stepped.output_s) > 0
    assert stepped.input_s + stepped.infer_s + stepped.output_s < WAIT_S


@both
def test_limits_are_the_models_unless_they_are_set(made, kind):
    """Also where there is no limit."""
    assert made(kind).sequences == models.Summing.sequences
    backend = made(kind, sequences={"live_max": 9, "evict_idle_ms": inf, "time_ms_max": None})
    assert backend.sequences == SequenceLimits(9, inf, None, evict_idle_ms=inf, interleave=True)


# All or nothing


@both
@pytest.mark.parametrize(
    ("do", "error", "says"),
    [
        ("fail", Exception, "ValueError: odd"),
        ("refuse", RowError, "row 1: refused"),
        ("lost", MemoryError, "full"),
        ("lack", ModelContractError, "'total' has 1 rows for 2 rows: step must return"),
        ("unsaveable", ModelContractError, "the state of sequence 'b' cannot be saved"),
    ],
)
def test_a_step_that_fails_has_not_happened(made, kind, do, error, says):
    """To none of its rows, whatever it had done to their states; a first step leaves nothing."""
    backend = made(kind)
    step(backend, order(1, "a"), order(2, "b"), do=["log", ""])
    with pytest.raises(error) as caught:
        step(backend, order(1, "a", 1), order(2, "b", 1, save=True), do=["log", do])
    assert says in reason(caught.value) or says in str(caught.value)
    again = step(backend, order(1, "a", 1), order(2, "b", 1), do=["log", "log"])
    assert totals(again) == [2, 2]
    assert [seen(again, row)["log"] for row in (0, 1)] == [[0, 1], [1]]
    assert [seen(again, row)["names"] for row in (0, 1)] == [["deep", "log", "total"]] * 2
    step(backend, order(1, "a", 2), do="check_deep")
    with pytest.raises(error):
        step(backend, order(3, "c"), order(4, "d", save=True), do=["", do])
    assert totals(step(backend, order(3, "c"), order(4, "d"))) == [1, 1]


def test_a_step_whose_answer_cannot_be_sent_has_not_happened(made):
    backend = made("process")
    step(backend, order(1))
    with pytest.raises(ModelContractError, match="must be bytes or str"):
        step(backend, order(1, steps=1), do="unsendable")
    assert totals(step(backend, order(1, steps=1))) == [2]


@both
def test_a_model_may_do_as_it_likes_with_the_list_of_states(made, kind):
    backend = made(kind)
    assert totals(step(backend, order(1), order(2), do=["drop_states", ""])) == [1, 1]
    assert totals(step(backend, order(1, steps=1), order(2, steps=1))) == [2, 2]


@both
def test_arrays_of_a_state_are_its_own(made, kind):
    """Neither what a model still has of them, nor the next step, changes them."""
    backend = made(kind)
    step(backend, order(1), do="use_buffer")
    step(backend, order(2), do="use_buffer")
    step(backend, order(1, steps=1), do="check_buffer")
    with pytest.raises(Exception, match="read-only") as caught:
        step(backend, order(1, steps=2), do="write")
    assert "ValueError" in reason(caught.value)
    step(backend, order(1, steps=2), do="check_buffer")


@both
def test_a_state_that_is_not_here_is_not_made_up(made, kind):
    """It would be a wrong answer; those beside it are asked again."""
    backend = made(kind)
    step(backend, order(1))
    for steps, says in ((2, "is here after 1"), (0, "is here after 1")):
        with pytest.raises(SequenceLostError, match=says):
            step(backend, order(1, steps=steps))
    with pytest.raises(SequenceLostError, match="after 3 steps is wanted, and is not here") as caught:
        step(backend, order(1, steps=1), order(2, "gone", steps=3))
    assert caught.value.sequence_id == "gone"
    assert totals(step(backend, order(1, steps=1))) == [2]


_ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-9, 9), st.sampled_from(["", "", "", "log", "fail", "end"])),
    min_size=1,
    max_size=4,
    unique_by=lambda row: row[0],
)


@both
def test_states_are_those_of_the_last_finished_steps(made, kind):
    """However steps are joined, fail, end, and begin anew."""
    backend = made(kind)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(_ROWS, max_size=6))
    def check(calls):
        lives = {}
        for asked in calls:
            for name, _, _ in asked:
                lives.setdefault(name, [next(_numbers), 0, 0.0, []])
            orders = [order(lives[name][0], str(name), lives[name][1]) for name, _, _ in asked]
            do = [what if what in ("log", "fail") else "" for _, _, what in asked]
            values = [float(value) for _, value, _ in asked]
            if "fail" in do:
                with pytest.raises(Exception, match="odd"):
                    step(backend, *orders, x=values, do=do)
                continue
            stepped = step(backend, *orders, x=values, do=do)
            for row, (name, value, what) in enumerate(asked):
                number, steps, total, log = lives[name]
                log = [*log, steps] if what == "log" else log
                lives[name] = [number, steps + 1, total + value, log]
                assert totals(stepped)[row] == total + value
                assert (seen(stepped, row)["log"] or []) == log
                if what == "end":
                    backend.end_sequences([Ending(number, str(name), steps + 1, SequenceEnd.ENDED)])
                    del lives[name]
        backend.end_sequences([Ending(life[0], "", life[1], SequenceEnd.IDLE) for life in lives.values()])

    check()


# Ends


@both
def test_an_end_is_told_once_with_its_reason(made, kind, caplog):
    """And what a model raises then is logged, and harms no other."""
    backend = made(kind)
    step(backend, order(1, "a"), order(2, "stuck"), order(3, "c"), x=[1.0, 2.0, 3.0])
    backend.end_sequences(
        [
            Ending(1, "a", 1, SequenceEnd.IDLE),
            Ending(2, "stuck", 1, SequenceEnd.CANCELLED),
            Ending(9, "nine", 4, SequenceEnd.INSTANCE_LOST),
            Ending(3, "c", 1, SequenceEnd.EVICTED),
        ]
    )
    told = ended(step(backend, order(4, "d")))
    assert told == [
        ["a", 1, "idle", 1.0],
        ["stuck", 1, "cancelled", 2.0],
        ["nine", 4, "instance_lost", 0.0],
        ["c", 1, "evicted", 3.0],
    ]
    with pytest.raises(SequenceLostError):
        step(backend, order(1, "a", 1))
    # A process's log comes beside its answers, and is whole once it is closed.
    backend.close()
    assert "a model failed to end a sequence" in caplog.text


# Checkpoints


@pytest.mark.parametrize(("one", "other"), [("local", "process"), ("process", "local")])
def test_a_sequence_goes_on_elsewhere_from_its_checkpoint(made, one, other):
    """Of any size; only rows that want one get one."""
    here, there = made(one), made(other)
    first = step(here, order(1, "a", save=True), order(2, "b"), order(3, "c", save=True), do=["many", "", ""])
    assert [type(saved) for saved in first.saved] == [bytes, type(None), bytes]
    orders = [
        order(11, "a", 1, restore=first.saved[0], save=True),
        order(12, "b"),
        order(13, "c", 1, restore=first.saved[2]),
    ]
    second = step(there, *orders, do=["check_many", "", ""])
    assert totals(second) == [2, 1, 2]
    assert (seen(second)["steps"], seen(second)["start"]) == (1, False)
    assert second.saved[1:] == [None, None]
    assert totals(step(here, order(1, "a", 2, restore=second.saved[0]), do="check_many")) == [3]


@both
def test_a_checkpoint_takes_the_place_of_what_is_here(made, kind):
    """Once its step is done; an empty one begins anew."""
    backend = made(kind)
    saved = step(backend, order(1, save=True), x=5.0).saved[0]
    step(backend, order(1, steps=1), x=5.0)
    with pytest.raises(Exception, match="odd"):
        step(backend, order(1, steps=1, restore=saved), do="fail")
    assert totals(step(backend, order(1, steps=2))) == [11]
    assert totals(step(backend, order(1, steps=1, restore=saved))) == [6]
    anew = step(backend, order(1, restore=b""))
    assert (totals(anew), seen(anew)["start"]) == ([1], True)


@both
def test_a_checkpoint_that_cannot_be_read_fails_its_call_alone(made, kind):
    backend = made(kind)
    step(backend, order(1))
    with pytest.raises(SequenceLostError, match=r"checkpoint .*: start it anew") as caught:
        step(backend, order(1, steps=1), order(2, "b", steps=3, restore=b"nonsense"))
    assert caught.value.sequence_id == "b"
    assert totals(step(backend, order(1, steps=1))) == [2]


# In a process of its own


@pytest.mark.parametrize("value", [object(), {1: 2}, b"x", 1 << 70, "\ud800"])
def test_parameters_that_cannot_travel_are_the_requests_fault(made, value):
    """Said clearly; the process lives, and so do the states, also when more room was just made for arrays."""
    backend = made("process")
    step(backend, order(1))
    large = {"x": np.ones((1, 1 << 20), np.float32), "do": np.array([""], object)}
    with pytest.raises(ModelInputError, match="a request cannot go to its process"):
        backend.step((large,), [order(1, steps=1, parameters={"p": value})], current_call())
    assert totals(step(backend, order(1, steps=1))) == [2]


@pytest.mark.parametrize("spoilt", [{"p": object()}, {"p": "\ud800"}])
def test_parameters_that_cannot_travel_fail_no_other_request(spoilt):
    """Of the same batch."""
    serve = ServeSettings(isolation="process", max_batch_delay_ms=100.0)
    engine = Engine(models.Summing, name="m", serving=serve)
    engine.start()
    try:
        asked = [
            engine.submit(
                InferRequest(
                    (Tensor("x", rows(n)), Tensor("do", np.array([""], object))),
                    parameters={"sequence_id": f"s{n}", "sequence_start": True, **(spoilt if n == 2 else {})},
                )
            )
            for n in range(4)
        ]
        for n in (0, 1, 3):
            assert asked[n].result(WAIT_S)["total"].tolist() == [[n]]
        (failure,) = asked[2].result(WAIT_S).failures
        assert "a request cannot go to its process" in failure.why
    finally:
        engine.stop(drain=False)


def test_memory_is_used_again_whatever_states_keep():
    """Also what was given to the model."""
    backend = ProcessBackend(recipe_of(models.Summing, "m"), "m")
    try:
        step(backend, order(1, save=True), do="use_input")
        arena, returned = backend._link.arena.memory, backend._link.returned
        for steps in range(1, 5):
            step(backend, order(1, steps=steps, save=True), do="use_input")
        assert backend._link.arena.memory is arena
        assert backend._link.returned is returned
    finally:
        backend.close()


def test_a_process_that_dies_takes_its_states_with_it(made):
    """The next one is told of them; checkpoints go on there."""
    backend = made("process")
    saved = step(backend, order(1, "a", save=True), order(2, "b"), x=[3.0, 4.0]).saved[0]
    with pytest.raises(InstanceLostError) as caught:
        step(backend, order(1, "a", 1), do="die")
    assert caught.value.signal == "SIGKILL"
    with pytest.raises(InstanceLostError):
        backend.end_sequences([Ending(2, "b", 1, SequenceEnd.ENDED)])
    assert backend.lost
    backend.restart()
    with pytest.raises(SequenceLostError):
        step(backend, order(2, "b", 1))
    backend.end_sequences([Ending(2, "b", 1, SequenceEnd.INSTANCE_LOST)])
    gone_on = step(backend, order(1, "a", 1, restore=saved))
    assert (totals(gone_on), ended(gone_on)) == ([4], [["b", 1, "instance_lost", 0.0]])


def test_a_step_that_hangs_is_a_death(made):
    backend = made("process", call_timeout_s=0.5)
    with pytest.raises(InstanceLostError, match=r"call_timeout_s \(0.5 s\)") as caught:
        step(backend, order(1), do="hang")
    assert caught.value.cause == "timeout"


class _Leaving:
    """A call that its callers leave."""

    deadline_s = None
    cancelled = False


def _left(backend, folder, number, steps, x):
    """A step of which nobody waits for the answer, once it has begun."""
    call = _Leaving()

    def leave():
        while not (folder / "began").exists():
            threading.Event().wait(0.002)
        call.cancelled = True
        backend.cancel()

    (folder / "began").unlink(missing_ok=True)
    leaver = threading.Thread(target=leave)
    leaver.start()
    try:
        return backend.step(({"x": rows(x)},), [order(number, steps=steps)], call)
    finally:
        leaver.join()


@both
@pytest.mark.parametrize("make", [models.Waiting, models.WaitingAsync])
def test_a_step_that_nobody_wants_can_be_ended_and_has_not_happened(made, kind, make, tmp_path):
    """By the model, which asks; or from outside, where it is asynchronous."""
    backend = made(kind, functools.partial(make, folder=str(tmp_path)))
    asynchronous = make is models.WaitingAsync
    with pytest.raises(CancelledRequestError if asynchronous else Exception, match=r"cancel|nobody waits"):
        _left(backend, tmp_path, 1, 0, 1.0)
    assert _left(backend, tmp_path, 1, 0, 0.0).outputs["output"].tolist() == [1]


def test_a_step_that_nobody_wants_is_killed_when_its_grace_is_over(made, tmp_path):
    backend = made("process", functools.partial(models.Stubborn, folder=str(tmp_path)), cancel_grace_s=0.1)
    with pytest.raises(InstanceLostError, match="cancel_grace_s") as caught:
        _left(backend, tmp_path, 1, 0, 1.0)
    assert caught.value.cause == "killed"
