"""The life of a job: every state with every event, and the pictures of it."""

import re
import runpy
from itertools import product
from pathlib import Path

import pytest

from headrace.jobs import state as module
from headrace.jobs.state import ENDED, TRANSITIONS, JobEvent, JobState, after, sources

# Row by row as `docs/jobs-states.md` shows it; what is not here cannot happen.
TABLE = {
    "pending": {"claim": "running", "cancel": "cancelled", "expire": "expired"},
    "running": {
        "complete": "completed",
        "retry": "pending",
        "fail": "failed",
        "release": "pending",
        "lose": "pending",
        "cancel": "cancelled",
        "expire": "expired",
    },
    "completed": {"requeue": "pending"},
    "failed": {"requeue": "pending"},
    "cancelled": {"requeue": "pending"},
    "expired": {"requeue": "pending"},
}


@pytest.mark.parametrize(("state", "event"), list(product(JobState, JobEvent)))
def test_every_pair_of_state_and_event(state: JobState, event: JobEvent):
    assert after(state, event) == TABLE[state.value].get(event.value)


@pytest.mark.parametrize("event", JobEvent)
def test_sources_are_where_an_event_can_happen(event: JobEvent):
    assert sources(event) == {state for state in JobState if event.value in TABLE[state.value]}
    assert sources(event), f"{event} can never happen"


def test_ended_states_are_left_by_requeuing_only():
    assert {state.value for state in ENDED} == {"completed", "failed", "cancelled", "expired"}
    for state in JobState:
        assert state.ended == (state in ENDED)
        if state.ended:
            assert [event for event in JobEvent if after(state, event)] == [JobEvent.REQUEUE]
    assert sources(JobEvent.REQUEUE) == ENDED


def test_an_attempt_begins_only_by_a_claim_and_a_result_comes_only_of_a_running_one():
    into = {state: {event for (_, event), to in TRANSITIONS.items() if to is state} for state in JobState}
    assert into[JobState.RUNNING] == {JobEvent.CLAIM}
    assert into[JobState.COMPLETED] == {JobEvent.COMPLETE}
    assert sources(JobEvent.COMPLETE) == {JobState.RUNNING}


def test_every_state_can_be_reached_and_every_job_can_end():
    reached = _reachable(JobState.PENDING)
    assert reached == set(JobState)
    for state in JobState:
        assert _reachable(state) & ENDED


def test_the_docstring_s_picture_names_every_state_and_event():
    picture = (module.__doc__ or "").partition("::")[2]
    words = set(re.findall(r"[A-Z]{4,}", picture))
    assert words == {state.name for state in JobState} | {event.name for event in JobEvent}


def test_the_page_of_states_is_what_the_table_gives():
    """Else somebody changed the table, and has not run scripts/draw_states.py."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "draw_states.py"))
    page, life = next((path, life) for path, life in script["LIVES"].items() if path.name == "jobs-states.md")
    assert page.read_text(encoding="utf-8") == life.page()


def _reachable(start: JobState) -> set[JobState]:
    found, todo = {start}, [start]
    while todo:
        state = todo.pop()
        new = {to for (at, _), to in TRANSITIONS.items() if at is state} - found
        found |= new
        todo += new
    return found
