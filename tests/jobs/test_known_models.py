"""Submissions against the models that workers have reported: refused, accepted, or warned of."""

import pytest

from cases import for_each
from headrace.core.errors import JobLedgerUnavailableError, ModelNotFoundError
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.job import NewJob
from headrace.jobs.known_models import CACHED_S, KnownModels, check_model
from headrace.jobs.worker_registry import WorkerInfo
from headrace.testing import ManualClock, ManualWallClock, MemoryJobLedger

REPORTS = {
    "default": frozenset({"churn", "churn@1", "fraud", "fraud@3"}),
    "gpu": frozenset({"whisper", "whisper@1"}),
}


@for_each(
    ("model", "queue"), [("churn", "default"), ("fraud@3", "default"), ("whisper", "gpu"), ("", "default")]
)
def test_reported_model_is_accepted(model, queue):
    assert check_model(NewJob(model=model, queue=queue), REPORTS) == ()


@for_each(
    ("model", "message"),
    [
        (
            "chrun",
            (
                "model chrun: no worker of queue default has reported it in the last 30 days; "
                "did you mean churn?; before the first job of a new model, start a worker with it; "
                "known models: churn, fraud"
            ),
        ),
        (
            "zzz",
            "30 days; before the first job of a new model, start a worker with it; known models: churn, ",
        ),
        ("whisper", "30 days; submit it to queue gpu, where workers have it; known models: churn, fraud"),
        ("churn@2", "30 days; did you mean churn@1?; before the first job"),
        ("fraud@x", "known models: fraud@3"),
    ],
)
def test_model_that_no_worker_of_the_queue_has_is_refused(model, message):
    with pytest.raises(ModelNotFoundError) as caught:
        check_model(NewJob(model=model), REPORTS)
    assert message in str(caught.value)


@for_each(
    ("model", "queue", "reports", "warnings"),
    [
        (
            "churn",
            "default",
            {},
            ["no worker has served queue default in the last 30 days: the job waits for one"],
        ),
        (
            "churn",
            "defaults",
            REPORTS,
            [
                (
                    "no worker has served queue defaults in the last 30 days: the job waits for one; "
                    "did you mean default?; served queues: default, gpu"
                )
            ],
        ),
        (
            "whisper2",
            "night",
            REPORTS,
            [
                (
                    "no worker has served queue night in the last 30 days: the job waits for one; "
                    "served queues: default, gpu"
                ),
                (
                    "no worker of any queue has model whisper2; did you mean whisper?; "
                    "known models: churn, fraud, whisper"
                ),
            ],
        ),
    ],
)
def test_queue_that_no_worker_serves_is_accepted_with_a_warning(model, queue, reports, warnings):
    assert list(check_model(NewJob(model=model, queue=queue), reports)) == warnings


def test_long_lists_are_cut():
    reports = {"default": frozenset(f"m{number:03}" for number in range(1000))}
    with pytest.raises(ModelNotFoundError) as caught:
        check_model(NewJob(model="x"), reports)
    assert len(str(caught.value)) < 400


@pytest.fixture
def ledger():
    made = MemoryJobLedger(ManualWallClock())
    made.start()
    yield made
    made.stop()


def test_only_refusals_and_old_answers_are_read_again(ledger):
    """A worker's first report counts at once."""
    clock = ManualClock()
    known = KnownModels(ledger, clock=clock)
    ledger.register_worker(WorkerInfo("w", queues=("default",), models=("churn",)))
    with pytest.raises(ModelNotFoundError):
        known.check(NewJob(model="fraud"))
    ledger.register_worker(WorkerInfo("w", queues=("default",), models=("fraud",)))
    assert known.check(NewJob(model="fraud")) == ()
    ledger.unavailable = True
    assert known.check(NewJob(model="fraud")) == ()
    clock.advance(CACHED_S + 0.1)
    with pytest.raises(JobLedgerUnavailableError):
        known.check(NewJob(model="fraud"))


def test_queue_whose_workers_start_with_its_jobs_causes_no_warning(ledger):
    known = KnownModels(ledger, scaled_queues=frozenset({"default"}))
    assert known.check(NewJob(model="churn")) == ()
    assert known.check(NewJob(model="churn", queue="night")) != ()
    ledger.register_worker(WorkerInfo("w", queues=("default",), models=("churn",)))
    with pytest.raises(ModelNotFoundError):
        known.check(NewJob(model="fraud"))


@for_each(
    ("queues", "scopes", "named"),
    [
        (None, {Scope.SUBMIT}, {"night"}),
        ({"night", "default", "evening"}, {Scope.SUBMIT}, {"night", "default"}),
        (None, {Scope.SUBMIT, Scope.MONITOR}, {"night", "default", "gpu"}),
        (None, {Scope.SUBMIT, Scope.OPERATE}, {"night", "default", "gpu"}),
    ],
)
def test_messages_name_queues_of_the_key_or_all_with_monitor(ledger, queues, scopes, named):
    """A submission to a queue without a report, and one to a queue without the model."""
    for queue, models in (REPORTS | {"night": {"own"}}).items():
        ledger.register_worker(WorkerInfo("w", queues=(queue,), models=tuple(sorted(models))))
    key = ApiKey("a", "a", frozenset(scopes), queues=queues and frozenset(queues))
    known = KnownModels(ledger)
    warnings = known.check(NewJob(model="nothing", queue="evening"), key)
    with pytest.raises(ModelNotFoundError) as caught:
        known.check(NewJob(model="whisper", queue="night"), key)
    shown = f"{warnings} {caught.value}"
    assert {queue for queue in ("night", "default", "gpu") if queue in shown} == named
    assert ("fraud" in shown) == ("default" in named)
    assert "known models: own" in str(caught.value)


def test_messages_name_only_permitted_models_and_queues(ledger):
    for queue, models in REPORTS.items():
        ledger.register_worker(WorkerInfo("w", queues=(queue,), models=tuple(sorted(models))))
    key = ApiKey(
        "a", "a", frozenset(Scope), queues=frozenset({"default", "night"}), models=frozenset({"churn"})
    )
    known = KnownModels(ledger)
    assert known.check(NewJob(model="churn"), key) == ()
    with pytest.raises(ModelNotFoundError) as caught:
        known.check(NewJob(model="churn@7"), key)
    warnings = known.check(NewJob(model="churn", queue="night"), key)
    shown = f"{caught.value} {warnings}"
    assert "served queues: default" in shown
    assert "churn@1" in shown
    for hidden in ("fraud", "whisper", "gpu"):
        assert hidden not in shown
