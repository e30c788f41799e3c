"""The parts that jobs stand on: where they are, what nobody may name there, and their life."""

import pytest

from headrace.app.job_parts import JobsAt, open_parts
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import RefusedAddressError
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.notifier import WebhookTarget
from headrace.jobs.outbound.inputs import InputStore

TIMES = {"maintain_s": 1.0, "hold_off_s": 0.0}


def test_a_folder_holds_a_ledger_and_objects(tmp_path):
    at = JobsAt.folder(tmp_path / "data")
    at.make_folders()
    assert at.ledger_url == f"sqlite:///{tmp_path}/data/jobs.db"
    assert (tmp_path / "data" / "objects").is_dir()


def test_nobody_names_the_store_or_the_ledgers_file(tmp_path):
    at = JobsAt.folder(tmp_path)
    database = f"{tmp_path}/jobs.db"
    assert set(at.own_places) >= {at.store_uri, database, f"{database}-wal"}
    assert JobsAt("postgresql://h/d", "s3://b/jobs/").own_places == ("s3://b/jobs/",)


def test_web_addresses_are_read_by_the_guarded_client(tmp_path):
    parts = open_parts(JobsAt.folder(tmp_path), **TIMES)
    for uri in ("https://h.example/k", "http://h.example/k"):
        assert isinstance(parts.stores.for_uri(uri), InputStore)
    with pytest.raises(RefusedAddressError):
        parts.stores.for_uri("https://169.254.169.254/").head("https://169.254.169.254/latest")
    parts.stores.close()
    parts.client.close()


def test_what_is_said_of_a_queue_is_set_and_what_is_not_stays(tmp_path):
    at = JobsAt.folder(tmp_path)
    file = JobsFile(queues={"q": {"pending_max": 5}}, endpoints=(WebhookTarget("e", "https://h.example/"),))
    parts = open_parts(at, file, **TIMES)
    parts.start()
    assert parts.ledger.queue("q") == QueueSettings("q", pending_max=5)
    assert parts.ledger.outbox.knows("e")
    parts.ledger.set_queue(QueueSettings("q", paused=True, pending_max=7))
    parts.stop()
    parts.stop()
    again = open_parts(at, file, **TIMES)
    again.start()
    assert again.ledger.queue("q") == QueueSettings("q", paused=True, pending_max=5)
    again.stop()


def test_what_cannot_start_leaves_nothing_running(tmp_path):
    parts = open_parts(JobsAt.folder(tmp_path), **TIMES)
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(Exception, match="jobs"):
        parts.start()
    parts.stop()
