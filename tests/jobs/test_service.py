"""The job service: quotas under concurrency, stored payloads, normalized URIs, and regions."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import (
    ConfigError,
    DataError,
    ForbiddenError,
    JobLedgerUnavailableError,
    JobStateError,
    LimitError,
    ModelNotFoundError,
    QueueFullError,
    StoppedError,
)
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.intake import authorize_job
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter, Page
from headrace.jobs.paths import UriAllowList
from headrace.jobs.pools import ScalingDecision
from headrace.jobs.service import JobService, JobServiceSettings
from headrace.jobs.submission import Submission
from headrace.jobs.worker_registry import WorkerInfo
from headrace.storage import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger, check_service
from jobs.service_support import TEST_KEY

WAIT_S = 20.0
INLINE = Submission(NewJob(model="m", owned_input=True), b"payload")


@pytest.fixture
def ledger():
    made = MemoryJobLedger(ManualWallClock())
    made.start()
    yield made
    made.stop()


@pytest.fixture
def stores():
    return Stores()


@pytest.fixture
def service(ledger, stores):
    made = JobService(ledger, stores, JobServiceSettings("memory://s"))
    made.start()
    yield made
    made.stop()


def stored(stores):
    return [info.uri for info in stores.for_uri("memory://s").list("memory://s/")]


def test_job_service_is_a_service(ledger, stores):
    check_service(lambda: JobService(ledger, stores, JobServiceSettings("memory://s")))


def test_quota_holds_for_concurrent_submissions(service, ledger):
    key = ApiKey("shop", "shop", frozenset({Scope.SUBMIT}), pending_max=10)
    begin = threading.Barrier(16)

    def submit(_):
        begin.wait(WAIT_S)
        try:
            return service.submit(key, INLINE).result(WAIT_S).created
        except QueueFullError:
            return False

    with ThreadPoolExecutor(16) as pool:
        made = sum(pool.map(submit, range(16)))
    assert made == len(ledger.find(JobFilter()).jobs)
    assert 1 <= made <= 10
    while made < 10:
        service.submit(key, INLINE).result(WAIT_S)
        made += 1
    with pytest.raises(QueueFullError):
        service.submit(key, INLINE)
    assert not service._arriving


def test_jobs_get_a_deadline_after_their_delay(service, ledger):
    day = 86_400

    def deadline_s(job):
        return service.submit(TEST_KEY, Submission(job, b"x")).result(WAIT_S).job.spec.deadline_s

    assert deadline_s(NewJob(model="m")) == 7 * day
    assert deadline_s(NewJob(model="m", delay_ms=3_000 * day)) == 10 * day
    assert deadline_s(NewJob(model="m", deadline_s=5)) == 5
    internal = service.submit_internal(NewJob(model="m", input_uri="s3://in/k")).result(WAIT_S)
    assert internal.job.spec.deadline_s == 7 * day


def test_unused_payload_is_deleted(service, ledger, stores):
    with pytest.raises(LimitError):
        service.submit(ApiKey("a", "a", frozenset({Scope.SUBMIT}), inline_bytes_max=3), INLINE)
    assert stored(stores) == []
    service._submitter.stop()
    with pytest.raises(StoppedError):
        service.submit(TEST_KEY, INLINE)
    service.stop()
    assert stored(stores) == []
    assert not service._arriving


def test_payload_stays_if_the_queueing_is_unknown(service, ledger, stores):
    """A commit with a lost reply may have queued the job, and the job needs its payload."""
    ledger.submit = lambda jobs: (_ for _ in ()).throw(JobLedgerUnavailableError("the answer was lost"))
    with pytest.raises(JobLedgerUnavailableError):
        service.submit(TEST_KEY, INLINE).result(WAIT_S)
    service.stop()
    assert len(stored(stores)) == 1


def test_uris_are_normalized(service, ledger):
    made = service.submit(
        TEST_KEY, Submission(NewJob(model="m", input_uri="S3://in/k", output_uri="S3://out"))
    ).result(WAIT_S)
    assert (made.job.spec.input_uri, made.job.spec.output_uri) == ("s3://in/k", "s3://out/")


def test_trusted_output_is_not_checked_against_the_key():
    key = ApiKey("a", "a", frozenset({Scope.SUBMIT}), inputs=UriAllowList(prefixes=("s3://in",)))
    job = NewJob(model="m", input_uri="s3://in/k", output_uri="s3://other/out")
    with pytest.raises(ForbiddenError):
        authorize_job(key, job)
    assert authorize_job(key, job, trusted_output=True).output_uri == "s3://other/out"
    assert authorize_job(key, NewJob(model="m", tenant="other")).tenant == "a"


def test_too_long_name_of_a_result_is_refused_at_submission():
    with pytest.raises(ConfigError, match="longer than 1024 bytes"):
        authorize_job(
            ApiKey("a", "a", frozenset({Scope.SUBMIT})),
            NewJob(model="m", output_uri="s3://out/" + "k" * 1010, key="day 0.csv"),
            trusted_output=True,
        )


def test_model_that_no_worker_reported_is_refused_before_anything_is_stored(service, ledger, stores):
    job = NewJob(model="old", owned_input=True, idempotency_key="k", body_digest="d")
    first = service.submit(TEST_KEY, Submission(job, b"payload")).result(WAIT_S)
    assert first.job.warnings == (
        "no worker has served queue default in the last 30 days: the job waits for one",
    )
    ledger.register_worker(WorkerInfo("w", queues=("default",), models=("new",)))
    # A repeated submission gets its job, whatever the workers have by now.
    assert service.submit(TEST_KEY, Submission(job, b"payload")).result(WAIT_S).job.id == first.job.id
    before = stored(stores)
    for refused in (INLINE, Submission(NewJob(model="old"), b"payload")):
        with pytest.raises(ModelNotFoundError, match="known models: new"):
            service.submit(TEST_KEY, refused)
    assert stored(stores) == before
    assert not service._arriving
    assert service.submit(TEST_KEY, Submission(NewJob(model="new"), b"x")).result(WAIT_S).job.warnings == ()


def test_job_of_an_event_is_queued_with_a_logged_warning(service, ledger, caplog):
    ledger.register_worker(WorkerInfo("w", queues=("default",), models=("new",)))
    job = NewJob(model="old", input_uri="s3://in/k", correlation_id="trigger:t")
    made = service.submit_internal(job).result(WAIT_S).job
    assert ledger.get(made.id).spec.model == "old"
    (record,) = caplog.records
    assert "model old: no worker of queue default has reported it" in record.getMessage()
    assert record.correlation_id == "trigger:t"


def test_options_are_checked_before_anything_is_stored(service, stores):
    wrong = Submission(NewJob(model="m", options={"joyn": "input"}), b"x")
    with pytest.raises(ConfigError, match="did you mean 'join'"):
        service.submit(TEST_KEY, wrong)
    assert stored(stores) == []


def test_notify_is_checked_before_anything_is_stored(ledger, stores):
    checked = []

    def check(subscription):
        checked.append(subscription)
        raise DataError("notify: no")

    service = JobService(ledger, stores, JobServiceSettings("memory://s"), prepare_notify=check)
    service.start()
    with pytest.raises(DataError):
        service.submit(TEST_KEY, Submission(NewJob(model="m", notify=({"kind": "webhook"},)), b"x"))
    service.stop()
    assert checked == [{"kind": "webhook"}]
    assert stored(stores) == []


def test_completed_job_is_not_retried(service, ledger):
    job = service.submit(TEST_KEY, INLINE).result(WAIT_S).job
    service.cancel(TEST_KEY, job.id)
    assert service.retry(TEST_KEY, job.id).state == "pending"
    with pytest.raises(JobStateError):
        service.retry(TEST_KEY, job.id)


def test_queue_is_read_with_the_scope_read_or_monitor(service):
    for scope in (Scope.READ, Scope.MONITOR):
        assert service.queue(ApiKey("k", "t", frozenset({scope})), "q").counts.backlog == 0
    with pytest.raises(ForbiddenError):
        service.queue(ApiKey("k", "t", frozenset({Scope.SUBMIT})), "q")


def test_queue_raises_without_the_ledger(service, ledger):
    ledger.unavailable = True
    with pytest.raises(JobLedgerUnavailableError):
        service.queue(TEST_KEY, "q")
    with pytest.raises(JobLedgerUnavailableError):
        service.check_ready()


@pytest.fixture
def regional_service(ledger, stores):
    """Return a service with region rules, and the list of URIs that the rules received."""
    uris = []

    def region_of(uri):
        uris.append(uri)
        return "eu" if uri.startswith(("s3://in", "memory://s/")) else None

    made = JobService(ledger, stores, JobServiceSettings("memory://s"), region_of=region_of)
    made.start()
    yield made, uris
    made.stop()


def test_job_gets_the_region_of_its_input(regional_service):
    service, uris = regional_service
    reply = service.submit(TEST_KEY, Submission(NewJob(model="m", input_uri="s3://in/k"))).result(WAIT_S)
    assert reply.job.spec.region == "eu"
    internal = service.submit_internal(NewJob(model="m", input_uri="s3://elsewhere/k")).result(WAIT_S)
    assert internal.job.spec.region == ""
    assert uris == ["s3://in/k", "s3://elsewhere/k"]


def test_submitted_region_takes_precedence(regional_service):
    service, uris = regional_service
    job = NewJob(model="m", input_uri="s3://in/k", region="us")
    assert service.submit(TEST_KEY, Submission(job)).result(WAIT_S).job.spec.region == "us"
    assert service.submit_internal(job).result(WAIT_S).job.spec.region == "us"
    assert uris == []


def test_inline_payload_has_no_region_and_an_upload_has_one(regional_service, stores):
    service, _ = regional_service
    assert service.submit(TEST_KEY, INLINE).result(WAIT_S).job.spec.region == ""
    upload = service.begin_upload(TEST_KEY)
    with service.open_upload(TEST_KEY, upload.id) as writer:
        writer.write(b"1,2\n")
    job = NewJob(model="m", content_type="text/csv", owned_input=True)
    assert service.submit(TEST_KEY, Submission(job, upload=upload.id)).result(WAIT_S).job.spec.region == "eu"


def test_without_rules_a_job_has_no_region(service):
    reply = service.submit(TEST_KEY, Submission(NewJob(model="m", input_uri="s3://in/k"))).result(WAIT_S)
    assert reply.job.spec.region == ""


def test_only_operators_drain_workers_and_only_monitors_see_them(service, ledger):
    ledger.register_worker(WorkerInfo("w", queues=("default",)))
    monitor = ApiKey("scaler", "", frozenset({Scope.MONITOR}))
    plain = ApiKey("shop", "shop", frozenset({Scope.READ, Scope.SUBMIT}))
    assert [record.info.name for record in service.workers(monitor)] == ["w"]
    for act in (service.workers, lambda key: service.worker(key, "w")):
        with pytest.raises(ForbiddenError):
            act(plain)
    for key in (plain, monitor):
        with pytest.raises(ForbiddenError):
            service.set_worker_draining(key, "w", draining=True)
    assert not ledger.worker("w").draining


def test_only_monitors_see_pools_and_decisions(service, ledger):
    assert ledger.control_pool("gpu", "c", 30_000)
    assert ledger.record_decision(ScalingDecision("gpu", "c", 1, 2, "why"))
    monitor = ApiKey("scaler", "", frozenset({Scope.MONITOR}))
    plain = ApiKey("shop", "shop", frozenset({Scope.READ, Scope.SUBMIT}))
    assert [pool.name for pool in service.pools(monitor)] == ["gpu"]
    for pool, wanted in (("", [2]), ("gpu", [2]), ("other", [])):
        page = service.decisions(monitor, pool=pool)
        assert [decision.wanted for decision in page.decisions] == wanted
    assert service.pool_decision(monitor, "gpu") == service.decisions(monitor, pool="gpu").decisions[0]
    for act in (service.pools, service.decisions, lambda key: service.pool_decision(key, "gpu")):
        with pytest.raises(ForbiddenError):
            act(plain)


@pytest.mark.parametrize("limit", [-1, 0, 501])
def test_pages_of_decisions_have_a_limit(service, limit):
    with pytest.raises(LimitError, match="limit: must be from 1 to 500"):
        service.decisions(TEST_KEY, limit=limit)


def test_pages_without_jobs_are_skipped_for_a_while(service, ledger, monkeypatch):
    ledger.submit([NewJob()])
    pages = [Page((), "1"), Page((), "2"), ledger.find(JobFilter())]
    asked = []

    def find(job_filter, *, after, limit):
        asked.append(after)
        return pages[len(asked) - 1]

    monkeypatch.setattr(ledger, "find", find)
    assert len(service.find(TEST_KEY, JobFilter(), after="0", limit=5).jobs) == 1
    assert asked == ["0", "1", "2"]
    asked.clear()
    monkeypatch.setattr("headrace.jobs.service.FIND_S_MAX", 0.0)
    assert service.find(TEST_KEY, JobFilter(), after="0", limit=5) == Page((), "1")
