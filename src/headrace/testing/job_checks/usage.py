"""Checks of the usage of API keys: the bytes of a day, their limit, and the change of the day."""

from headrace.jobs.ledger import DAY_MS, UsageReply
from headrace.testing.expect import equal
from headrace.testing.job_checks.bench import THREADS, LedgerBench, run_concurrently


def check_bytes_of_a_day(bench: LedgerBench) -> None:
    """Check that the bytes of a key add up in all ledgers to its limit, exactly, for each key alone."""
    other = bench.start_ledger()
    granted = [ledger.use_bytes("web", 40, limit=100).granted for ledger in (bench.ledger, other, other)]
    equal(granted, [True, True, False], "uses of 40 bytes each with a limit of 100")
    equal(other.use_bytes("web", 20, limit=100).granted, True, "a use of the 20 bytes that are left")
    equal(bench.ledger.use_bytes("web", 1, limit=100).granted, False, "a use beyond the limit")
    equal(bench.ledger.use_bytes("web", 1, limit=101).granted, True, "a use after a raise of the limit")
    equal(bench.ledger.use_bytes("ops", 100, limit=100).granted, True, "a use of another key")
    equal(bench.ledger.use_bytes("web", 0, limit=50).left_bytes, 0, "the bytes left of a lowered limit")
    refused = bench.ledger.use_bytes("new", 7, limit=5)
    equal((refused.granted, refused.left_bytes), (False, 5), "a refused first use, and the bytes left")
    equal(
        bench.ledger.use_bytes("big", 2**62, limit=2**62 - 1).granted, False, "a first use that is too large"
    )
    equal(bench.ledger.use_bytes("big", 2**62, limit=2**62).granted, True, "a large use")
    equal(
        bench.ledger.use_bytes("big", 2**62, limit=2**63 - 1).granted, False, "a large use beyond the limit"
    )
    bench.ledger.stop()
    equal(bench.start_ledger().use_bytes("web", 1, limit=101).granted, False, "a use after a restart")


def check_bytes_of_the_next_day(bench: LedgerBench) -> None:
    """Check that the count begins anew at midnight, UTC, and that replies name the day and its end."""
    today, passed_ms = divmod(bench.clock.now_ms(), DAY_MS)
    left_ms = DAY_MS - passed_ms
    equal(bench.ledger.use_bytes("web", 7, limit=10), UsageReply(True, 3, today, left_ms), "the first reply")
    bench.advance(left_ms - 1)
    equal(
        bench.ledger.use_bytes("web", 4, limit=10),
        UsageReply(False, 3, today, 1),
        "the last reply of the day",
    )
    bench.advance(1)
    tomorrow = UsageReply(True, 2, today + 1, DAY_MS)
    equal(bench.ledger.use_bytes("web", 8, limit=10), tomorrow, "the first reply of the next day")
    equal(bench.ledger.use_bytes("web", 3, limit=10).granted, False, "a use beyond the limit of that day")
    bench.advance(-1)
    equal(bench.ledger.use_bytes("web", 3, limit=10).granted, False, "a use after the clock was moved back")
    bench.advance(DAY_MS + 1)
    refused = bench.ledger.use_bytes("web", 11, limit=10)
    equal(
        (refused.left_bytes, refused.day),
        (10, today + 2),
        "the bytes left and the day of a refused first use",
    )


def check_returned_bytes(bench: LedgerBench) -> None:
    """Check that returned bytes can be used again on their day, and count for no other day."""
    day = bench.ledger.use_bytes("web", 10, limit=10).day
    bench.ledger.return_bytes("web", 4, day=day)
    bench.ledger.return_bytes("unknown", 4, day=day)
    granted = [bench.ledger.use_bytes("web", nbytes, limit=10).granted for nbytes in (5, 4)]
    equal(granted, [False, True], "uses of 5 and 4 bytes after 4 were returned")
    bench.advance(DAY_MS)
    equal(bench.ledger.use_bytes("web", 10, limit=10).granted, True, "a use on the next day")
    bench.ledger.return_bytes("web", 5, day=day)
    equal(bench.ledger.use_bytes("web", 1, limit=10).granted, False, "a use after a return of the day before")


def check_usage_race(bench: LedgerBench) -> None:
    """Check that concurrent uses never exceed the limit together, and waste nothing of it."""
    ledgers = [bench.ledger, bench.start_ledger()]
    for limit in (3, 50):
        name = f"key-{limit}"

        def use(number: int, name: str = name, limit: int = limit) -> int:
            ledger = ledgers[number % 2]
            return sum(ledger.use_bytes(name, 1, limit=limit).granted for _ in range(10))

        granted = run_concurrently([lambda n=n: use(n) for n in range(THREADS)])
        equal(
            sum(granted), limit, f"granted bytes of {THREADS * 10} concurrent uses, with a limit of {limit}"
        )
