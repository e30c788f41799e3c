"""Models for tests: small, predictable, and with a hand on when they answer."""

import threading
from collections.abc import Collection

from headrace.core.model import Model, RowError
from headrace.core.tensor import Array

_WAIT_S = 30.0
"""How long a held call or a test that waits for one hangs before it fails; real time."""


class EchoModel(Model):
    """Returns what it is given: input `x` as output ``output``."""

    def predict(self, x: Array) -> Array:
        """The same rows."""
        return x


class PickyModel(Model):
    """Echoes, but fails on rows whose first value is among `guilty`, as a whole batch or naming the rows.

    `batch_rows` is how many rows each call was given, in order.
    """

    def __init__(self, guilty: Collection[float], *, names_rows: bool = False) -> None:
        self.guilty = set(guilty)
        self.names_rows = names_rows
        self.batch_rows: list[int] = []

    def predict(self, x: Array) -> Array:
        """The same rows; ValueError, or RowError with `names_rows`, when guilty ones are among them."""
        self.batch_rows.append(len(x))
        firsts = x.reshape(len(x), -1)[:, 0].tolist()
        bad = {row: f"value {value} is not taken" for row, value in enumerate(firsts) if value in self.guilty}
        if bad and self.names_rows:
            raise RowError(bad)
        if bad:
            raise ValueError("; ".join(bad.values()))
        return x


class HeldModel(Model):
    """Echoes, but each call waits until the test lets it go; so a test decides what runs while what waits.

    Share one object among instances by ``lambda: model``. Calls that hang for 30 s of real time raise
    TimeoutError.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entered = 0
        self._allowed = 0

    def predict(self, x: Array) -> Array:
        """The same rows, once released."""
        with self._changed:
            self._entered += 1
            turn = self._entered
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._allowed >= turn, _WAIT_S):
                raise TimeoutError("nobody released this call")
        return x

    def wait_for_calls(self, count: int) -> None:
        """Block until `count` calls have entered in all."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._entered >= count, _WAIT_S):
                raise TimeoutError(f"{self._entered} calls have entered, not {count}")

    def release(self, count: int = 1) -> None:
        """Let the next `count` calls answer, whether they have entered or not."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    @property
    def calls(self) -> int:
        """How many calls have entered."""
        with self._changed:
            return self._entered
