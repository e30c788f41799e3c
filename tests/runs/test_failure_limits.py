"""The limits of failed records: the default of every run, explicit ones, and the hint at their cause."""

import pytest

from cases import for_each
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import TooManyFailuresError
from headrace.runs.document import parse_max_failed
from headrace.runs.failure_policy import DEFAULT_FAILED_BYTES_MAX, DEFAULT_FAILED_ROWS_MAX, FailurePolicy
from headrace.runs.output import quote_hint, reason_of
from headrace.runs.run import Run
from headrace.runs.settings import StreamSettings, settings_from_identity
from headrace.runs.spec import spec_of
from runs.support import OUT, engine, make_transform, put

ROWS = DEFAULT_FAILED_ROWS_MAX
MANY_BYTES = DEFAULT_FAILED_BYTES_MAX + 1
DEFAULT_TEXT = (
    "the run stops above 10,000 failed records (or 64 MiB of them) that are more than 50% of all "
    "(--max-failed)"
)


def stops(policy: FailurePolicy, failed: int, records: int, *, at_end=False, failed_bytes=0) -> bool:
    try:
        policy.check("out/", failed, records, at_end=at_end, failed_bytes=failed_bytes)
    except TooManyFailuresError:
        return True
    return False


@for_each(
    ("failed", "records", "failed_bytes", "stopped"),
    [
        (ROWS, ROWS, 0, False),
        (ROWS + 1, ROWS + 1, 0, True),
        (ROWS + 1, 2 * (ROWS + 1), 0, False),
        (ROWS + 1, 2 * ROWS + 1, 0, True),
        (10 * ROWS, 100 * ROWS, MANY_BYTES, False),
        (900, 1000, MANY_BYTES, True),
        (900, 1000, DEFAULT_FAILED_BYTES_MAX, False),
        (500, 1000, MANY_BYTES, False),
    ],
)
@for_each("at_end", [True, False])
def test_default_limit_needs_many_records_and_most_of_them(failed, records, failed_bytes, stopped, at_end):
    assert stops(FailurePolicy(), failed, records, at_end=at_end, failed_bytes=failed_bytes) == stopped


@for_each(
    "policy",
    [
        FailurePolicy(failed_share_max=1),
        FailurePolicy(failed_rows_max=10**9),
        FailurePolicy("record", None, 1.0),
    ],
)
def test_explicit_limit_replaces_the_default(policy):
    assert not stops(policy, 10 * ROWS, 10 * ROWS, at_end=True, failed_bytes=MANY_BYTES)


def test_explicit_limits_stop_each_by_itself():
    both = FailurePolicy(failed_rows_max=5, failed_share_max=0.5)
    assert stops(both, 6, 10_000)
    assert stops(both, 5, 9, at_end=True)
    assert not stops(both, 5, 10, at_end=True)


@for_each(
    ("policy", "text"),
    [
        (
            FailurePolicy(),
            DEFAULT_TEXT,
        ),
        (FailurePolicy(failed_rows_max=1000), "the run stops above 1,000 failed records (--max-failed)"),
        (FailurePolicy(failed_share_max=0.001), "the run stops above 0.1% failed records (--max-failed)"),
        (
            FailurePolicy(failed_rows_max=7, failed_share_max=0.5),
            "the run stops above 7 failed records or 50% failed records (--max-failed)",
        ),
        (FailurePolicy(failed_share_max=1), "no limit"),
        (FailurePolicy("job"), "the first stops the run"),
    ],
)
def test_limits_are_described(policy, text):
    assert policy.describe() == text


def test_none_is_no_limit():
    assert parse_max_failed("none") == (None, 1.0)
    policy = spec_of({"headrace": {"max_failed": "none"}}, "a.toml").settings.failures
    assert (policy.describe(), policy.stops_broken_model) == ("no limit", True)


@for_each(
    "document",
    [
        {"TransformInput": {"SplitType": "Line"}},
        {"headrace": {"strict": True}},
    ],
)
def test_rules_of_another_system_stay(document):
    """SageMaker has no limit of failed records, and a model that raises does not stop a job early."""
    policy = spec_of(document, "a.json").settings.failures
    assert (policy.describe(), policy.stops_broken_model) == ("no limit", False)
    limited = document | {"headrace": {**document.get("headrace", {}), "max_failed": 7}}
    assert spec_of(limited, "a.json").settings.failures.failed_rows_max == 7


def test_explicit_record_is_the_same_run_as_the_default():
    """A run that a broken model stopped is resumed with it."""
    default, explicit = StreamSettings(), StreamSettings(failures=FailurePolicy("record"))
    assert default.identity() == explicit.identity()
    restored = settings_from_identity(default.identity(), per_object=False)
    assert restored.failures == explicit.failures
    worker = settings_from_identity(default.identity(), per_object=False, stops_broken_model=True)
    assert worker.failures == default.failures


# Whole runs


def scale_down(monkeypatch, *, rows: int, nbytes: int = 1 << 30) -> None:
    monkeypatch.setattr("headrace.runs.failure_policy.DEFAULT_FAILED_ROWS_MAX", rows)
    monkeypatch.setattr("headrace.runs.failure_policy.DEFAULT_FAILED_BYTES_MAX", nbytes)


def run_of(kind: str, stores, predictor, **more) -> Run:
    if kind == "transform":
        return make_transform(stores, predictor=predictor, **more)
    return Run(
        "memory://in/",
        OUT,
        stores=stores,
        predictor=predictor,
        settings=StreamSettings(),
        model_identity="m",
        **more,
    )


@pytest.mark.parametrize("kind", ["stream", "transform"])
def test_quotes_that_are_not_closed_stop_the_run_early(kind, stores, shared, monkeypatch):
    """Each line opens a quote that the next one closes. Before, all of the file became failed records."""
    scale_down(monkeypatch, rows=100)
    put(stores, {"a.csv": b"1,2\n3,4\n" + b'5,"6\n' * 20_000})
    run = run_of(kind, stores, shared)
    with pytest.raises(TooManyFailuresError) as caught:
        run.execute()
    assert "A quote that is opened in line 3 of memory://in/a.csv is probably not closed." in str(
        caught.value
    )
    assert "Continue with --resume and --max-failed" in str(caught.value)
    assert run.progress.rows_failed < 2_000


def test_size_of_failed_records_stops_the_run(stores, shared, monkeypatch):
    scale_down(monkeypatch, rows=1_000_000, nbytes=10_000)
    put(stores, {"a.csv": b"x,%s\n" % (b"1" * 1000) * 2_000})
    run = run_of("stream", stores, shared)
    with pytest.raises(TooManyFailuresError, match="12 of 12 records failed"):
        run.execute()
    assert run.progress.failed_bytes < 20_000


def test_stopped_run_continues_without_a_limit(stores, monkeypatch):
    scale_down(monkeypatch, rows=10)
    put(stores, {"a.csv": b"x,1\n" * 50 + b"1,1\n" * 5})
    with engine() as predictor:
        with pytest.raises(TooManyFailuresError):
            run_of("transform", stores, predictor).execute()
        run = make_transform(
            stores,
            predictor=predictor,
            settings=spec_of({"headrace": {"max_failed": "none"}}, "a.toml").settings,
            if_exists="resume",
        )
        report = run.execute()
    assert (report.rows_failed, report.rows_out, report.failure_limit) == (50, 5, "no limit")


# Messages


def failure(raw: bytes, kind=FailureKind.FORMAT) -> Failure:
    return Failure(Position("a.csv", line=1204), kind, "has 3 columns, 2 expected", raw)


@for_each(
    ("raw", "read_format", "hinted"),
    [
        (b'1,"2\n3,"4', "csv", True),
        (b'1,"2\n3,4', "auto", True),
        (b'1,"a ""b\n3,4', "auto", True),
        (b'1,"2"\n3,4', "csv", False),
        (b'1,"2', "csv", False),
        (b"1,2\n3", "csv", False),
        (b"", "auto", False),
        (b'{"a": "x\ny"}', "json", False),
    ],
)
def test_quote_hint_names_the_line(raw, read_format, hinted):
    hint = quote_hint(failure(raw), read_format)
    expected = "A quote that is opened in line 1,204 of a.csv is probably not closed. "
    assert hint == (expected if hinted else "")


def test_line_of_the_models_code_is_part_of_a_reason():
    """Other numbers are generalised, so that equal failures are counted together."""
    why = "ValueError: value 3.5 is refused (churn.py:12 in predict)"
    found = reason_of(Failure(Position("a.csv"), FailureKind.MODEL, why))
    assert found == "model: ValueError: value N is refused (churn.py:12 in predict)"
