"""Restarts of an instance that was lost, with increasing delays, until it is given up.

The first death is followed by a restart at once. Deaths and failed starts in a row, without a
successful call in between, wait ever longer, so that a broken model does not keep the machine busy.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from headrace.core.clock import Clock
from headrace.core.errors import StoppedError
from headrace.core.retry import RetryPolicy
from headrace.engine.model_errors import describe_error

STARTS_MAX: Final = 5
"""Number of failed starts in a row after which an instance is given up."""
BACKOFF: Final = RetryPolicy(retry_s=float("inf"), first_delay_s=0.1, delay_max_s=10.0)

_log = logging.getLogger("headrace.engine")


class RestartPolicy:
    """The restarts of one instance after its deaths. All of it runs in the instance's thread.

    `start` starts the instance again, in one attempt.
    """

    def __init__(self, start: Callable[[], None], model: str, clock: Clock) -> None:
        self._start = start
        self._model = model
        self._clock = clock
        self._deaths = 0

    def record_success(self) -> None:
        """Reset the delays, after a successful call."""
        self._deaths = 0

    def restart(self, wake: threading.Event, is_wanted: Callable[[], bool]) -> None:
        """Restart the instance. Raises the last start's error after STARTS_MAX failures.

        Raises StoppedError once `is_wanted` returns False. `wake` ends a wait, so that `is_wanted`
        is called again.
        """
        self._deaths += 1
        _log.warning(
            "an instance died and is restarted", extra={"model": self._model, "deaths": self._deaths}
        )
        failed_starts = 0
        while True:
            self._wait(self._deaths + failed_starts - 1, wake)
            if not is_wanted():
                raise StoppedError(f"model {self._model} is stopping, and no request waits for the instance")
            try:
                self._start()
            except Exception as error:
                failed_starts += 1
                if failed_starts == STARTS_MAX:
                    raise
                _log.warning(
                    "an instance could not be restarted: %s",
                    describe_error(error),
                    extra={"model": self._model},
                )
            else:
                return

    def _wait(self, failures: int, wake: threading.Event) -> None:
        """Wait for the delay after this number of deaths and failed starts in a row."""
        if not failures:
            return
        delay_s = BACKOFF.delay_s(failures, float("inf"), 1.0)
        assert delay_s is not None
        self._clock.sleep(delay_s, wake)
