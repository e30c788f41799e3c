"""Steps of a model, in this process and in one of its own: equal outputs, and equal promises about
states.
"""

import functools
import itertools
import json
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import for_each
from engine import step_models as models
from engine.step_backends import cancelled_call, make_backend, order
from engine.support import WAIT_S, no_leaks, rows
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
from headrace.engine.backend import CallInputs
from headrace.engine.model_methods import describe_error
from headrace.engine.process.parent import ProcessBackend
from headrace.engine.recipe import make_recipe
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding

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
    """Assert that no process, file or thread outlives its backend."""
    with no_leaks():
        yield


@pytest.fixture
def made():
    """Yield a factory of backends, which are closed at the end."""
    backends = []

    def make(kind, model=models.Summing, **serve):
        backends.append(make_backend(kind, model, **serve))
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


both = pytest.mark.parametrize("kind", ["local", pytest.param("process", marks=pytest.mark.slow)])


def step(backend, *orders, x=1.0, do="", call=None):
    """Do one step of each sequence; `x` and `do` for each, or for all."""
    x, do = ([one] * len(orders) if isinstance(one, (float, str)) else one for one in (x, do))
    parts = [{"x": rows(v), "do": np.array([what], object)} for v, what in zip(x, do, strict=True)]
    return call_steps(backend, parts, orders, call)


def call_steps(backend, parts, orders, call=None):
    """Do one step of each sequence, with these arrays."""
    return backend.call(CallInputs(parts, len(orders), orders=orders), call or current_call())


def totals(stepped):
    return stepped.outputs["total"].ravel().tolist()


def seen(stepped, row=0):
    return json.loads(stepped.outputs["seen"][row])


def ended(stepped):
    return json.loads(stepped.outputs["ended"][0])


# Outputs


@both
def test_step_continues_from_last_state(made, kind):
    """Each sequence from its own state, in any batch and any row."""
    backend = made(kind)
    assert totals(step(backend, order(1), x=2.0)) == [2]
    assert totals(step(backend, order(2), order(1, steps=1), order(3), x=[5.0, 3.0, 7.0])) == [5, 5, 7]
    assert totals(step(backend, order(3, steps=1), order(1, steps=2), x=[1.0, 1.0])) == [8, 6]


@both
def test_state_describes_its_step(made, kind):
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
    assert first.flags == [GOES_ON, QUIET]
    assert second.flags == [SILENT, ENDS, QUIET]
    assert (second.checkpoints, backend.metadata.is_stateful) == ([None] * 3, True)


@both
def test_rows_may_arrive_joined(made, kind):
    """A call of no rows is possible too."""
    backend = made(kind)
    part = {"x": rows(1, 2), "do": np.array(["", ""], object)}
    stepped = call_steps(backend, (part, part), [order(n) for n in range(4)])
    assert totals(stepped) == [1, 2, 1, 2]
    none = {"x": np.zeros((0, 1), np.float32), "do": np.array([], object)}
    stepped = call_steps(backend, (none,), [])
    assert (totals(stepped), stepped.flags, stepped.checkpoints) == ([], [], [])


@both
def test_step_times_add_up(made, kind):
    stepped = step(made(kind), order(1))
    assert min(stepped.input_s, stepped.infer_s, stepped.output_s) > 0
    assert stepped.input_s + stepped.infer_s + stepped.output_s < WAIT_S


@both
def test_settings_override_model_sequence_limits(made, kind):
    """Infinity arrives as None in a process, which means no limit as well."""
    assert made(kind).sequences == models.Summing.sequences
    backend = made(kind, sequences={"live_max": 9, "evict_idle_ms": inf, "time_ms_max": None})
    evict_idle_ms = None if kind == "process" else inf
    assert backend.sequences == SequenceLimits(9, inf, None, evict_idle_ms=evict_idle_ms, interleave=True)


# All or nothing


@both
@for_each(
    ("do", "error", "says"),
    [
        ("fail", Exception, "ValueError: odd"),
        ("refuse", RowError, "row 1: refused"),
        ("lost", MemoryError, "full"),
        ("lack", ModelContractError, "'total' has 1 rows for 2 rows: step must return"),
        ("unsaveable", ModelContractError, "the state of sequence 'b' cannot be saved"),
    ],
)
def test_failed_step_changes_no_state(made, kind, do, error, says):
    """Not even for rows whose states the model had changed; a first step leaves no state."""
    backend = made(kind)
    step(backend, order(1, "a"), order(2, "b"), do=["log", ""])
    with pytest.raises(error) as caught:
        step(backend, order(1, "a", 1), order(2, "b", 1, save=True), do=["log", do])
    assert says in describe_error(caught.value) or says in str(caught.value)
    again = step(backend, order(1, "a", 1), order(2, "b", 1), do=["log", "log"])
    assert totals(again) == [2, 2]
    assert [seen(again, row)["log"] for row in (0, 1)] == [[0, 1], [1]]
    assert [seen(again, row)["names"] for row in (0, 1)] == [["deep", "log", "total"]] * 2
    step(backend, order(1, "a", 2), do="check_deep")
    with pytest.raises(error):
        step(backend, order(3, "c"), order(4, "d", save=True), do=["", do])
    assert totals(step(backend, order(3, "c"), order(4, "d"))) == [1, 1]


def test_unsendable_step_result_changes_no_state(made):
    backend = made("process")
    step(backend, order(1))
    with pytest.raises(ModelContractError, match="must be bytes or str"):
        step(backend, order(1, steps=1), do="unsendable")
    assert totals(step(backend, order(1, steps=1))) == [2]


@both
def test_model_may_change_list_of_states(made, kind):
    backend = made(kind)
    assert totals(step(backend, order(1), order(2), do=["drop_states", ""])) == [1, 1]
    assert totals(step(backend, order(1, steps=1), order(2, steps=1))) == [2, 2]


@both
def test_state_arrays_are_private(made, kind):
    """Neither references of the model nor the next step change them."""
    backend = made(kind)
    step(backend, order(1), do="use_buffer")
    step(backend, order(2), do="use_buffer")
    step(backend, order(1, steps=1), do="check_buffer")
    with pytest.raises(Exception, match="read-only") as caught:
        step(backend, order(1, steps=2), do="write")
    assert "ValueError" in describe_error(caught.value)
    step(backend, order(1, steps=2), do="check_buffer")


@both
def test_missing_state_raises_sequence_lost(made, kind):
    """The rows beside it can be retried."""
    backend = made(kind)
    step(backend, order(1))
    for steps, says in ((2, "here is after 1"), (0, "here is after 1")):
        with pytest.raises(SequenceLostError, match=says):
            step(backend, order(1, steps=steps))
    with pytest.raises(SequenceLostError, match="after 3 steps is not here") as caught:
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
def test_states_match_last_completed_steps(made, kind):
    """However steps are joined, fail, end and restart."""
    backend = made(kind)

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(_ROWS, max_size=6))
    def check(calls):
        lives = {}
        for planned in calls:
            for name, _, _ in planned:
                lives.setdefault(name, [next(_numbers), 0, 0.0, []])
            orders = [order(lives[name][0], str(name), lives[name][1]) for name, _, _ in planned]
            do = [what if what in ("log", "fail") else "" for _, _, what in planned]
            values = [float(value) for _, value, _ in planned]
            if "fail" in do:
                with pytest.raises(Exception, match="odd"):
                    step(backend, *orders, x=values, do=do)
                continue
            stepped = step(backend, *orders, x=values, do=do)
            for row, (name, value, what) in enumerate(planned):
                number, steps, total, log = lives[name]
                log = [*log, steps] if what == "log" else log
                lives[name] = [number, steps + 1, total + value, log]
                assert totals(stepped)[row] == total + value
                assert (seen(stepped, row)["log"] or []) == log
                if what == "end":
                    backend.end_sequences([SequenceEnding(number, str(name), steps + 1, SequenceEnd.ENDED)])
                    del lives[name]
        backend.end_sequences(
            [SequenceEnding(session[0], "", session[1], SequenceEnd.IDLE) for session in lives.values()]
        )

    check()


# Endings


@both
def test_ending_is_reported_once_with_reason(made, kind, caplog):
    """Exceptions of the model are logged, and harm no other."""
    backend = made(kind)
    step(backend, order(1, "a"), order(2, "stuck"), order(3, "c"), x=[1.0, 2.0, 3.0])
    backend.end_sequences(
        [
            SequenceEnding(1, "a", 1, SequenceEnd.IDLE),
            SequenceEnding(2, "stuck", 1, SequenceEnd.CANCELLED),
            SequenceEnding(9, "nine", 4, SequenceEnd.INSTANCE_LOST),
            SequenceEnding(3, "c", 1, SequenceEnd.EVICTED),
        ]
    )
    reported = ended(step(backend, order(4, "d")))
    assert reported == [
        ["a", 1, "idle", 1.0],
        ["stuck", 1, "cancelled", 2.0],
        ["nine", 4, "instance_lost", 0.0],
        ["c", 1, "evicted", 3.0],
    ]
    with pytest.raises(SequenceLostError):
        step(backend, order(1, "a", 1))
    # The log of a process arrives besides its responses, and is complete once the process is
    # closed.
    backend.close()
    assert "sequence_ended of a model failed" in caplog.text


# Checkpoints


@pytest.mark.parametrize(("one", "other"), [("local", "process"), ("process", "local")])
def test_sequence_continues_elsewhere_from_checkpoint(made, one, other):
    """Of any size; only rows that request a checkpoint get one."""
    here, there = made(one), made(other)
    first = step(here, order(1, "a", save=True), order(2, "b"), order(3, "c", save=True), do=["many", "", ""])
    assert [type(saved) for saved in first.checkpoints] == [bytes, type(None), bytes]
    orders = [
        order(11, "a", 1, restore=first.checkpoints[0], save=True),
        order(12, "b"),
        order(13, "c", 1, restore=first.checkpoints[2]),
    ]
    second = step(there, *orders, do=["check_many", "", ""])
    assert totals(second) == [2, 1, 2]
    assert (seen(second)["steps"], seen(second)["start"]) == (1, False)
    assert second.checkpoints[1:] == [None, None]
    assert totals(step(here, order(1, "a", 2, restore=second.checkpoints[0]), do="check_many")) == [3]


@both
def test_checkpoint_replaces_local_state(made, kind):
    """At once, also if its step fails; an empty checkpoint restarts the sequence."""
    backend = made(kind)
    saved = step(backend, order(1, save=True), x=5.0).checkpoints[0]
    step(backend, order(1, steps=1), x=5.0)
    with pytest.raises(Exception, match="odd"):
        step(backend, order(1, steps=1, restore=saved), do="fail")
    with pytest.raises(SequenceLostError, match="here is after 1"):
        step(backend, order(1, steps=2))
    assert totals(step(backend, order(1, steps=1, restore=saved))) == [6]
    anew = step(backend, order(1, restore=b""))
    assert (totals(anew), seen(anew)["start"]) == ([1], True)


@both
def test_unreadable_checkpoint_fails_its_call_only(made, kind):
    backend = made(kind)
    step(backend, order(1))
    with pytest.raises(SequenceLostError, match=r"checkpoint .*: restart the sequence") as caught:
        step(backend, order(1, steps=1), order(2, "b", steps=3, restore=b"nonsense"))
    assert caught.value.sequence_id == "b"
    assert totals(step(backend, order(1, steps=1))) == [2]


# In a process of its own


def test_unsendable_parameters_are_input_error(made):
    """The process and its states survive, also when the arena has just grown."""
    backend = made("process")
    step(backend, order(1))
    for steps, value in enumerate([object(), {1: 2}, b"x", 1 << 70, "\ud800"], 1):
        large = {"x": np.ones((1, 1 << 18 + steps), np.float32), "do": np.array([""], object)}
        with pytest.raises(ModelInputError, match="the request cannot be sent to its process"):
            call_steps(backend, (large,), [order(1, steps=steps, parameters={"p": value})])
        assert totals(step(backend, order(1, steps=steps))) == [steps + 1], value


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", [{"p": object()}, {"p": "\ud800"}])
def test_unsendable_parameters_fail_no_other_request(spoilt):
    serve = ServeSettings(isolation="process", max_batch_delay_ms=100.0)
    engine = Engine(models.Summing, name="m", serving=serve)
    engine.start()
    try:
        futures = [
            engine.submit(
                InferRequest(
                    (Tensor("x", rows(n)), Tensor("do", np.array([""], object))),
                    parameters={"sequence_id": f"s{n}", "sequence_start": True, **(spoilt if n == 2 else {})},
                )
            )
            for n in range(4)
        ]
        for n in (0, 1, 3):
            assert futures[n].result(WAIT_S)["total"].tolist() == [[n]]
        (failure,) = futures[2].result(WAIT_S).failures
        assert "the request cannot be sent to its process" in failure.why
    finally:
        engine.stop(drain=False)


@pytest.mark.slow
def test_arena_is_reused_while_states_keep_arrays():
    """The inputs' arena too."""
    backend = ProcessBackend(make_recipe(models.Summing, "m"), "m")
    try:
        step(backend, order(1, save=True), do="use_input")
        arena, returned = backend._process.arena.memory, backend._process.returned
        for steps in range(1, 5):
            step(backend, order(1, steps=steps, save=True), do="use_input")
        assert backend._process.arena.memory is arena
        assert backend._process.returned is returned
    finally:
        backend.close()


def test_process_death_loses_its_states(made):
    """The ends are reported to the next process; checkpoints continue there."""
    backend = made("process")
    saved = step(backend, order(1, "a", save=True), order(2, "b"), x=[3.0, 4.0]).checkpoints[0]
    with pytest.raises(InstanceLostError) as caught:
        step(backend, order(1, "a", 1), do="die")
    assert caught.value.signal == "SIGKILL"
    with pytest.raises(InstanceLostError):
        backend.end_sequences([SequenceEnding(2, "b", 1, SequenceEnd.ENDED)])
    assert backend.lost
    backend.restart()
    with pytest.raises(SequenceLostError):
        step(backend, order(2, "b", 1))
    backend.end_sequences([SequenceEnding(2, "b", 1, SequenceEnd.INSTANCE_LOST)])
    gone_on = step(backend, order(1, "a", 1, restore=saved))
    assert (totals(gone_on), ended(gone_on)) == ([4], [["b", 1, "instance_lost", 0.0]])


@pytest.mark.slow
def test_hanging_step_is_instance_lost(made):
    backend = made("process", call_timeout_s=0.5)
    with pytest.raises(InstanceLostError, match=r"call_timeout_s \(0.5 s\)") as caught:
        step(backend, order(1), do="hang")
    assert caught.value.cause == "timeout"


def _cancel_during_step(backend, folder, number, steps, x):
    """Cancel a step once it has begun."""
    with cancelled_call(backend, folder) as call:
        return call_steps(backend, ({"x": rows(x)},), [order(number, steps=steps)], call)


@both
@pytest.mark.parametrize("make", [models.Waiting, models.WaitingAsync])
def test_cancelled_step_changes_no_state(made, kind, make, tmp_path):
    """A plain model raises by itself; an asynchronous one is cancelled."""
    backend = made(kind, functools.partial(make, folder=str(tmp_path)))
    asynchronous = make is models.WaitingAsync
    with pytest.raises(CancelledRequestError if asynchronous else Exception, match=r"cancel|nobody waits"):
        _cancel_during_step(backend, tmp_path, 1, 0, 1.0)
    assert _cancel_during_step(backend, tmp_path, 1, 0, 0.0).outputs["output"].tolist() == [1]


@pytest.mark.slow
def test_cancelled_step_is_killed_after_grace_period(made, tmp_path):
    backend = made("process", functools.partial(models.Stubborn, folder=str(tmp_path)), cancel_grace_s=0.1)
    with pytest.raises(InstanceLostError, match="cancel_grace_s") as caught:
        _cancel_during_step(backend, tmp_path, 1, 0, 1.0)
    assert caught.value.cause == "killed"
