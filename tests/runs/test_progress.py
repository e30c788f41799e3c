from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.formats.contract import BlockSelection
from headrace.runs.items import Cursor, ScoredBatch, ScoredSpan
from headrace.runs.work import RunProgress


def test_counters_follow_delivered_batches():
    """Broken objects are not records: ``records == rows_out + rows_failed`` always holds."""
    at = Position("memory://b/a.csv")
    failures = (Failure(at, FailureKind.DECODE, "bad"), Failure(at, FailureKind.OBJECT, "cut"))
    batch = ScoredBatch((ScoredSpan(BlockSelection(Block(at), 0, 3), failures),), {}, 5, Cursor())
    progress = RunProgress()
    for _ in range(2):
        progress.batch_delivered(batch)
    assert (progress.records, progress.rows_out, progress.rows_failed) == (8, 6, 2)
    assert (progress.objects_broken, progress.batches) == (2, 2)


def test_first_failures_are_kept_until_begin():
    def batch(number, kind):
        at = Position("memory://b/a.csv", record=number)
        failures = (Failure(at, kind, f"{kind} {number}"),)
        return ScoredBatch((ScoredSpan(BlockSelection(Block(at), 0, 0), failures),), {}, 1, Cursor())

    progress = RunProgress()
    for number in range(4):
        progress.batch_delivered(batch(number, FailureKind.OBJECT if number % 2 else FailureKind.MODEL))
    assert progress.first_failure
    assert progress.first_broken
    assert (progress.first_failure.why, progress.first_broken.why) == ("model 0", "object 1")
    progress.begin(objects_before=0, bytes_before=0)
    assert (progress.first_failure, progress.first_broken) == (None, None)


def test_earlier_work_is_not_in_the_rate():
    progress = RunProgress(records=7, bytes_read=100, objects_read=3)
    progress.begin(objects_before=3, bytes_before=90)
    assert (progress.records_before, progress.objects_before, progress.bytes_before) == (7, 3, 90)
    assert (progress.bytes_read, progress.objects_read) == (0, 0)
    progress.set_read(5, 1)
    assert (progress.bytes_read, progress.objects_read) == (5, 1)
