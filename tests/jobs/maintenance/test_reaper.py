"""The reaper: expired leases and expired jobs."""

from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.maintenance import Reaper
from headrace.jobs.state import JobState
from headrace.testing import ManualWallClock, MemoryJobLedger


def test_round_takes_back_leases_and_expires_jobs_and_counts_them(caplog):
    wall = ManualWallClock()
    ledger = MemoryJobLedger(wall)
    ledger.start()
    (dead,) = ledger.submit([NewJob()])
    ledger.settle_and_claim([], ClaimRequest("dead", ("default",), 1, 1_000))
    (over,) = ledger.submit([NewJob(time_to_live_s=1.0)])
    assert Reaper(ledger).tick() == 0
    assert not caplog.records
    wall.advance(1_001)
    assert Reaper(ledger).tick() == 2
    assert (caplog.records[0].returned, caplog.records[0].expired) == (1, 1)
    assert ledger.get(dead.job.id).state is JobState.PENDING
    assert ledger.get(over.job.id).state is JobState.EXPIRED


def test_round_has_a_limit():
    wall = ManualWallClock()
    ledger = MemoryJobLedger(wall)
    ledger.start()
    ledger.submit([NewJob(time_to_live_s=1.0)] * 5)
    wall.advance(1_001)
    reaper = Reaper(ledger, round_jobs=2)
    assert [reaper.tick() for _ in range(4)] == [2, 2, 1, 0]
