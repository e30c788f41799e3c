"""Checks of the models that workers report."""

from typing import Final

from headrace.jobs.ledger import REPORTED_MODELS_KEPT_DAYS
from headrace.testing.expect import equal
from headrace.testing.job_checks.bench import LedgerBench

_KEPT_MS: Final = REPORTED_MODELS_KEPT_DAYS * 86_400_000


def check_reports_add_up(bench: LedgerBench) -> None:
    """Check that all ledgers see the union of all reports, by queue."""
    equal(bench.ledger.reported_models(), {}, "the models of a ledger without reports")
    bench.ledger.report_models(["default", "night"], ["a", "a@1"])
    bench.start_ledger().report_models(["default"], ["b", "a", "b"])
    bench.ledger.report_models(["empty"], [])
    expected = {"default": {"a", "a@1", "b"}, "night": {"a", "a@1"}}
    equal(bench.ledger.reported_models(), expected, "the reported models")


def check_reports_expire(bench: LedgerBench) -> None:
    """Check that a report is kept for its time after it was last made, and a job changes nothing."""
    bench.ledger.report_models(["default"], ["old", "new"])
    bench.advance(_KEPT_MS)
    equal(bench.ledger.reported_models(), {"default": {"old", "new"}}, "the models at the end of that time")
    bench.ledger.report_models(["default"], ["new"])
    bench.submit(queue="other", model="unknown")
    bench.advance(1)
    equal(bench.ledger.reported_models(), {"default": {"new"}}, "the models after that time")
    bench.advance(_KEPT_MS)
    equal(bench.ledger.reported_models(), {}, "the models after the time of all reports")
    bench.ledger.report_models(["default"], ["old"])
    equal(bench.ledger.reported_models(), {"default": {"old"}}, "the models after a new report")


REPORTED_MODEL_CHECKS: Final = (check_reports_add_up, check_reports_expire)
"""Every check of reported models."""
