"""One timer for many items: each overdue item is called once, and no other."""

import asyncio

from headrace.server.http import CHECKS_PER_PERIOD, OverdueWatch
from server.manual_time import ManualTime


class _Waiting:
    def __init__(self):
        self.told = 0

    def on_overdue(self):
        self.told += 1


def test_overdue_item_is_called_once_in_time():
    loop, overdue, waiting = ManualTime(), OverdueWatch(1.0), _Waiting()
    overdue.watch(waiting, waiting.on_overdue, loop)
    loop.advance(0.99)
    assert waiting.told == 0
    loop.advance(1.0 / CHECKS_PER_PERIOD + 0.02)
    assert waiting.told == 1
    loop.advance(10)
    assert waiting.told == 1


def test_finished_item_is_not_called():
    loop, overdue, first, second = ManualTime(), OverdueWatch(1.0), _Waiting(), _Waiting()
    overdue.watch(first, first.on_overdue, loop)
    overdue.watch(second, second.on_overdue, loop)
    overdue.done(first)
    overdue.done(first)
    loop.advance(2)
    assert (first.told, second.told) == (0, 1)


def test_one_timer_serves_all_items():
    loop, overdue = ManualTime(), OverdueWatch(1.0)
    for _ in range(100):
        overdue.watch(object(), _Waiting().on_overdue, loop)
    assert len(loop.timers) == 1
    loop.advance(2)
    assert loop.timers == []
    overdue.watch(object(), _Waiting().on_overdue, loop)
    assert len(loop.timers) == 1


def test_watch_works_on_an_event_loop():
    async def main():
        received = asyncio.Event()

        OverdueWatch(0.01).watch(object(), received.set, asyncio.get_running_loop())
        await asyncio.wait_for(received.wait(), 30)

    asyncio.run(main())
