"""When an instance whose process died is started again, and when it is given up.

The first death is answered at once; deaths and failed starts that follow each other without an answered call in between
wait ever longer, so that a model that cannot live does not keep the machine busy with dying.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.core.retry import RetryPolicy
from headrace.engine.backend import Backend
from headrace.engine.reason import reason

STARTS_MAX: Final = 5
"""After so many failed starts in a row an instance is given up."""
BACKOFF: Final = RetryPolicy(retry_s=float("inf"), first_delay_s=0.1, delay_max_s=10.0)

_log = logging.getLogger("headrace.engine")


class Revival:
    """Starts one instance again, as often as it dies. Everything here runs in the instance's own thread."""

    def __init__(self, backend: Backend, model: str, clock: Clock) -> None:
        self._backend = backend
        self._model = model
        self._clock = clock
        self._deaths = 0

    def proved(self) -> None:
        """It has answered: what comes is not of the same series."""
        self._deaths = 0

    def revive(self, wake: threading.Event, wanted: Callable[[], bool]) -> None:
        """Start it again. Raises the last start's error when STARTS_MAX failed, StoppedError when it is not `wanted`.

        `wake` cuts a wait short, so that `wanted` is asked again.
        """
        self._deaths += 1
        _log.warning(
            "an instance died, it is started again", extra={"model": self._model, "deaths": self._deaths}
        )
        failed = 0
        while True:
            self._wait(self._deaths + failed - 1, wake)
            if not wanted():
                raise StoppedError(f"model {self._model} is stopping, and nothing waits for it")
            try:
                self._backend.restart()
            except Exception as error:
                failed += 1
                if failed == STARTS_MAX:
                    raise
                _log.warning(
                    "an instance could not be started again: %s", reason(error), extra={"model": self._model}
                )
            else:
                return

    def _wait(self, before: int, wake: threading.Event) -> None:
        """After so many deaths and failed starts in a row."""
        if not before:
            return
        delay_s = BACKOFF.delay_s(before, float("inf"), 1.0)
        assert delay_s is not None
        self._clock.sleep(delay_s, wake)
