"""A window for races in broken implementations."""

import threading

WINDOW_S = 0.01


class RaceWindow:
    """A point where a thread waits until another one has reached it too, or `WINDOW_S` has passed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._arrived = 0

    def open(self) -> None:
        with self._changed:
            self._arrived += 1
            mine = self._arrived
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._arrived > mine, WINDOW_S)
