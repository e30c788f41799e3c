"""What every yardstick prints: one JSON object, measured from the first byte read to the last one written."""

import json
import resource
import time


class Measurement:
    """Begins when it is made; CPU is of this process, user and system together."""

    def __init__(self) -> None:
        self._wall_s = time.perf_counter()
        self._cpu_s = _cpu_s()

    def report(self, rows: int) -> None:
        """Print the figures of so many rows."""
        wall_s = time.perf_counter() - self._wall_s
        cpu_s = _cpu_s() - self._cpu_s
        print(
            json.dumps(
                {
                    "rows": rows,
                    "wall_s": round(wall_s, 4),
                    "cpu_s": round(cpu_s, 4),
                    "rows_per_s": round(rows / wall_s),
                    "cpu_us_per_row": round(cpu_s / max(rows, 1) * 1e6, 3),
                    # Linux counts kibibytes.
                    "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
                }
            )
        )


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
