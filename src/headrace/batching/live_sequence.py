"""A sequence that lives: the requests that wait for its steps, and how far it has come. Its table alone changes it."""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.batching.sequence_life import TRANSITIONS, SequenceEvent, SequenceStage
from headrace.core.errors import PredictorError
from headrace.core.sequence import SequenceEnd


class Asked(Protocol):
    """A request for steps of a sequence; two are never equal. `row` and `again` are its progress, which is kept for it here."""

    row: int
    """The row whose step is next."""
    again: bool
    """Whether that row was stepped before, and goes on."""

    @property
    def rows(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> Hashable: ...  # noqa: D102
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def ends(self) -> bool:
        """Whether its sequence ends with it."""
        ...

    def rewind(self) -> bool:
        """Forget what its steps came to, so that it can be begun again; not, when its caller has seen some of it."""
        ...


T = TypeVar("T", bound=Asked)


class LiveSequence(Generic[T]):
    """One sequence. What changes is changed by its table alone."""

    __slots__ = (
        "anonymous",
        "asked_s",
        "auto",
        "begun",
        "current",
        "id",
        "left",
        "loaded",
        "number",
        "orphaned",
        "place",
        "settled",
        "stage",
        "started_s",
        "steps",
        "touched_s",
        "waiting",
        "why",
    )

    def __init__(self, id: str, number: int, place: int, now: float) -> None:
        self.id = id
        self.number = number
        """Never given twice: a client may begin another sequence of the same id while this one ends."""
        self.place = place
        self.anonymous = not id
        """Whether it is one request by itself."""
        self.stage = SequenceStage.IDLE
        self.current: T | None = None
        """The request whose step is next, or is being done."""
        self.left = False
        """Whether nobody wants the current one any more, whose step is being done."""
        self.waiting: deque[T] = deque()
        self.auto = False
        """Whether it begins anew where its state cannot be found: all who ask for steps of it now would have it so."""
        self.begun = False
        """Whether its place has heard of it: a step of it was taken, with the state that it had."""
        self.steps = 0
        """Steps done."""
        self.settled = False
        """Whether some of these were done for requests that are over."""
        self.loaded = True
        """Whether its state is at its place; else it has to be brought there before its next step."""
        self.orphaned = False
        """Whether it is not there since the instance died that had it."""
        self.started_s = self.touched_s = self.asked_s = now
        self.why: SequenceEnd | None = None

    @property
    def rows(self) -> int:
        """Of its next step, for the batch that takes it."""
        return 1

    @property
    def key(self) -> Hashable:
        """Equal for steps that can share a call of the model."""
        assert self.current is not None
        return self.current.key

    @property
    def priority(self) -> int:
        """Of the step that is next: lower goes first."""
        assert self.current is not None
        return self.current.priority

    @property
    def goes_on(self) -> bool:
        """Whether its next step is one more of a request that was begun."""
        current = self.current
        return current is not None and was_begun(current)

    def happened(self, event: SequenceEvent) -> None:
        """Change the stage, as the table of `sequence_life` says."""
        stage = TRANSITIONS.get((self.stage, event))
        assert stage is not None, f"a sequence that is {self.stage} cannot meet {event}"
        self.stage = stage

    def take_turns(self) -> None:
        """Another request's turn, if one waits that may be begun while the current one goes on.

        What ends the sequence, and what asks for no step, is in its order: nothing that came before passes it, nor is passed.
        """
        current, waiting = self.current, self.waiting
        assert current is not None
        if current.ends or not waiting or _in_order(waiting[0]):
            return
        behind = next((at for at, item in enumerate(waiting) if _in_order(item)), len(waiting))
        waiting.insert(behind, current)
        self.current = waiting.popleft()

    def rewind(self) -> bool:
        """Forget all of its steps, if they were done for requests that are not over, and nobody has seen anything of them."""
        if self.settled:
            return False
        begun = [item for item in (self.current, *self.waiting) if item is not None and was_begun(item)]
        if not all(item.rewind() for item in begun):
            return False
        for item in begun:
            item.row, item.again = 0, False
        self.steps = 0
        return True


@dataclass(frozen=True, slots=True)
class Over(Generic[T]):
    """A request that came to its end otherwise than by a step: with an error, since its sequence ended; else it asked for none."""

    item: T
    sequence: LiveSequence[T]
    error: PredictorError | None


def was_begun(item: Asked) -> bool:
    """Whether a step of this request was done."""
    return item.again or item.row > 0


def _in_order(item: Asked) -> bool:
    return item.ends or not item.rows
