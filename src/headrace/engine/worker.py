"""An instance's thread: it loads the instance, answers what waits, starts it again when its process dies, and closes it."""

import logging
from collections.abc import Sequence
from typing import Final

from headrace.batching.adaptive import LookAgain
from headrace.core.errors import InstanceLostError, StoppedError
from headrace.engine.backend import Backend
from headrace.engine.channel import ThreadTaker, Work
from headrace.engine.inline import Inline
from headrace.engine.instance import Instance
from headrace.engine.isolation import Placement
from headrace.engine.life import Life, Slot
from headrace.engine.reason import reason
from headrace.engine.revival import Revival
from headrace.engine.ticket import Answer, Ticket, deliver

DEATHS_MAX: Final = 2
"""A request in whose calls so many processes died is not asked again."""

_log = logging.getLogger("headrace.engine")


class Worker:
    """What one thread does, from the begin of its life to the end."""

    def __init__(self, life: Life, slot: Slot, placement: Placement) -> None:
        self._life = life
        self._slot = slot
        self._placement = placement

    def run(self) -> None:
        """Load, then answer until stopped."""
        life, slot = self._life, self._slot
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that starts
            if slot.backend is not None:
                slot.backend.close()
            life.report_loaded(error)
            return
        life.report_loaded(None)
        assert slot.backend is not None
        try:
            self._answer_until_closed(slot.backend)
        finally:
            slot.alive = False
            if life.inline is not None:
                life.inline.close()
            slot.backend.close()
            with life.changed:
                life.ended += 1
                last = life.ended == len(life.slots)
            if last:
                # What an instance gave back when the others had ended already.
                life.drop(life.stopped("before this request began"))

    def _load(self) -> None:
        life, slot = self._life, self._slot
        slot.backend = backend = self._placement.load()
        slot.instance = Instance(backend, life.name, life.clock, slot.tally)
        metadata = backend.metadata
        life.channel.resize(rows_max=metadata.max_batch_rows, delay_s=metadata.max_batch_delay_ms / 1000)
        if self._placement.inline(backend):
            life.inline = Inline(
                slot.instance,
                backend,
                slot.tally,
                life.clock,
                before_call=life.go_on,
                stopped=life.stopped,
            )
        slot.revival = Revival(backend, life.name, life.clock)
        slot.alive = True

    def _answer_until_closed(self, backend: Backend) -> None:
        taker = ThreadTaker()

        def lost() -> None:
            self._slot.alive = False
            taker.wake()

        backend.on_lost(lost)
        channel = self._life.channel
        while (work := channel.take(taker, lambda: backend.lost)) is not None:
            died = isinstance(work, LookAgain) or not self._answer(work)
            if died and not self._revived():
                return

    def _answer(self, work: Work) -> bool:
        """Answer a batch; False when the instance died meanwhile."""
        tickets = [t for t in work.items if t.reply.begin()]
        try:
            if tickets:
                deliver(self._answered(tickets, work.reason))
                assert self._slot.revival is not None
                self._slot.revival.proved()
        except InstanceLostError as lost:
            self._recover(tickets, lost)
            return False
        finally:
            self._life.channel.ended(work)
        return True

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

    # When its process dies

    def _recover(self, tickets: Sequence[Ticket], lost: InstanceLostError) -> None:
        """What it had is asked once more, the requests of the call that it died in each by itself."""
        assert self._slot.instance is not None
        assert self._slot.revival is not None
        died_in = self._slot.instance.died_in
        for ticket in died_in:
            ticket.deaths += 1
            ticket.key = ticket  # shares a call with nobody: one of these may be what killed it
        again = [t for t in tickets if not t.cancelled and t.deaths < DEATHS_MAX]
        over = [t for t in tickets if not t.cancelled and t.deaths >= DEATHS_MAX]
        if all(t.cancelled for t in died_in):
            # Nobody was left who wanted it: it was ended on purpose, and is needed at once.
            self._slot.revival.proved()
        self._lose(over, lost)
        self._slot.alive = False
        self._life.channel.again(again)

    def _lose(self, tickets: Sequence[Ticket], lost: InstanceLostError) -> None:
        self._life.channel.settle(tickets)
        now = self._life.clock.now()
        for ticket in tickets:
            self._slot.tally.ended(ticket, lost, now, now)
        deliver([(ticket, lost) for ticket in tickets])

    def _revived(self) -> bool:
        """Start it again; False when it is given up, or nobody wants it any more."""
        life, slot = self._life, self._slot
        assert slot.revival is not None

        def wanted() -> bool:
            return not life.channel.dropped and (not life.hurry.is_set() or life.channel.waiting()[0] > 0)

        try:
            slot.revival.revive(life.hurry, wanted)
        except StoppedError:
            return False
        except BaseException as error:  # noqa: BLE001 - it is given up; what waits has other instances, or hears of it
            self._give_up(error)
            return False
        slot.tally.restarts += 1
        slot.alive = True
        return True

    def _give_up(self, error: BaseException) -> None:
        """It takes nothing any more; without a last one nothing can be answered."""
        life = self._life
        _log.error("an instance could not be started again", extra={"model": life.name}, exc_info=error)
        with life.changed:
            self._slot.given_up = True
            last = all(s.given_up for s in life.slots)
        if last:
            life.lost = f"its process died and could not be started again: {reason(error)}"
            life.drop(InstanceLostError(life.name, life.lost))
