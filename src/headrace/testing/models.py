"""Models for tests: small, deterministic, and one with calls that a test controls."""

import threading
from collections.abc import Collection

from typing_extensions import override

from headrace.core.model import Model, RowError
from headrace.core.tensor import Array

_WAIT_S = 30.0
"""Limit of a held call, and of a wait for calls, in real seconds."""


class EchoModel(Model):
    """A model that returns input `x` as output ``output``."""

    @override
    def predict(self, x: Array) -> Array:
        return x


class PickyModel(Model):
    """A model that echoes, but fails on rows whose first value is among `guilty`.

    The whole batch fails or, with `names_rows`, the failing rows are named. `batch_rows` has the
    number of rows of each call, in order.
    """

    def __init__(self, guilty: Collection[float], *, names_rows: bool = False) -> None:
        self.guilty = set(guilty)
        self.names_rows = names_rows
        self.batch_rows: list[int] = []

    def predict(self, x: Array) -> Array:
        """Return the same rows.

        Raise ValueError, or RowError with `names_rows`, if there are guilty rows among them.
        """
        self.batch_rows.append(len(x))
        firsts = x.reshape(len(x), -1)[:, 0].tolist()
        failed = {
            row: f"value {value} is refused" for row, value in enumerate(firsts) if value in self.guilty
        }
        if failed and self.names_rows:
            raise RowError(failed)
        if failed:
            raise ValueError("; ".join(failed.values()))
        return x


class HeldModel(Model):
    """A model that echoes. Its calls block until `release`, so that a test controls their order.

    Several instances share one object by ``lambda: model``. A call that waits for 30 s of real time
    raises TimeoutError.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = 0
        self._allowed = 0

    def predict(self, x: Array) -> Array:
        """Return the same rows after `release`."""
        with self._changed:
            self._begun += 1
            number = self._begun
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._allowed >= number, _WAIT_S):
                raise TimeoutError(f"the call was not released within {_WAIT_S} s")
        return x

    def wait_for_calls(self, count: int) -> None:
        """Block until `count` calls have begun in total."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._begun >= count, _WAIT_S):
                raise TimeoutError(f"{self._begun} calls have begun, expected {count}")

    def release(self, count: int = 1) -> None:
        """Let the next `count` calls return, whether they have begun or not."""
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    @property
    def calls(self) -> int:
        """The number of calls that have begun."""
        with self._changed:
            return self._begun
