"""What an instance's thread does over and over: take work, answer it, and see what becomes of it when the instance dies."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from headrace.batching.adaptive import LookAgain
from headrace.core.errors import InstanceLostError, ModelError
from headrace.engine.channel import ThreadTaker, Work
from headrace.engine.life import Life, Slot
from headrace.engine.reason import unforeseen
from headrace.engine.ticket import DEATHS_MAX, Answer, Ticket, deliver

W = TypeVar("W")
"""What is taken at once."""


class Rounds(Protocol[W]):
    """How requests of one kind are answered by one instance. All of it in the instance's own thread."""

    def take(self, taker: ThreadTaker, unfit: Callable[[], bool]) -> W | LookAgain | None:
        """The next work, however long it takes; LookAgain once the instance is `unfit`, None when there is never any more."""
        ...

    def answer(self, work: W) -> bool:
        """Answer it; whether the model was called for it. Raises InstanceLostError when the instance died meanwhile: then `lost` follows."""
        ...

    def lost(self, error: InstanceLostError | None) -> bool:
        """The instance died: in the call that raised `error`, or by itself. Whether that was meant, since nobody wanted the call."""
        ...

    def failed(self, error: BaseException) -> None:
        """A defect raised `error` meanwhile: what was taken, and is not answered, fails. The instance may live on.

        What this raises says that it may not.
        """
        ...

    def revived(self) -> None:
        """It was started again."""
        ...

    def given_up(self) -> None:
        """It will never be there again."""
        ...

    def close(self) -> None:
        """Nothing is taken any more."""
        ...


class BatchRounds:
    """Batches of requests that have nothing to do with each other, for `Model.predict`. Implements `Rounds`."""

    def __init__(self, life: Life, slot: Slot) -> None:
        self._life = life
        self._slot = slot
        self._tickets: Sequence[Ticket] = ()

    def take(self, taker: ThreadTaker, unfit: Callable[[], bool]) -> Work | LookAgain | None:
        """See `Rounds`."""
        return self._life.batches.take(taker, unfit)

    def answer(self, work: Work) -> bool:
        """See `Rounds`."""
        self._tickets = work.items
        try:
            self._tickets = tickets = [t for t in work.items if t.reply.begin()]
            if tickets:
                deliver(self._answered(tickets, work.reason))
        finally:
            self._life.batches.ended(work)
        self._tickets = ()
        return bool(tickets)

    def _answered(self, tickets: Sequence[Ticket], why: str) -> list[tuple[Ticket, Answer]]:
        life, slot = self._life, self._slot
        assert slot.instance is not None
        tally = slot.tally
        began_s = life.clock.now()
        if tally.ended_s is not None:
            tally.starved_s += max(0.0, tickets[0].asked_s - tally.ended_s)
        try:
            answered = slot.instance.answer_all(tickets, life.go_on)
        finally:
            tally.ended_s = ended_s = life.clock.now()
            tally.busy_s += ended_s - began_s
        tally.closed[why] = tally.closed.get(why, 0) + 1
        life.channel.settle([ticket for ticket, _ in answered])
        for ticket, answer in answered:
            tally.ended(ticket, answer, began_s, ended_s)
        return answered

    def lost(self, error: InstanceLostError | None) -> bool:
        """See `Rounds`: what it had is asked once more, the requests of the call that it died in each by itself."""
        if error is None:
            return False
        assert self._slot.instance is not None
        died_in = self._slot.instance.died_in
        for ticket in died_in:
            ticket.deaths += 1
            ticket.key = ticket  # shares a call with nobody: one of these may be what killed it
        tickets = self._tickets
        again = [t for t in tickets if not t.cancelled and t.deaths < DEATHS_MAX]
        over = [t for t in tickets if not t.cancelled and t.deaths >= DEATHS_MAX]
        meant = all(t.cancelled for t in died_in)
        self._lose(over, error)
        self._slot.alive = False
        self._life.batches.again(again)
        return meant

    def failed(self, error: BaseException) -> None:
        """See `Rounds`: whoever has an answer keeps it."""
        tickets, self._tickets = self._tickets, ()
        self._lose(tickets, unforeseen(self._life.name, error))

    def _lose(self, tickets: Sequence[Ticket], error: ModelError) -> None:
        open_ = [ticket for ticket in tickets if not ticket.ended]
        self._life.channel.settle(tickets)
        now = self._life.clock.now()
        try:
            for ticket in open_:
                self._slot.tally.ended(ticket, error, now, now)
        finally:
            deliver([(ticket, error) for ticket in tickets])

    def revived(self) -> None:
        """See `Rounds`."""

    def given_up(self) -> None:
        """See `Rounds`: others take what waits."""

    def close(self) -> None:
        """See `Rounds`."""
