"""Time the first page of every filter, and of every pair: `python filter_speed.py LEDGER_URL`. Print JSON.

The ledger has the jobs of `large_table.fill`. A time is the least of three.
"""

import argparse
import itertools
import json
import time

from headrace.jobs.ledger import JobFilter
from headrace.jobs.ledgers import open_ledger
from headrace.jobs.state import JobState

FILTERS = {
    "queue": ("default", "rare", "none"),
    "model": ("bench", "rare", "none"),
    "kind": ("infer", "stream", "none"),
    "tenant": ("a", "", "rare", "none"),
    "correlation_id": ("c", "none"),
    "tags": ({"day": "all"}, {"day": "rare"}, {"day": "none"}),
    "states": (
        frozenset({JobState.RUNNING}),
        frozenset({JobState.PENDING}),
        frozenset({JobState.COMPLETED}),
        frozenset({JobState.FAILED}),
        frozenset({JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger_url")
    ledger = open_ledger(parser.parse_args().ledger_url)
    ledger.start()
    single = [(name, value) for name, values in FILTERS.items() for value in values]
    pairs = [(one, two) for one, two in itertools.combinations(single, 2) if one[0] != two[0]]
    found = {
        "single": [measure(ledger, dict([one])) for one in single],
        "pairs": [measure(ledger, dict(pair)) for pair in pairs],
    }
    ledger.stop()
    print(json.dumps(found))


def measure(ledger, conditions: dict) -> dict:
    """Return the time and the jobs of the first page of a filter."""
    times_ms, jobs = [], 0
    for _ in range(3):
        began_s = time.perf_counter()
        jobs = len(ledger.find(JobFilter(**conditions), limit=100).jobs)
        times_ms.append((time.perf_counter() - began_s) * 1000)
    texts = {
        name: sorted(state.value for state in value) if isinstance(value, frozenset) else value
        for name, value in conditions.items()
    }
    return {"ms": min(times_ms), "jobs": jobs, "filter": " and ".join(f"{n}={v}" for n, v in texts.items())}


if __name__ == "__main__":
    main()
