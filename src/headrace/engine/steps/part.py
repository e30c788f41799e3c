"""What a request asks of one sequence, and where the outputs of its steps go."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from headrace.batching.sequence import LiveSequence
from headrace.core.record import record
from headrace.core.sequence import SequenceAsk
from headrace.core.tensor import Array
from headrace.engine.outputs import Outputs
from headrace.engine.ticket import Answer, Ticket


@record
class PartAsk:
    """Rows of a request that are steps of one sequence; none named: all of them."""

    sequence: SequenceAsk
    rows: list[int] = field(default_factory=list[int])


class Sink(Protocol):
    """Where the outputs of a request's steps go. Called by one thread at a time, in the order of the steps of each part."""

    def give(self, part: "Part", row: int, outputs: Outputs, wakes: list[Callable[[], None]]) -> bool:
        """One row of outputs of the request's `row`; whether there is room for more. CancelledRequestError: nobody wants any.

        Whom it wakes is added to `wakes`, for `headrace.engine.pipe.wake_all`.
        """
        ...

    def failed(self, part: "Part", row: int, why: str) -> bool:
        """The step of this row came to nothing; whether the other rows of its part are still wanted."""
        ...

    def over(self, part: "Part", error: BaseException | None) -> Answer | None:
        """Nothing more comes of this part; what the whole request comes to, once nothing more comes of any.

        Of any thread; the first call for a part counts, and sets its `over`.
        """
        ...

    def when_room(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once there is room again, from any thread; not when there is room now. Whether there is not."""
        ...

    def rewind(self, part: "Part") -> bool:
        """Forget what was given of this part; not, when somebody has seen it."""
        ...


class Part:
    """Steps of one sequence that one request asks for: one for each of its rows, in order.

    Implements `headrace.batching.sequence.Asked`. Guarded by the channel's lock, but for what its sink is told.
    """

    __slots__ = (
        "again",
        "begins",
        "begun_s",
        "deaths",
        "ending",
        "ends",
        "id",
        "key",
        "number",
        "over",
        "parameters",
        "priority",
        "row",
        "rows",
        "sequence",
        "shared_key",
        "sink",
        "stepped_s",
        "tensors",
        "ticket",
        "which",
    )

    def __init__(
        self,
        ticket: Ticket,
        tensors: Mapping[str, Array],
        rows: int,
        sink: Sink,
        *,
        which: Sequence[int] | None = None,
        ends: bool = False,
    ) -> None:
        self.ticket = ticket
        self.tensors = tensors
        self.rows = rows
        self.sink = sink
        self.which = which
        """The request's rows that are its own; None: all."""
        self.ends = ends
        self.row = 0
        self.ending = False
        """Whether its sequence is over with the step that was just done."""
        self.again = False
        self.key: Hashable = ticket.key
        self.priority = ticket.priority
        self.parameters: Mapping[str, Any] = ticket.request.parameters
        self.deaths = 0
        """Instances that died in its next step."""
        self.shared_key: Hashable = None
        """Its key, while it is suspected, and has one of its own."""
        self.begun_s: float | None = None
        """When its first step began."""
        self.over = False
        """Whether its sink was told that nothing more comes."""
        self.begins = False
        """Whether its sequence began with it."""
        self.stepped_s: float | None = None
        """When its last step ended."""
        self.sequence: LiveSequence[Part] | None = None
        self.id = ""
        self.number = 0
        """Tells it from others of its sequence."""

    @property
    def index(self) -> int:
        """Which of the request's rows is next."""
        return self.row if self.which is None else self.which[self.row]

    def indices(self, row: int) -> Sequence[int]:
        """Which of the request's rows are its own, from one of them on."""
        return range(row, self.rows) if self.which is None else self.which[row:]

    def step_tensors(self) -> Mapping[str, Array]:
        """The row that is next, by input name."""
        if self.rows == 1 and self.which is None:
            return self.tensors
        index = self.index
        return {name: data[index : index + 1] for name, data in self.tensors.items()}

    def wanted(self, now: float) -> bool:
        """Whether anybody still waits for what comes of it."""
        return not self.over and self.ticket.alive(now)

    def suspect(self) -> int:
        """An instance died in its next step: it shares a call with nobody, since it may be what killed it. How many have by now."""
        if not self.deaths:
            self.shared_key, self.key = self.key, self
        self.deaths += 1
        return self.deaths

    def acquit(self) -> None:
        """Its step was done: whatever killed instances before is over."""
        if self.deaths:
            self.shared_key, self.key = None, self.shared_key
            self.deaths = 0

    def rewind(self) -> bool:
        """See `headrace.batching.sequence.Asked`."""
        return self.sink.rewind(self)

    def finished(self, error: BaseException | None) -> tuple[Ticket, Answer] | None:
        """As `finish`, with whose answer it is."""
        answer = self.finish(error)
        return None if answer is None else (self.ticket, answer)

    def finish(self, error: BaseException | None) -> Answer | None:
        """Nothing more comes of it; what its request comes to, if that was the last thing it waited for. The first call counts."""
        return self.sink.over(self, error)
