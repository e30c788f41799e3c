"""A live sequence: its stages, the requests that wait for its steps, and its progress.

Only its `SequenceTable` changes it. Every change of a stage follows the table `TRANSITIONS`.

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

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from headrace.core.errors import PredictorError
from headrace.core.sequence import SequenceEnd, qualified_sequence_id


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


class StepRequest(Protocol):
    """A request for one or more steps of a sequence. Two requests are never equal.

    The sequence keeps the request's progress in `row` and `again`.
    """

    row: int
    """Row of the next step."""
    again: bool
    """True if a step of that row was done and asked for another step of the row."""

    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> Hashable: ...  # noqa: D102
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def ends(self) -> bool:
        """True if the sequence ends with this request."""
        ...

    def rewind(self) -> bool:
        """Discard the outputs of this request's steps, so that the request can start again.

        Return False, with no effect, if the client has received some of them.
        """
        ...


T = TypeVar("T", bound=StepRequest)


class LiveSequence(Generic[T]):
    """A sequence with its stage, requests and state position. Only its `SequenceTable` changes it."""

    __slots__ = (
        "abandoned",
        "anonymous",
        "arrived_s",
        "auto_restart",
        "current",
        "end_reason",
        "has_final_steps",
        "id",
        "idle_since_s",
        "instance",
        "instance_knows",
        "loaded",
        "namespace",
        "number",
        "qualified_id",
        "stage",
        "started_s",
        "state_lost",
        "steps",
        "waiting",
    )

    def __init__(self, id: str, number: int, instance: int, now: float, *, namespace: str = "") -> None:
        self.id = id
        self.namespace = namespace
        self.qualified_id = qualified_sequence_id(namespace, id)
        """The id, unique among all namespaces: the name of its state."""
        self.number = number
        """Unique: a client may start another sequence with the same id while this one ends."""
        self.instance = instance
        self.anonymous = not id
        """True for a single request without a sequence id."""
        self.stage = SequenceStage.IDLE
        self.current: T | None = None
        """The request of the next or the running step."""
        self.abandoned = False
        """True if the client withdrew the current request during its step."""
        self.waiting: deque[T] = deque()
        self.auto_restart = False
        """True if the sequence restarts when its state is missing: every open request allows that."""
        self.instance_knows = False
        """True if the instance holds, or held, a state of this sequence."""
        self.steps = 0
        """Number of steps done."""
        self.has_final_steps = False
        """True if some of these steps belong to finished requests."""
        self.loaded = True
        """True if the state is on the instance; if not, load it before the next step."""
        self.state_lost = False
        """True if the state is not loaded because its instance died."""
        self.started_s = self.idle_since_s = self.arrived_s = now
        self.end_reason: SequenceEnd | None = None

    @property
    def rows(self) -> int:
        """Rows that the next step takes in a batch."""
        return 1

    @property
    def key(self) -> Hashable:
        """Equal for steps that can share a model call."""
        assert self.current is not None
        return self.current.key

    @property
    def priority(self) -> int:
        """Priority of the next step: a lower value goes first."""
        assert self.current is not None
        return self.current.priority

    @property
    def request_started(self) -> bool:
        """True if the next step continues a request of which a step was done."""
        current = self.current
        return current is not None and is_started(current)

    def apply(self, event: SequenceEvent) -> None:
        """Change the stage, according to `TRANSITIONS`."""
        stage = TRANSITIONS.get((self.stage, event))
        assert stage is not None, f"event {event} is impossible in stage {self.stage}"
        self.stage = stage

    def interleave(self) -> None:
        """Put the current request behind the waiting requests that may run between its steps.

        A request that ends the sequence, and a request without steps, keeps its position: no
        request passes it, and it passes none.
        """
        current, waiting = self.current, self.waiting
        assert current is not None
        if current.ends or not waiting or _is_ordered(waiting[0]):
            return
        behind = next((at for at, item in enumerate(waiting) if _is_ordered(item)), len(waiting))
        waiting.insert(behind, current)
        self.current = waiting.popleft()

    def rewind(self) -> bool:
        """Discard all steps of this sequence. Return False, with no effect, if that is impossible.

        Possible only if all steps belong to open requests, and no client has received any output of
        them.
        """
        if self.has_final_steps:
            return False
        begun = [item for item in (self.current, *self.waiting) if item is not None and is_started(item)]
        if not all(item.rewind() for item in begun):
            return False
        for item in begun:
            item.row, item.again = 0, False
        self.steps = 0
        return True


@dataclass(frozen=True, slots=True)
class RequestEnd(Generic[T]):
    """A request that ended without a step of its own.

    `error` says why its sequence ended; None for a request without steps.
    """

    item: T
    sequence: LiveSequence[T]
    error: PredictorError | None


def is_started(item: StepRequest) -> bool:
    """Return True if a step of this request was done."""
    return item.again or item.row > 0


def _is_ordered(item: StepRequest) -> bool:
    return item.ends or not item.rows
