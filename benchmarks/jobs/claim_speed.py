"""Measure claims of one job: `python claim_speed.py LEDGER_URL --claims 300`. Print JSON.

Before each claim a job is submitted, and after it the job is settled. Neither is timed.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent))

from headrace.jobs.job import Completed, NewJob, ResultRef, Settlement
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers import open_ledger
from headrace.runs.work import peak_memory_mb

CLAIM = ClaimRequest("bench", ("default",), 1, 60_000)
WARM = 20


def main() -> None:
    from job_percentiles import percentile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ledger_url")
    parser.add_argument("--claims", type=int, default=300)
    arguments = parser.parse_args()
    ledger = open_ledger(arguments.ledger_url)
    ledger.start()
    claims_ms: list[float] = []
    for number in range(WARM + arguments.claims):
        ledger.submit([NewJob(model="bench", input_uri="s3://bucket/payload.json")])
        began_s = time.perf_counter()
        turn = ledger.settle_and_claim((), CLAIM)
        ended_s = time.perf_counter()
        (job,) = turn.claimed
        ledger.settle_and_claim(
            [Settlement(job.id, job.lease, Completed(ResultRef("s3://bucket/result.out", 120)))]
        )
        if number >= WARM:
            claims_ms.append((ended_s - began_s) * 1000)
    ledger.stop()
    p50, p99 = (percentile(claims_ms, percent) for percent in (50, 99))
    print(json.dumps({"p50_ms": p50, "p99_ms": p99, "peak_rss_mb": peak_memory_mb()}))


if __name__ == "__main__":
    main()
