"""The life of a sequence: every state with every event, and the pictures of it."""

import re
import runpy
from itertools import product
from pathlib import Path

import pytest

from headrace.batching import sequence_life as module
from headrace.batching.sequence_life import TRANSITIONS, SequenceEvent, SequenceStage, after
from headrace.core.sequence import SequenceEnd

# Row by row as `docs/sequence-states.md` shows it; what is not here cannot happen.
TABLE = {
    "idle": {"request": "waiting", "end": "ended"},
    "waiting": {"request": "waiting", "taken": "stepping", "withdrawn": "idle", "end": "ended"},
    "stepping": {
        "request": "stepping",
        "stepped": "idle",
        "more": "waiting",
        "full": "held",
        "lost": "waiting",
        "end": "ending",
    },
    "held": {"request": "held", "room": "waiting", "withdrawn": "idle", "end": "ended"},
    "ending": {"stepped": "ended", "lost": "ended"},
    "ended": {},
}


@pytest.mark.parametrize(("stage", "event"), list(product(SequenceStage, SequenceEvent)))
def test_every_pair_of_state_and_event(stage: SequenceStage, event: SequenceEvent):
    assert after(stage, event) == TABLE[stage.value].get(event.value)


def test_a_step_is_being_done_only_after_it_was_taken_and_only_once():
    into = {(stage, event) for (stage, event), to in TRANSITIONS.items() if to is SequenceStage.STEPPING}
    assert into == {
        (SequenceStage.WAITING, SequenceEvent.TAKEN),
        (SequenceStage.STEPPING, SequenceEvent.REQUEST),
    }


def test_every_living_state_can_end_and_one_end_is_enough():
    living = set(SequenceStage) - {SequenceStage.ENDING, SequenceStage.ENDED}
    assert {stage for stage in SequenceStage if after(stage, SequenceEvent.END)} == living


def test_every_state_can_be_reached_and_every_one_can_end():
    assert _reachable(SequenceStage.IDLE) == set(SequenceStage)
    for stage in SequenceStage:
        assert SequenceStage.ENDED in _reachable(stage)


def test_every_event_can_happen():
    assert {event for _, event in TRANSITIONS} == set(SequenceEvent)


def test_the_docstring_s_picture_names_every_state_and_event():
    picture = (module.__doc__ or "").partition("::")[2].partition("\n\n")[2].partition("\n\n")[0]
    words = set(re.findall(r"[A-Z]{3,}", picture))
    assert words == {stage.name for stage in SequenceStage} | {event.name for event in SequenceEvent}


def test_the_page_of_states_is_what_the_table_gives():
    """Else somebody changed the table, and has not run scripts/draw_states.py."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "draw_states.py"))
    page, life = next(
        (path, life) for path, life in script["LIVES"].items() if path.name == "sequence-states.md"
    )
    text = page.read_text(encoding="utf-8")
    assert text == life.page()
    for end in SequenceEnd:
        assert end.value in text


def _reachable(start: SequenceStage) -> set[SequenceStage]:
    found, todo = {start}, [start]
    while todo:
        stage = todo.pop()
        new = {to for (at, _), to in TRANSITIONS.items() if at is stage} - found
        found |= new
        todo += new
    return found
