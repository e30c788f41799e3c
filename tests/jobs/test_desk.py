"""The desk: quotas that hold while submissions arrive, payloads that are never lost or left, places in one spelling."""

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
    QueueFullError,
    StoppedError,
)
from headrace.jobs.access import JobKey, Scope
from headrace.jobs.desk import DeskSettings, JobDesk, allowed
from headrace.jobs.intake import Submission
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import JobFilter
from headrace.jobs.places import Allowed
from headrace.storage import Stores
from headrace.testing import ManualWallClock, MemoryJobLedger, check_service
from jobs.desk_support import ANY_PLACE

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
def desk(ledger, stores):
    made = JobDesk(ledger, stores, DeskSettings("memory://s"))
    made.start()
    yield made
    made.stop()


def stored(stores):
    return [info.uri for info in stores.for_uri("memory://s").list("memory://s/")]


def test_it_lives_as_every_service_does(ledger, stores):
    check_service(lambda: JobDesk(ledger, stores, DeskSettings("memory://s")))


def test_a_quota_holds_however_many_submit_at_once(desk, ledger):
    key = JobKey("shop", "shop", frozenset({Scope.SUBMIT}), pending_max=10)
    begin = threading.Barrier(16)

    def submit(_):
        begin.wait(WAIT_S)
        try:
            return desk.submit(key, INLINE).result(WAIT_S).created
        except QueueFullError:
            return False

    with ThreadPoolExecutor(16) as pool:
        made = sum(pool.map(submit, range(16)))
    assert made == len(ledger.find(JobFilter()).jobs)
    assert 1 <= made <= 10
    while made < 10:
        desk.submit(key, INLINE).result(WAIT_S)
        made += 1
    with pytest.raises(QueueFullError):
        desk.submit(key, INLINE)
    assert not desk._arriving


def test_what_was_stored_for_nothing_is_removed(desk, ledger, stores):
    with pytest.raises(LimitError):
        desk.submit(JobKey("a", "a", frozenset({Scope.SUBMIT}), inline_bytes_max=3), INLINE)
    assert stored(stores) == []
    desk._submitter.stop()
    with pytest.raises(StoppedError):
        desk.submit(ANY_PLACE, INLINE)
    desk.stop()
    assert stored(stores) == []
    assert not desk._arriving


def test_where_it_is_not_known_whether_it_was_queued_the_payload_stays(desk, ledger, stores):
    """A commit whose answer was lost may have been taken: its job must find its payload."""
    ledger.submit = lambda jobs: (_ for _ in ()).throw(JobLedgerUnavailableError("the answer was lost"))
    with pytest.raises(JobLedgerUnavailableError):
        desk.submit(ANY_PLACE, INLINE).result(WAIT_S)
    desk.stop()
    assert len(stored(stores)) == 1


def test_places_are_told_in_one_spelling(desk, ledger):
    made = desk.submit(
        ANY_PLACE, Submission(NewJob(model="m", input_uri="S3://in/k", output_uri="S3://out"))
    ).result(WAIT_S)
    assert (made.job.spec.input_uri, made.job.spec.output_uri) == ("s3://in/k", "s3://out/")


def test_a_place_of_the_doors_own_is_not_the_callers_to_name():
    key = JobKey("a", "a", frozenset({Scope.SUBMIT}), inputs=Allowed(prefixes=("s3://in",)))
    job = NewJob(model="m", input_uri="s3://in/k", output_uri="s3://door/out")
    with pytest.raises(ForbiddenError):
        allowed(key, job)
    assert allowed(key, job, output_is_ours=True).output_uri == "s3://door/out"
    assert allowed(key, NewJob(model="m", tenant="other")).tenant == "a"


def test_options_are_checked_before_anything_is_stored(desk, stores):
    wrong = Submission(NewJob(model="m", options={"joyn": "input"}), b"x")
    with pytest.raises(ConfigError, match="did you mean 'join'"):
        desk.submit(ANY_PLACE, wrong)
    assert stored(stores) == []


def test_whom_to_notify_is_checked_before_anything_is_stored(ledger, stores):
    told = []

    def check(whom):
        told.append(whom)
        raise DataError("notify: no")

    desk = JobDesk(ledger, stores, DeskSettings("memory://s"), check_notify=check)
    desk.start()
    with pytest.raises(DataError):
        desk.submit(ANY_PLACE, Submission(NewJob(model="m", notify=({"kind": "webhook"},)), b"x"))
    desk.stop()
    assert told == [{"kind": "webhook"}]
    assert stored(stores) == []


def test_a_completed_job_is_not_retried(desk, ledger):
    job = desk.submit(ANY_PLACE, INLINE).result(WAIT_S).job
    desk.cancel(ANY_PLACE, job.id)
    assert desk.retry(ANY_PLACE, job.id).state == "pending"
    with pytest.raises(JobStateError):
        desk.retry(ANY_PLACE, job.id)


def test_how_many_workers_are_wanted_is_never_guessed(desk, ledger):
    with pytest.raises(DataError):
        desk.scale(ANY_PLACE, "q", 0)
    ledger.away = True
    with pytest.raises(JobLedgerUnavailableError):
        desk.scale(ANY_PLACE, "q")
    with pytest.raises(JobLedgerUnavailableError):
        desk.check_ready()


@pytest.fixture
def placing(ledger, stores):
    """A desk that knows where data lives, and the URIs that it asked for."""
    asked = []

    def region_of(uri):
        asked.append(uri)
        return "eu" if uri.startswith(("s3://in", "memory://s/")) else None

    made = JobDesk(ledger, stores, DeskSettings("memory://s"), region_of=region_of)
    made.start()
    yield made, asked
    made.stop()


def test_a_job_goes_where_its_input_lives(placing):
    desk, asked = placing
    told = desk.submit(ANY_PLACE, Submission(NewJob(model="m", input_uri="s3://in/k"))).result(WAIT_S)
    assert told.job.spec.region == "eu"
    ours = desk.submit_ours(NewJob(model="m", input_uri="s3://elsewhere/k")).result(WAIT_S)
    assert ours.job.spec.region == ""
    assert asked == ["s3://in/k", "s3://elsewhere/k"]


def test_the_submitters_region_goes_first(placing):
    desk, asked = placing
    job = NewJob(model="m", input_uri="s3://in/k", region="us")
    assert desk.submit(ANY_PLACE, Submission(job)).result(WAIT_S).job.spec.region == "us"
    assert desk.submit_ours(job).result(WAIT_S).job.spec.region == "us"
    assert asked == []


def test_what_comes_with_the_submission_goes_anywhere_and_an_upload_where_it_lies(placing, stores):
    desk, _ = placing
    assert desk.submit(ANY_PLACE, INLINE).result(WAIT_S).job.spec.region == ""
    upload = desk.begin_upload(ANY_PLACE)
    with desk.open_upload(ANY_PLACE, upload.id) as writer:
        writer.write(b"1,2\n")
    job = NewJob(model="m", content_type="text/csv", owned_input=True)
    assert desk.submit(ANY_PLACE, Submission(job, upload=upload.id)).result(WAIT_S).job.spec.region == "eu"


def test_without_rules_a_job_has_no_region(desk):
    told = desk.submit(ANY_PLACE, Submission(NewJob(model="m", input_uri="s3://in/k"))).result(WAIT_S)
    assert told.job.spec.region == ""
