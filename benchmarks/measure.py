"""The output of every script: one JSON object, measured from the first byte read to the last
written.
"""

import json
import time
from collections.abc import Callable

from headrace.runs.work import cpu_s, peak_memory_mb


class Measurement:
    """A clock that starts at its creation. CPU is user and system time of this process by default."""

    def __init__(self, used_s: Callable[[], float] = cpu_s) -> None:
        self._used_s = used_s
        self._ended: tuple[float, float] | None = None
        self._began = self._now()

    def stop(self) -> None:
        """Stop the clock: the time until the report does not count."""
        self._ended = self._now()

    def report(self, rows: int, **more: object) -> None:
        """Print the figures for a number of rows, with further members."""
        ended = self._ended or self._now()
        wall_s, used_s = ended[0] - self._began[0], ended[1] - self._began[1]
        print(
            json.dumps(
                {
                    "rows": rows,
                    "wall_s": round(wall_s, 4),
                    "cpu_s": round(used_s, 4),
                    "rows_per_s": round(rows / wall_s),
                    "cpu_us_per_row": round(used_s / max(rows, 1) * 1e6, 3),
                    "peak_rss_mb": round(peak_memory_mb(), 1),
                    **more,
                }
            )
        )

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), self._used_s()
