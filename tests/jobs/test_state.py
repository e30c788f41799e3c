"""The job state machine: every pair of state and event, and the diagrams."""

import re
import runpy
from itertools import product
from pathlib import Path

from cases import for_each
from headrace.jobs import state as module
from headrace.jobs.state import ENDED, TRANSITIONS, JobEvent, JobState, source_states

# The rows of `docs/jobs-states.md`. All other transitions are impossible.
TABLE = {
    "blocked": {"unblock": "pending", "fail": "failed", "cancel": "cancelled", "expire": "expired"},
    "pending": {"claim": "running", "cancel": "cancelled", "expire": "expired"},
    "running": {
        "complete": "completed",
        "publish": "publishing",
        "retry": "pending",
        "fail": "failed",
        "release": "pending",
        "lose": "pending",
        "cancel": "cancelled",
        "expire": "expired",
    },
    "publishing": {"complete": "completed", "give_up": "publish_failed"},
    "publish_failed": {"republish": "publishing", "requeue": "pending", "block": "blocked"},
    "completed": {"requeue": "pending", "block": "blocked"},
    "failed": {"requeue": "pending", "block": "blocked"},
    "cancelled": {"requeue": "pending", "block": "blocked"},
    "expired": {"requeue": "pending", "block": "blocked"},
}


@for_each(("state", "event"), list(product(JobState, JobEvent)))
def test_every_pair_of_state_and_event(state: JobState, event: JobEvent):
    assert TRANSITIONS.get((state, event)) == TABLE[state.value].get(event.value)


@for_each("event", JobEvent)
def test_source_states_match_the_table(event: JobEvent):
    assert source_states(event) == {state for state in JobState if event.value in TABLE[state.value]}
    assert source_states(event), f"{event} can never happen"


def test_ended_states_permit_manual_events_only():
    assert {state.value for state in ENDED} == {
        "completed", "publish_failed", "failed", "cancelled", "expired",
    }  # fmt: skip
    for state in JobState:
        assert state.ended == (state in ENDED)
        if state.ended:
            events = {event for event in JobEvent if (state, event) in TRANSITIONS}
            assert events - {JobEvent.REPUBLISH} == {JobEvent.REQUEUE, JobEvent.BLOCK}
    assert source_states(JobEvent.REQUEUE) == source_states(JobEvent.BLOCK) == ENDED


def test_only_a_claim_begins_and_only_a_run_or_publication_completes():
    into = {state: {event for (_, event), to in TRANSITIONS.items() if to is state} for state in JobState}
    assert into[JobState.RUNNING] == {JobEvent.CLAIM}
    assert into[JobState.COMPLETED] == {JobEvent.COMPLETE}
    assert source_states(JobEvent.COMPLETE) == {JobState.RUNNING, JobState.PUBLISHING}
    assert source_states(JobEvent.PUBLISH) == {JobState.RUNNING}


def test_only_an_unblocked_job_or_one_of_its_ends_follows_a_blocked_one():
    after = {to for (state, _), to in TRANSITIONS.items() if state is JobState.BLOCKED}
    assert after == {JobState.PENDING, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}


def test_every_state_is_reachable_and_every_job_can_end():
    reached = _reachable(JobState.PENDING)
    assert reached == set(JobState)
    for state in JobState:
        assert _reachable(state) & ENDED


def test_docstring_diagram_names_every_state_and_event():
    diagram = (module.__doc__ or "").partition("::")[2]
    words = set(re.findall(r"[A-Z_]{4,}", diagram))
    assert words == {state.name for state in JobState} | {event.name for event in JobEvent}


def test_documentation_page_matches_the_table():
    """A failure means: the table changed, and scripts/draw_states.py was not run."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "draw_states.py"))
    path, page = next((path, page) for path, page in script["PAGES"].items() if path.name == "jobs-states.md")
    assert path.read_text(encoding="utf-8") == page.page()


def _reachable(start: JobState) -> set[JobState]:
    found, todo = {start}, [start]
    while todo:
        state = todo.pop()
        new = {to for (at, _), to in TRANSITIONS.items() if at is state} - found
        found |= new
        todo += new
    return found
