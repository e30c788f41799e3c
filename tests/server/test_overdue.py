"""One timer for many: who is late is told so, once, and nobody else is."""

import asyncio

from headrace.server.overdue import LOOKS, Overdue


class _Loop:
    """A loop whose time the test moves."""

    def __init__(self):
        self.now = 0.0
        self.timers = []

    def time(self):
        return self.now

    def call_later(self, delay_s, function, *arguments):
        self.timers.append((self.now + delay_s, function, arguments))
        return object()

    def advance(self, seconds):
        until = self.now + seconds
        while due := [t for t in self.timers if t[0] <= until]:
            timer = min(due, key=lambda t: t[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1](*timer[2])
        self.now = until


class _Waiting:
    def __init__(self):
        self.told = 0

    def late(self):
        self.told += 1


def test_who_is_late_is_told_once_and_in_time():
    loop, overdue, waiting = _Loop(), Overdue(1.0), _Waiting()
    overdue.watch(waiting, loop)
    loop.advance(0.99)
    assert waiting.told == 0
    loop.advance(1.0 / LOOKS + 0.02)
    assert waiting.told == 1
    loop.advance(10)
    assert waiting.told == 1


def test_who_is_done_is_not_told():
    loop, overdue, first, second = _Loop(), Overdue(1.0), _Waiting(), _Waiting()
    overdue.watch(first, loop)
    overdue.watch(second, loop)
    overdue.done(first)
    overdue.done(first)
    loop.advance(2)
    assert (first.told, second.told) == (0, 1)


def test_there_is_one_timer_however_many_wait_and_none_when_nobody_does():
    loop, overdue = _Loop(), Overdue(1.0)
    for _ in range(100):
        overdue.watch(_Waiting(), loop)
    assert len(loop.timers) == 1
    loop.advance(2)
    assert loop.timers == []
    overdue.watch(_Waiting(), loop)
    assert len(loop.timers) == 1


def test_on_a_real_loop_too():
    async def main():
        told = asyncio.Event()

        class Waiting:
            def late(self):
                told.set()

        Overdue(0.01).watch(Waiting(), asyncio.get_running_loop())
        await asyncio.wait_for(told.wait(), 30)

    asyncio.run(main())
