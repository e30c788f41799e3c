"""What every yardstick prints: one JSON object, measured from the first byte read to the last one written."""

import json
import time

from headrace.pipeline.usage import cpu_s, peak_memory_mb


class Measurement:
    """Begins when it is made; CPU is of this process, user and system together."""

    def __init__(self) -> None:
        self._wall_s = time.perf_counter()
        self._cpu_s = cpu_s()

    def report(self, rows: int) -> None:
        """Print the figures of so many rows."""
        wall_s = time.perf_counter() - self._wall_s
        used_s = cpu_s() - self._cpu_s
        print(
            json.dumps(
                {
                    "rows": rows,
                    "wall_s": round(wall_s, 4),
                    "cpu_s": round(used_s, 4),
                    "rows_per_s": round(rows / wall_s),
                    "cpu_us_per_row": round(used_s / max(rows, 1) * 1e6, 3),
                    "peak_rss_mb": round(peak_memory_mb(), 1),
                }
            )
        )
