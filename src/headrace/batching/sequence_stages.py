"""The stages of a live sequence and the transitions between them.

Every change of a stage follows this table.

::

                                        ┌─── STEP_DUE, INSTANCE_LOST ───┐
                                        ▼                               │
    start ──▶ IDLE ──── REQUEST ────▶ WAITING ─── STEP_BEGUN ─────▶ STEPPING ──── END ────▶ ENDING
              ▲ ▲ ▲                    │  ▲                            │   │                  │
              │ │ └──── WITHDRAWN ─────┘  └ OUTPUT_READ ─ HELD ◀ OUTPUT_FULL           STEP_DONE,
              │ │                                          │               │          INSTANCE_LOST
              │ └───────────────── WITHDRAWN ──────────────┘               │                  ▼
              └──────────────────────── STEP_DONE ─────────────────────────┘                ENDED

END ends an IDLE, WAITING or HELD sequence at once. A STEPPING sequence ends with its running step
(ENDING). A further REQUEST changes nothing while the sequence has work to do. If an instance dies,
its running step is lost (INSTANCE_LOST) and waits to run again. A sequence that cannot continue
without the lost state then receives END.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class SequenceStage(StrEnum):
    """The activity of a sequence."""

    WAITING = "waiting"
    """The next step runs as soon as the instance takes it."""
    STEPPING = "stepping"
    """A step is running."""
    HELD = "held"
    """The next step waits until the client has read earlier output."""
    IDLE = "idle"
    """No request is open."""
    ENDING = "ending"
    """The sequence has ended except for its running step."""
    ENDED = "ended"


class SequenceEvent(StrEnum):
    """An event in the life of a sequence."""

    REQUEST = "request"
    """A request for a step arrived."""
    STEP_BEGUN = "step_begun"
    """A model call took the step."""
    STEP_DONE = "step_done"
    """The step is done and no other is due."""
    STEP_DUE = "step_due"
    """The step is done and another is due: the row is rescheduled, or a request waits."""
    OUTPUT_FULL = "output_full"
    """The step is done, and the next one waits for the client to read the output."""
    OUTPUT_READ = "output_read"
    """The client has read the output, or withdrew its request while another one waits."""
    WITHDRAWN = "withdrawn"
    """The client withdrew the only request."""
    INSTANCE_LOST = "instance_lost"
    """The instance died during the step; the step will run again."""
    END = "end"
    """The sequence ended, for one of the reasons in `headrace.core.SequenceEnd`."""


_S, _E = SequenceStage, SequenceEvent

TRANSITIONS: Final[Mapping[tuple[SequenceStage, SequenceEvent], SequenceStage]] = {
    (_S.WAITING, _E.REQUEST): _S.WAITING,
    (_S.WAITING, _E.STEP_BEGUN): _S.STEPPING,
    (_S.WAITING, _E.WITHDRAWN): _S.IDLE,
    (_S.WAITING, _E.END): _S.ENDED,
    (_S.STEPPING, _E.REQUEST): _S.STEPPING,
    (_S.STEPPING, _E.STEP_DONE): _S.IDLE,
    (_S.STEPPING, _E.STEP_DUE): _S.WAITING,
    (_S.STEPPING, _E.OUTPUT_FULL): _S.HELD,
    (_S.STEPPING, _E.INSTANCE_LOST): _S.WAITING,
    (_S.STEPPING, _E.END): _S.ENDING,
    (_S.HELD, _E.REQUEST): _S.HELD,
    (_S.HELD, _E.OUTPUT_READ): _S.WAITING,
    (_S.HELD, _E.WITHDRAWN): _S.IDLE,
    (_S.HELD, _E.END): _S.ENDED,
    (_S.IDLE, _E.REQUEST): _S.WAITING,
    (_S.IDLE, _E.END): _S.ENDED,
    (_S.ENDING, _E.STEP_DONE): _S.ENDED,
    (_S.ENDING, _E.INSTANCE_LOST): _S.ENDED,
}


def next_stage(stage: SequenceStage, event: SequenceEvent) -> SequenceStage | None:
    """Return the stage that follows, or None if the event cannot happen in this stage."""
    return TRANSITIONS.get((stage, event))
