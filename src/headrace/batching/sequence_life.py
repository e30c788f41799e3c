"""The life of a sequence: its states, what may happen to it, and what then. Everything that changes a state is in this file.

::

                                        ┌────── MORE, LOST ──────┐
                                        ▼                        │
    start ──▶ IDLE ──── REQUEST ────▶ WAITING ──── TAKEN ───▶ STEPPING ─── END ───▶ ENDING
              ▲ ▲ ▲                    │  ▲                    │    │                 │
              │ │ └──── WITHDRAWN ─────┘  └── ROOM ── HELD ◀─ FULL  │           STEPPED, LOST
              │ │                                      │            │                 │
              │ └────────────── WITHDRAWN ─────────────┘            │                 ▼
              └─────────────────────── STEPPED ─────────────────────┘               ENDED

What is IDLE, WAITING or HELD is ENDED by END at once; what is STEPPING, with that step (ENDING). Where there is something to do
already, a further REQUEST changes nothing. When an instance dies, the step that it was doing is LOST, and waits to be done again;
a sequence that cannot go on without the state that died with it then meets its END.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class SequenceStage(StrEnum):
    """What a sequence is doing."""

    WAITING = "waiting"
    """Its next step can be done as soon as its instance comes to it."""
    STEPPING = "stepping"
    """A step is being done."""
    HELD = "held"
    """It would go on, but whoever takes its answers is behind."""
    IDLE = "idle"
    """Nothing is asked of it."""
    ENDING = "ending"
    """It is over, but for the step that is being done."""
    ENDED = "ended"


class SequenceEvent(StrEnum):
    """What happens to a sequence."""

    REQUEST = "request"
    """Somebody asks for a step."""
    TAKEN = "taken"
    """A call of the model has its step."""
    STEPPED = "stepped"
    """Its step is done, and nothing else is asked."""
    MORE = "more"
    """Its step is done, and another is to be done: it goes on, or more was asked."""
    FULL = "full"
    """Its step is done, and it goes on once there is room for what it gives."""
    ROOM = "room"
    """What it gave was taken, or nobody wants it any more while something else waits."""
    WITHDRAWN = "withdrawn"
    """Nobody wants what it waits for, or is held with, and nothing else was asked."""
    LOST = "lost"
    """The instance that was doing its step died; the step will be done again."""
    END = "end"
    """It is over: see `headrace.core.SequenceEnd`."""


_S, _E = SequenceStage, SequenceEvent

TRANSITIONS: Final[Mapping[tuple[SequenceStage, SequenceEvent], SequenceStage]] = {
    (_S.WAITING, _E.REQUEST): _S.WAITING,
    (_S.WAITING, _E.TAKEN): _S.STEPPING,
    (_S.WAITING, _E.WITHDRAWN): _S.IDLE,
    (_S.WAITING, _E.END): _S.ENDED,
    (_S.STEPPING, _E.REQUEST): _S.STEPPING,
    (_S.STEPPING, _E.STEPPED): _S.IDLE,
    (_S.STEPPING, _E.MORE): _S.WAITING,
    (_S.STEPPING, _E.FULL): _S.HELD,
    (_S.STEPPING, _E.LOST): _S.WAITING,
    (_S.STEPPING, _E.END): _S.ENDING,
    (_S.HELD, _E.REQUEST): _S.HELD,
    (_S.HELD, _E.ROOM): _S.WAITING,
    (_S.HELD, _E.WITHDRAWN): _S.IDLE,
    (_S.HELD, _E.END): _S.ENDED,
    (_S.IDLE, _E.REQUEST): _S.WAITING,
    (_S.IDLE, _E.END): _S.ENDED,
    (_S.ENDING, _E.STEPPED): _S.ENDED,
    (_S.ENDING, _E.LOST): _S.ENDED,
}


def after(stage: SequenceStage, event: SequenceEvent) -> SequenceStage | None:
    """The stage that follows, or None where the event cannot happen in this one."""
    return TRANSITIONS.get((stage, event))
