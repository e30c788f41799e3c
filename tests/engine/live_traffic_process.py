"""A process with live traffic for `test_live_traffic`: obeys its lines of input, and answers each by a line.

``python live_traffic_process.py FOLDER``; the first word of a line is the name of a method of `Commands`.
"""

import os
import resource
import sys
from pathlib import Path

from headrace.engine.live_traffic import LiveTraffic
from headrace.testing import ManualClock

LIMIT_S = 0.03


class Commands:
    """What this process can be told to do. Times are those of a manual clock."""

    def __init__(self, folder: Path) -> None:
        self._clock = ManualClock()
        self._traffic = LiveTraffic(folder, self._clock)
        self._monitor = self._traffic.limit(LIMIT_S)

    def at(self, now: str) -> str:
        self._clock.advance(float(now) - self._clock.now())
        return "ok"

    def record(self, latency_s: str, times: str = "1") -> str:
        for _ in range(int(times)):
            self._monitor.record(float(latency_s))
        return "ok"

    def share(self) -> str:
        return str(self._traffic.share())

    def close(self) -> str:
        self._monitor.close()
        return "ok"

    def no_files(self) -> str:
        """Refuse every write to a file, as a full disk does."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        return "ok"

    def fork(self) -> str:
        """Fork a child that goes on with the lines of a pipe; return its id and the pipe's."""
        reading, writing = os.pipe()
        answers, answering = os.pipe()
        # As if another thread was using them: the child must not wait for this thread.
        locks = self._traffic._lock, self._traffic._reading
        for each in locks:
            each.acquire()
        child = os.fork()
        if child:
            for each in locks:
                each.release()
            self._child_in, self._child_out = os.fdopen(writing, "w"), os.fdopen(answers)
            os.close(reading)
            os.close(answering)
            return str(child)
        os.close(writing)
        os.close(answers)
        self.obey(reading, answering)
        os._exit(0)

    def child(self, *words: str) -> str:
        """Pass a line on to the forked child and return its answer."""
        print(*words, file=self._child_in, flush=True)
        return self._child_out.readline().strip()

    def obey(self, reading: int, answering: int) -> None:
        with os.fdopen(reading) as lines, os.fdopen(answering, "w") as answers:
            for line in lines:
                name, *words = line.split()
                print(getattr(self, name)(*words), file=answers, flush=True)


if __name__ == "__main__":
    Commands(Path(sys.argv[1])).obey(0, 1)
