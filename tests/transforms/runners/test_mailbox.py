"""What workers write of themselves is read once, by whoever looks for it, and told apart."""

import numpy as np
import pytest

from headrace.storage.resolve import Stores
from headrace.transforms.ledger import TransformLedger
from headrace.transforms.observation import Observation
from headrace.transforms.records import TaskRecord
from headrace.transforms.runners.mailbox import Letter, Mailbox
from headrace.transforms.runners.messages import Tally
from transforms.observing import failure, scored

DEST = "memory://out/run/"


@pytest.fixture
def ledger(stores: Stores) -> TransformLedger:
    return TransformLedger(stores.for_uri(DEST), DEST)


def observed(step: int) -> dict:
    seen = Observation(0.0)
    seen.batch(scored({"y": np.full(3, step, np.float32)}, [failure(step)]), 1.0)
    return {"observed": seen.to_json()}


def test_a_letter_comes_back_as_it_was_written():
    letter = Letter("w", "p", "host", 7, (1, 2), (0,), Tally(records=3), error={"type": "E", "message": "m"})
    assert Letter.from_json(letter.to_json()) == letter


def test_a_letter_keeps_what_its_worker_says():
    letter = Letter("w", "p", "host", 7, doing=(4, 5))
    letter = letter.heard({"ready": {}}).heard({"tally": Tally(records=9).to_json()})
    letter = letter.heard({"task": TaskRecord(4, "a", ()).to_json().decode()})
    assert (letter.doing, letter.done, letter.tally.records) == ((4, 5), (4,), 9)
    assert letter.heard({"idle": True}).doing == ()
    broken = letter.heard({"error": {"type": "ConfigError", "message": "no"}})
    assert (broken.doing, broken.error) == ((), {"type": "ConfigError", "message": "no"})


def test_what_was_observed_is_added_up():
    letter = Letter("w", "p", "host", 7).heard(observed(1)).heard(observed(2))
    seen = Observation.from_json(letter.observed)
    assert (seen.records, [f.record for f in seen.failures]) == (8, [1, 2])


def test_letters_are_read_when_they_are_new(ledger):
    ours, theirs = Mailbox(ledger), Mailbox(ledger)
    assert ours.read() == []
    theirs.write(Letter("a", "p", "host", 1))
    theirs.write(Letter("b", "p", "host", 2))
    assert {letter.worker for letter in ours.read()} == {"a", "b"}
    assert ours.read() == []
    theirs.write(Letter("b", "p", "host", 2, doing=(3,)))
    assert [(letter.worker, letter.doing) for letter in ours.read()] == [("b", (3,))]


def test_all_hear_that_they_should_drain_until_it_is_cleared(ledger):
    ours, theirs = Mailbox(ledger), Mailbox(ledger)
    theirs.write(Letter("a", "p", "host", 1))
    assert not theirs.draining()
    ours.ask_to_drain()
    assert theirs.draining()
    assert [letter.worker for letter in ours.read()] == ["a"]
    ours.clear()
    assert not theirs.draining()
    assert ours.read() == []


def test_a_finished_run_leaves_no_letters(ledger):
    Mailbox(ledger).write(Letter("a", "p", "host", 1))
    ledger.finish({})
    assert Mailbox(ledger).read() == []
