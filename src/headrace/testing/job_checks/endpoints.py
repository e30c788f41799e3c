"""Checks of endpoints: versions, deletion, and the limit of running jobs."""

from headrace.jobs.access.endpoints import VERSIONS_MAX, EndpointSettings
from headrace.testing.expect import equal
from headrace.testing.job_checks.bench import LedgerBench, run_concurrently

_RACE_THREADS = 4


def check_endpoint_versions(bench: LedgerBench) -> None:
    """Check that each change of an endpoint is a version, and that nothing else makes one."""
    settings = EndpointSettings("m", notify=({"webhook": "https://h.example/"},), options={"a": [1]})
    now_ms = bench.advance(5)
    first = bench.ledger.set_endpoint("b", settings, by="ops")
    equal((first.name, first.version, first.settings), ("b", 1, settings), "a new endpoint")
    equal((first.created_at_ms, first.created_by), (now_ms, "ops"), "its time and its author")
    equal(bench.ledger.set_endpoint("b", settings, by="other"), first, "an endpoint with equal settings")
    changed = EndpointSettings("m@2", queue="q", time_limit_s=2.5, keep_days=1.0)
    second = bench.ledger.set_endpoint("b", changed)
    equal((second.version, second.settings), (2, changed), "a changed endpoint")
    other = bench.ledger.set_endpoint("a", settings)
    equal(bench.ledger.endpoints(), [other, second], "all endpoints")
    equal(bench.ledger.endpoint_versions("b"), [second, first], "the versions of an endpoint")
    equal(bench.ledger.endpoint_versions("c"), [], "the versions of an unknown endpoint")


def check_deleted_endpoint(bench: LedgerBench) -> None:
    """Check that a deleted endpoint is not listed, keeps its versions, and can be created again."""
    settings = EndpointSettings("m")
    bench.ledger.set_endpoint("e", settings)
    equal(bench.ledger.delete_endpoint("e", by="ops"), True, "the deletion of an endpoint")
    equal(bench.ledger.delete_endpoint("e"), False, "the deletion of a deleted endpoint")
    equal(bench.ledger.delete_endpoint("f"), False, "the deletion of an unknown endpoint")
    equal(bench.ledger.endpoints(), [], "the endpoints after a deletion")
    again = bench.ledger.set_endpoint("e", settings)
    equal([one.deleted for one in bench.ledger.endpoint_versions("e")], [False, True, False], "the versions")
    equal((again.version, bench.ledger.endpoints()), (3, [again]), "the endpoint that was created again")


def check_kept_endpoint_versions(bench: LedgerBench) -> None:
    """Check that the last versions of an endpoint are kept, `VERSIONS_MAX` of them."""
    for number in range(VERSIONS_MAX + 3):
        bench.ledger.set_endpoint("e", EndpointSettings(f"m{number}"))
    found = [one.version for one in bench.ledger.endpoint_versions("e")]
    equal(found, list(range(VERSIONS_MAX + 3, 3, -1)), "the kept versions")


def check_endpoint_race(bench: LedgerBench) -> None:
    """Check that concurrent changes of an endpoint make different versions."""
    ledgers = (bench.ledger, bench.start_ledger())
    made = run_concurrently(
        (lambda number=number: ledgers[number % 2].set_endpoint("e", EndpointSettings(f"m{number}")))
        for number in range(_RACE_THREADS)
    )
    equal(sorted(one.version for one in made), [1, 2, 3, 4], "the versions of concurrent changes")


def check_limit_of_an_endpoint(bench: LedgerBench) -> None:
    """Check that `running_max` of an endpoint limits its running jobs, until it is changed or deleted."""
    bench.ledger.set_endpoint("e", EndpointSettings("m", running_max=1))
    bench.submit_many(4, endpoint="e")
    equal(len(bench.claim(9)), 1, "the claimed jobs of an endpoint with a limit")
    bench.ledger.set_endpoint("e", EndpointSettings("m", running_max=2))
    equal(len(bench.claim(9)), 1, "the claimed jobs with a higher limit")
    bench.ledger.set_endpoint("e", EndpointSettings("m"))
    equal(len(bench.claim(1)), 1, "the claimed jobs without a limit")
    bench.ledger.set_endpoint("e", EndpointSettings("m", running_max=0))
    equal(bench.claim(9), (), "the claimed jobs of a closed endpoint")
    bench.ledger.delete_endpoint("e")
    equal(len(bench.claim(9)), 1, "the claimed jobs of a deleted endpoint")
