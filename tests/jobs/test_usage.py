"""The bytes of keys per day: blocks of a process, the limit, the change of the day, and transfers."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.core.errors import JobLedgerUnavailableError, LimitError, OverloadedError, ResourceNotFoundError
from headrace.jobs.access import ApiKey, Scope
from headrace.jobs.job import NewJob
from headrace.jobs.service import JobService, JobServiceSettings
from headrace.jobs.submission import Submission
from headrace.jobs.usage import BLOCK_BYTES_MAX, ByteUsage
from headrace.storage import Stores
from headrace.testing import ManualClock, ManualWallClock, MemoryJobLedger

DAY_S = 86_400
NOON_MS = 20_000 * DAY_S * 1000 + DAY_S * 500


class CountingLedger(MemoryJobLedger):
    """A ledger that counts the transactions of usage."""

    uses = 0

    def use_bytes(self, key_name, nbytes, *, limit):
        self.uses += 1
        return super().use_bytes(key_name, nbytes, limit=limit)


class Time:
    """The clock of the ledger and the clock of a process, which pass together."""

    def __init__(self):
        self.wall = ManualWallClock(NOON_MS)
        self.monotonic = ManualClock()

    def advance(self, seconds):
        self.monotonic.advance(seconds)
        self.wall.advance(seconds * 1000)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def ledger(time):
    made = CountingLedger(time.wall)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def usage(ledger, time):
    return ByteUsage(ledger, time.monotonic)


def key_with(limit, name="web"):
    return ApiKey(name, "shop", frozenset(Scope), bytes_per_day_max=limit)


def use_all(usage, key, nbytes=1):
    """Use bytes until they are refused, and return their number."""
    used = 0
    while True:
        try:
            usage.use(key, nbytes)
        except OverloadedError:
            return used
        used += nbytes


def test_limit_is_used_up_exactly_in_few_transactions(usage, ledger):
    assert use_all(usage, key_with(10_000)) == 10_000
    # 100 blocks, one block that does not fit, and the byte that does not.
    assert ledger.uses == 102


def test_large_limit_has_blocks_of_limited_size(usage, ledger):
    key = key_with(1 << 40)
    for _ in range(100):
        usage.use(key, BLOCK_BYTES_MAX // 100)
    assert ledger.uses == 1
    usage.use(key, 7 * BLOCK_BYTES_MAX)
    assert ledger.uses == 2


def test_refusal_names_key_limit_and_time(usage):
    key = key_with(1000)
    usage.use(key, 990)
    with pytest.raises(OverloadedError) as caught:
        usage.use(key, 20)
    assert str(caught.value) == (
        "20 more bytes exceed the limit of 1000 bytes per day of API key 'web': "
        "send them after 2024-10-05 00:00 UTC"
    )
    assert caught.value.retry_after_s == DAY_S / 2
    usage.use(key, 10)


def test_payload_above_the_whole_limit_is_refused_for_good(usage, ledger):
    with pytest.raises(
        LimitError, match="1001 bytes exceed the limit of 1000 bytes per day of API key 'web'"
    ):
        usage.use(key_with(1000), 1001)
    assert ledger.uses == 0


def test_key_without_a_limit_costs_nothing(usage, ledger):
    ledger.unavailable = True
    usage.use(ApiKey("free", "shop", frozenset(Scope)), 1 << 40)
    assert usage.reserve(ApiKey("free", "shop", frozenset(Scope)), 1 << 40) is None


def test_block_ends_with_its_day(usage, time):
    key = key_with(1000)
    usage.use(key, 980)
    time.advance(DAY_S / 2 - 1)
    usage.use(key, 2)
    time.advance(1)
    # The 8 bytes that were left of yesterday count no more.
    assert use_all(usage, key) == 1000
    time.advance(DAY_S)
    assert use_all(usage, key) == 1000


def test_day_that_changes_before_the_process_notices_begins_anew(ledger, time):
    key = key_with(1000)
    stopped_clock = ByteUsage(ledger, ManualClock())
    stopped_clock.use(key, 980)
    stopped_clock.use(key, 1)
    time.advance(DAY_S)
    stopped_clock.use(key, 20)
    # One byte is left in the process; the 9 bytes that were left of yesterday are not used.
    assert use_all(ByteUsage(ledger, time.monotonic), key) == 979


def test_new_process_goes_on_with_the_count(usage, ledger, time):
    key = key_with(1000)
    usage.use(key, 500)
    restarted = ByteUsage(ledger, time.monotonic)
    assert 490 <= use_all(restarted, key) <= 500


def test_processes_and_threads_share_the_limit(ledger, time):
    key, processes = key_with(2000), [ByteUsage(ledger, time.monotonic) for _ in range(2)]
    with ThreadPoolExecutor(8) as pool:
        used = sum(pool.map(lambda number: use_all(processes[number % 2], key, 7), range(8)))
    # What is left in each process is less than one payload.
    assert 2000 - 2 * 7 - 20 <= used <= 2000


def test_transfer_returns_what_did_not_arrive(usage, ledger):
    key = key_with(1000)
    transfer = usage.reserve(key, 900)
    with pytest.raises(OverloadedError):
        usage.reserve(key, 200)
    transfer.receive(100)
    transfer.close(50)
    transfer.close()
    # Others can use the returned bytes at once, except for one block.
    assert ledger._table.usage["web"][1] <= 160
    assert use_all(usage, key) == 850


def test_transfer_of_unknown_size_counts_what_arrives(usage):
    key = key_with(1000)
    transfer = usage.reserve(key, None)
    for _ in range(9):
        transfer.receive(100)
    with pytest.raises(OverloadedError):
        transfer.receive(101)
    transfer.close()
    # The refused bytes arrived, too.
    assert use_all(usage, key) == 0
    with pytest.raises(OverloadedError):
        usage.reserve(key, None)


def test_transfer_that_lasts_into_the_next_day_returns_nothing_to_it(usage, time):
    key = key_with(1000)
    transfer = usage.reserve(key, 900)
    time.advance(DAY_S)
    assert use_all(usage, key) == 1000
    transfer.close()
    assert use_all(usage, key) == 0


def test_outage_keeps_unused_bytes_counted(usage, ledger):
    key = key_with(1000)
    transfer = usage.reserve(key, 900)
    ledger.unavailable = True
    transfer.close()
    with pytest.raises(JobLedgerUnavailableError):
        use_all(usage, key)
    ledger.unavailable = False
    assert use_all(usage, key) <= 110


# The service


@pytest.fixture
def service(ledger):
    made = JobService(ledger, Stores(), JobServiceSettings("memory://s"))
    made.start()
    yield made
    made.stop()


def submission(payload, **spec):
    return Submission(NewJob(model="m", owned_input=True, **spec), payload)


def test_payloads_of_submissions_count(service, ledger):
    key = key_with(100)
    service.submit(key, submission(b"x" * 60)).result(20)
    with pytest.raises(OverloadedError):
        service.submit(key, submission(b"x" * 41))
    service.submit(key, submission(b"x" * 40)).result(20)
    service.submit(key_with(100, "other"), submission(b"x" * 100)).result(20)


def test_repeated_submission_finds_its_job_beyond_the_limit(service):
    key = key_with(100)
    again = submission(b"x" * 60, idempotency_key="k", body_digest="d")
    job = service.submit(key, again).result(20).job
    reply = service.submit(key, again).result(20)
    assert (reply.job.id, reply.created) == (job.id, False)


def test_upload_is_counted_once(service):
    key = key_with(100)
    upload = service.begin_upload(key)
    assert upload.url == ""
    with service.open_upload(key, upload.id, 90) as writer:
        writer.write(b"x" * 90)
    named = Submission(NewJob(model="m", owned_input=True, content_type="x/y"), upload=upload.id)
    assert service.submit(key, named).result(20).created
    with pytest.raises(OverloadedError):
        service.submit(key, submission(b"x" * 11))


def test_upload_that_cannot_begin_counts_nothing(service):
    key = key_with(100)
    with pytest.raises(LimitError):
        service.open_upload(key, service.begin_upload(key).id, 101)
    for _ in range(3):
        with pytest.raises(ResourceNotFoundError, match="no upload"):
            service.open_upload(key, "0" * 36, 90)
    service.submit(key, submission(b"x" * 100)).result(20)
