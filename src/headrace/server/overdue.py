"""What takes longer than it should: one timer for all that waits, where a timer each would cost more than the work."""

import asyncio
from typing import Final, Protocol

LOOKS: Final = 4
"""How often it is looked within the time that something may take: what is late is noticed a quarter of that later."""


class Waits(Protocol):
    """Something that waits."""

    def late(self) -> None:
        """It has waited too long. Called once, in the event loop."""
        ...


class Overdue:
    """Calls `late` of whatever is not `done` within `after_s`, or up to a quarter of that later. For one event loop."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        # In order of time, since all may take equally long.
        self._due_s: dict[Waits, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, waiting: Waits, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to count for this one."""
        self._due_s[waiting] = loop.time() + self._after_s
        if self._timer is None:
            self._timer = loop.call_later(self._after_s / LOOKS, self._look, loop)

    def done(self, waiting: Waits) -> None:
        """It waits no longer; nothing happens where it is known already."""
        self._due_s.pop(waiting, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        late: list[Waits] = []
        for waiting, due_s in self._due_s.items():
            if due_s > now:
                break
            late.append(waiting)
        for waiting in late:
            del self._due_s[waiting]
        if self._due_s:
            self._timer = loop.call_later(self._after_s / LOOKS, self._look, loop)
        for waiting in late:
            waiting.late()
