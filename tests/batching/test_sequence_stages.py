"""The stages of a sequence: every transition, and the diagrams of them."""

import re
import runpy
from itertools import product
from pathlib import Path

from cases import for_each
from headrace.batching import live_sequence as module
from headrace.batching.live_sequence import TRANSITIONS, SequenceEvent, SequenceStage
from headrace.core.sequence import SequenceEnd

# Row by row as `docs/sequence-states.md` shows it; what is not here cannot happen.
TABLE = {
    "idle": {"request": "waiting", "end": "ended"},
    "waiting": {"request": "waiting", "step_begun": "stepping", "withdrawn": "idle", "end": "ended"},
    "stepping": {
        "request": "stepping",
        "step_done": "idle",
        "step_due": "waiting",
        "output_full": "held",
        "instance_lost": "waiting",
        "end": "ending",
    },
    "held": {"request": "held", "output_read": "waiting", "withdrawn": "idle", "end": "ended"},
    "ending": {"step_done": "ended", "instance_lost": "ended"},
    "ended": {},
}


@for_each(("stage", "event"), list(product(SequenceStage, SequenceEvent)))
def test_every_pair_of_stage_and_event(stage: SequenceStage, event: SequenceEvent):
    assert TRANSITIONS.get((stage, event)) == TABLE[stage.value].get(event.value)


def test_stepping_starts_only_with_step_begun():
    into = {(stage, event) for (stage, event), to in TRANSITIONS.items() if to is SequenceStage.STEPPING}
    assert into == {
        (SequenceStage.WAITING, SequenceEvent.STEP_BEGUN),
        (SequenceStage.STEPPING, SequenceEvent.REQUEST),
    }


def test_end_applies_once_to_every_live_stage():
    living = set(SequenceStage) - {SequenceStage.ENDING, SequenceStage.ENDED}
    assert {stage for stage in SequenceStage if (stage, SequenceEvent.END) in TRANSITIONS} == living


def test_every_stage_is_reachable_and_can_end():
    assert _reachable(SequenceStage.IDLE) == set(SequenceStage)
    for stage in SequenceStage:
        assert SequenceStage.ENDED in _reachable(stage)


def test_every_event_can_happen():
    assert {event for _, event in TRANSITIONS} == set(SequenceEvent)


def test_diagram_in_the_docstring_names_every_stage_and_event():
    picture = (module.__doc__ or "").partition("::")[2].partition("\n\n")[2].partition("\n\n")[0]
    words = set(re.findall(r"[A-Z_]{3,}", picture))
    assert words == {stage.name for stage in SequenceStage} | {event.name for event in SequenceEvent}


def test_documentation_page_is_up_to_date():
    """If this fails, run scripts/draw_states.py."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "draw_states.py"))
    path, page = next(
        (path, page) for path, page in script["PAGES"].items() if path.name == "sequence-states.md"
    )
    text = path.read_text(encoding="utf-8")
    assert text == page.page()
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
