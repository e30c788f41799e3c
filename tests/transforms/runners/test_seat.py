"""A worker that an engine brings tasks to: once, twice, or when its run is over."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.core.errors import LedgerError
from headrace.testing import ManualClock
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.runners.mailbox import Mailbox
from headrace.transforms.runners.messages import Assignment, error_of
from headrace.transforms.runners.seat import WRITTEN_EVERY_S, Seat
from headrace.transforms.runners.worker import Worker
from transforms.support import IN, OUT, Breaking, made, outputs, put, rows, settings_of, transform

SETTINGS = settings_of(tasks={"task_objects_max": 1})


class Opener:
    """Opens a worker over these stores, with a predictor that is started."""

    def __init__(self, stores, predictor) -> None:
        self.stores, self.predictor, self.opened, self.closed = stores, predictor, 0, 0

    @contextmanager
    def __call__(self, tell, region=None) -> Iterator[Worker]:
        self.opened += 1
        yield Worker(
            self.predictor, tell, stores=self.stores, destination=OUT, settings=SETTINGS, region=region
        )
        self.closed += 1


@pytest.fixture
def ledger(stores, shared) -> TransformLedger:
    return begun(stores, shared, rows_each=9)


def begun(stores, shared, *, rows_each: int) -> TransformLedger:
    """The ledger of a run that is begun, over three objects, and was drained before it did anything."""
    put(stores, {f"{n}.csv": rows(rows_each, n) for n in range(3)})
    run = made(stores, predictor=shared, settings=SETTINGS)
    run.drain()
    assert run.execute().status == "drained"
    return TransformLedger(stores.for_uri(OUT), OUT)


def seat_of(stores, predictor, **more) -> tuple[Seat, Opener]:
    opener = Opener(stores, predictor)
    return Seat(opener, "pipeline", **more), opener


def test_what_is_brought_is_done_once(stores, shared, ledger):
    seat, opener = seat_of(stores, shared, region="eu")
    assert seat.do(Assignment((0, 1), run=ledger.run())).done == (0, 1)
    before = {n: r.attempt for n, r in ledger.tasks().items()}
    assert seat.do(Assignment((0, 1, 2), run=ledger.run())).done == (0, 1, 2)
    again, _ = seat_of(stores, shared)
    assert again.do(Assignment((1, 2), run=ledger.run())).done == ()
    after = ledger.tasks()
    assert {n: after[n].attempt for n in before} == before
    assert {record.region for record in after.values()} == {"eu"}
    assert opener.opened == 1
    seat.close()
    seat.close()
    assert opener.closed == 1
    report = made(stores, predictor=shared, settings=SETTINGS, if_exists="resume").execute()
    assert (report.status, report.records_in) == ("complete", 27)
    there = outputs(stores)
    transform(stores, predictor=shared, settings=SETTINGS, destination="memory://out/plain/")
    assert there == outputs(stores, "memory://out/plain/")


def test_its_letters_say_what_it_does_and_has_done(stores, shared, ledger):
    clock, mailbox, seen = ManualClock(), Mailbox(ledger), []

    def look() -> None:
        clock.advance(WRITTEN_EVERY_S)
        seen.extend(mailbox.read())

    seat, _ = seat_of(stores, Breaking(shared, at=1, action=look), clock=clock)
    seat.do(Assignment((0, 1), run=ledger.run()))
    assert [(letter.doing, letter.done) for letter in seen] == [((0, 1), ())]
    (last,) = mailbox.read()
    assert (last.pipeline, last.doing, last.done, last.tally.records) == ("pipeline", (), (0, 1), 18)


def test_it_begins_nothing_while_its_run_drains(stores, shared, ledger):
    seat, _ = seat_of(stores, shared)
    Mailbox(ledger).ask_to_drain()
    assert seat.do(Assignment((0,), run=ledger.run())).done == ()
    assert ledger.tasks() == {}


def test_it_hears_of_draining_while_it_works(stores, shared):
    # More than is read ahead.
    ledger = begun(stores, shared, rows_each=5_000)
    clock, mailbox = ManualClock(), Mailbox(ledger)

    def drain() -> None:
        mailbox.ask_to_drain()
        clock.advance(10 * WRITTEN_EVERY_S)

    seat, _ = seat_of(stores, Breaking(shared, at=0, action=drain), clock=clock)
    letter = seat.do(Assignment((0, 1, 2), run=ledger.run()))
    assert letter.doing == ()
    assert len(letter.done) < 3
    assert len(ledger.tasks()) < 3


def test_what_breaks_an_assignment_is_in_a_letter(stores, shared, ledger):
    seat, _ = seat_of(stores, Breaking(shared, at=0))
    assert "BrokenError" in str(error_of(seat.do(Assignment((0,), run=ledger.run())).error))


def test_when_its_run_is_over_it_writes_nothing(stores, shared, ledger):
    run = ledger.run()
    transform(stores, predictor=shared, settings=SETTINGS, if_exists="overwrite")
    before = {i.uri: i.etag for i in stores.for_uri(OUT).list(OUT)}
    seat, _ = seat_of(stores, shared)
    letter = seat.do(Assignment((0, 1), run=run, replaces=True))
    assert isinstance(error_of(letter.error), LedgerError)
    after = {i.uri: i.etag for i in stores.for_uri(OUT).list(OUT) if "/workers/" not in i.uri}
    assert after == before
    assert [i for i in after if not i.startswith(OUT)] == []
    assert stores.for_uri(IN)
