"""Write docs/jobs-states.md and docs/sequence-states.md from the transition tables of the code.

Each page has a Mermaid diagram and a table.

Run it after changing `headrace.jobs.state` or `headrace.batching.live_sequence`::

    .venv/bin/python scripts/draw_states.py

Tests compare the committed pages with the output.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.batching import live_sequence
from headrace.jobs import state as job_states

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class StatePage:
    """The contents of a page. `begins` is the first state and the event that leads to it."""

    title: str
    module: str
    text: str
    states: type[StrEnum]
    events: type[StrEnum]
    transitions: Mapping[tuple[StrEnum, StrEnum], StrEnum]
    begins: tuple[StrEnum, str]
    ended: Collection[StrEnum]

    def page(self) -> str:
        """Return the whole page as Markdown."""
        written = f"<!-- Written by scripts/draw_states.py from {self.module}, not by hand. -->"
        parts = [f"# {self.title}", "", written, "", self.text, "", *self._diagram(), "", *self._table(), ""]
        return "\n".join(parts)

    def _diagram(self) -> list[str]:
        arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
        for (state, event), to in self.transitions.items():
            arrows.setdefault((state, to), []).append(event.value)
        lines = [f"    {state} --> {to}: {', '.join(events)}" for (state, to), events in arrows.items()]
        first, by = self.begins
        return ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}: {by}", *lines, "```"]

    def _table(self) -> list[str]:
        events = list(self.events)
        rows = [
            f"| {'**' + state + '**' if state in self.ended else state} | "
            + " | ".join(self.transitions.get((state, event)) or "-" for event in events)
            + " |"
            for state in self.states
        ]
        return [
            "| state | " + " | ".join(event.value for event in events) + " |",
            "| --- |" + " --- |" * len(events),
            *rows,
            "",
            "Ended states are in bold.",
        ]


PAGES = {
    DOCS / "jobs-states.md": StatePage(
        "States of a job",
        "headrace.jobs.state",
        "A job is in exactly one state.\n"
        "Each arrow below is an event; transitions without an arrow cannot happen.\n"
        "A job whose `after` names unfinished jobs begins as `blocked`.\n"
        "An ended job stays ended unless an operator requeues it (`requeue`). "
        "The job's history records that.",
        job_states.JobState,
        job_states.JobEvent,
        job_states.TRANSITIONS,
        (job_states.JobState.PENDING, "submit"),
        job_states.ENDED,
    ),
    DOCS / "sequence-states.md": StatePage(
        "States of a sequence",
        "headrace.batching.live_sequence",
        "A sequence of a model with a `step` is in exactly one state.\n"
        "Each arrow below is an event; transitions without an arrow cannot happen.\n"
        "The first request creates the sequence, so a new sequence leaves the state idle at once.\n"
        "The reason of its end is a separate value:\n"
        "ended, restarted, cancelled, idle, timed_out, evicted, instance_lost or stopped.",
        live_sequence.SequenceStage,
        live_sequence.SequenceEvent,
        live_sequence.TRANSITIONS,
        (live_sequence.SequenceStage.IDLE, "start"),
        {live_sequence.SequenceStage.ENDED},
    ),
}


if __name__ == "__main__":
    for path, state_page in PAGES.items():
        path.write_text(state_page.page(), encoding="utf-8")
        sys.stdout.write(f"{path.name}: {len(state_page.transitions)} transitions\n")
