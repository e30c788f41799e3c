"""Timers that expire on demand."""


class ManualTime:
    """The timers of an event loop, with manual time."""

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
