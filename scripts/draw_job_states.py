"""Write docs/jobs-states.md: the life of a job as a Mermaid diagram and a table, drawn from the transition table.

Run it after changing `headrace.jobs.state`::

    .venv/bin/python scripts/draw_job_states.py

A test compares what is committed with what this gives.
"""

import sys
from pathlib import Path

from headrace.jobs.state import ENDED, TRANSITIONS, JobEvent, JobState, after

PAGE = Path(__file__).resolve().parent.parent / "docs" / "jobs-states.md"

_HEADER = """\
# States of a job

<!-- Written by scripts/draw_job_states.py from headrace.jobs.state, not by hand. -->

A job is in exactly one state. Each arrow below is an event; what has no arrow cannot happen. An ended job stays
ended, unless somebody puts it back by hand (`requeue`), which its history tells.
"""


def page() -> str:
    """The whole page, as it should be committed."""
    return "\n".join([_HEADER, *_diagram(), "", *_table(), ""])


def _diagram() -> list[str]:
    arrows: dict[tuple[JobState, JobState], list[str]] = {}
    for (state, event), to in TRANSITIONS.items():
        arrows.setdefault((state, to), []).append(event.value)
    lines = [f"    {state} --> {to}: {', '.join(events)}" for (state, to), events in arrows.items()]
    return ["```mermaid", "stateDiagram-v2", "    [*] --> pending: submit", *lines, "```"]


def _table() -> list[str]:
    events = list(JobEvent)
    rows = [
        f"| {'**' + state + '**' if state in ENDED else state} | "
        + " | ".join(after(state, event) or "-" for event in events)
        + " |"
        for state in JobState
    ]
    return [
        "| state | " + " | ".join(event.value for event in events) + " |",
        "| --- |" + " --- |" * len(events),
        *rows,
        "",
        "Ended states stand in bold.",
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {len(TRANSITIONS)} transitions\n")
