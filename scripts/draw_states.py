"""Write docs/jobs-states.md and docs/sequence-states.md: lives as Mermaid diagrams and tables, drawn from the transition tables.

Run it after changing `headrace.jobs.state` or `headrace.batching.sequence_life`::

    .venv/bin/python scripts/draw_states.py

Tests compare what is committed with what this gives.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headrace.batching import sequence_life
from headrace.jobs import state as job_life

DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Life:
    """What a page tells. `begins` is its first state, and by what it comes there."""

    title: str
    module: str
    text: str
    states: type[StrEnum]
    events: type[StrEnum]
    transitions: Mapping[tuple[StrEnum, StrEnum], StrEnum]
    begins: tuple[StrEnum, str]
    ended: Collection[StrEnum]

    def page(self) -> str:
        """The whole page, as it should be committed."""
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
            "Ended states stand in bold.",
        ]


LIVES = {
    DOCS / "jobs-states.md": Life(
        "States of a job",
        "headrace.jobs.state",
        "A job is in exactly one state. Each arrow below is an event; what has no arrow cannot happen. An ended job stays\n"
        "ended, unless somebody puts it back by hand (`requeue`), which its history tells.",
        job_life.JobState,
        job_life.JobEvent,
        job_life.TRANSITIONS,
        (job_life.JobState.PENDING, "submit"),
        job_life.ENDED,
    ),
    DOCS / "sequence-states.md": Life(
        "States of a sequence",
        "headrace.batching.sequence_life",
        "A sequence of a model with a `step` is in exactly one state. Each arrow below is an event; what has no arrow cannot happen.\n"
        "It is idle, for no time at all, when it begins: its first request is what begins it. How it ended is told by another word:\n"
        "ended, restarted, cancelled, idle, timed_out, evicted, instance_lost or stopped.",
        sequence_life.SequenceStage,
        sequence_life.SequenceEvent,
        sequence_life.TRANSITIONS,
        (sequence_life.SequenceStage.IDLE, "start"),
        {sequence_life.SequenceStage.ENDED},
    ),
}


if __name__ == "__main__":
    for path, life in LIVES.items():
        path.write_text(life.page(), encoding="utf-8")
        sys.stdout.write(f"{path.name}: {len(life.transitions)} transitions\n")
