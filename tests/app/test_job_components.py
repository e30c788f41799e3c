"""Components of job processes: locations, reserved URIs, start and stop."""

import pytest

from headrace.app.job_components import JobLocations, open_job_components
from headrace.config.jobs_file import JobsFile
from headrace.core.errors import RefusedAddressError
from headrace.jobs.ledger import QueueSettings
from headrace.jobs.notify import WebhookTarget
from headrace.jobs.outbound.client import InputStore

INTERVALS = {"maintain_s": 1.0, "hold_off_s": 0.0}


def test_default_locations_are_a_folder_with_ledger_and_objects(tmp_path):
    locations = JobLocations.folder(tmp_path / "data")
    locations.make_folders()
    assert locations.ledger_url == f"sqlite:///{tmp_path}/data/jobs.db"
    assert (tmp_path / "data" / "objects").is_dir()


def test_store_and_ledger_files_are_reserved(tmp_path):
    locations = JobLocations.folder(tmp_path)
    database = f"{tmp_path}/jobs.db"
    assert set(locations.reserved_uris) >= {locations.store_uri, database, f"{database}-wal"}
    assert JobLocations("postgresql://h/d", "s3://b/jobs/").reserved_uris == ("s3://b/jobs/",)


def test_web_urls_are_read_by_the_guarded_client(tmp_path):
    components = open_job_components(JobLocations.folder(tmp_path), **INTERVALS)
    for uri in ("https://h.example/k", "http://h.example/k"):
        assert isinstance(components.stores.for_uri(uri), InputStore)
    with pytest.raises(RefusedAddressError):
        components.stores.for_uri("https://169.254.169.254/").head("https://169.254.169.254/latest")
    components.stores.close()
    components.client.close()


def test_file_sets_only_the_queue_settings_that_it_names(tmp_path):
    locations = JobLocations.folder(tmp_path)
    file = JobsFile(queues={"q": {"pending_max": 5}}, endpoints=(WebhookTarget("e", "https://h.example/"),))
    components = open_job_components(locations, file, **INTERVALS)
    components.start()
    assert components.ledger.queue("q") == QueueSettings("q", pending_max=5)
    assert components.ledger.outbox.endpoint("e") is not None
    components.ledger.set_queue(QueueSettings("q", paused=True, pending_max=7))
    components.stop()
    components.stop()
    again = open_job_components(locations, file, **INTERVALS)
    again.start()
    assert again.ledger.queue("q") == QueueSettings("q", paused=True, pending_max=5)
    again.stop()


def test_failed_start_leaves_nothing_running(tmp_path):
    components = open_job_components(JobLocations.folder(tmp_path), **INTERVALS)
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(Exception, match="jobs"):
        components.start()
    components.stop()
