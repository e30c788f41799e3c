"""One timer for many waiting items, where one timer for each would cost more than the work."""

import asyncio
from typing import Final, Protocol

CHECKS_PER_PERIOD: Final = 4
"""The number of checks within the time limit. An overdue item is noticed a quarter of the limit later."""


class Watchable(Protocol):
    """An item with a time limit."""

    __slots__ = ()

    def on_overdue(self) -> None:
        """Handle the passed time limit. The event loop calls it at most once."""
        ...


class OverdueWatch:
    """Calls `on_overdue` of every item that is not `done` after `after_s` seconds.

    A call may be late by a quarter of that time. A watch belongs to one event loop.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        # The items are in order of their time limits, because all limits are equally long.
        self._due_s: dict[Watchable, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, item: Watchable, loop: asyncio.AbstractEventLoop) -> None:
        """Start the time of an item."""
        self._due_s[item] = loop.time() + self._after_s
        if self._timer is None:
            self._timer = loop.call_later(self._after_s / CHECKS_PER_PERIOD, self._check, loop)

    def done(self, item: Watchable) -> None:
        """Forget an item. Do nothing if it is unknown."""
        self._due_s.pop(item, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        overdue: list[Watchable] = []
        for item, due_s in self._due_s.items():
            if due_s > now:
                break
            overdue.append(item)
        for item in overdue:
            del self._due_s[item]
        if self._due_s:
            self._timer = loop.call_later(self._after_s / CHECKS_PER_PERIOD, self._check, loop)
        for item in overdue:
            item.on_overdue()
