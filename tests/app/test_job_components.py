"""Components of job processes: locations, reserved URIs, start and stop."""

from dataclasses import replace

import pytest

from cases import for_each
from headrace.app.job_components import JobLocations, open_job_components
from headrace.config.jobs_file import NO_LIMITS, JobsFile
from headrace.core.errors import ConfigError, RefusedAddressError
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.encryption import EncryptionKey
from headrace.jobs.job import NewJob
from headrace.jobs.lanes import ClaimLimit
from headrace.jobs.ledger import ClaimRequest, QueueSettings
from headrace.jobs.notify import WebhookTarget
from headrace.jobs.outbound.client import InputStore

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
INTERVALS = {"maintain_s": 1.0, "hold_off_s": 0.0}


def test_default_locations_are_a_folder_with_ledger_and_objects(tmp_path):
    locations = JobLocations.folder(tmp_path / "data")
    locations.make_folders()
    assert locations.ledger_url == f"sqlite:///{tmp_path}/data/jobs.db"
    assert (tmp_path / "data" / "objects").is_dir()


def mode_of(path):
    return oct(path.stat().st_mode & 0o777)


@pytest.mark.parametrize("exists", [False, True])
def test_data_folder_and_its_files_are_for_one_user(tmp_path, exists):
    """Before, the folder had mode 755 and the database mode 644."""
    data = tmp_path / "above" / "data"
    if exists:
        data.mkdir(parents=True)
        data.chmod(0o755)
        (data / "jobs.db").touch(0o644)
    components = open_job_components(JobLocations.folder(data), **INTERVALS)
    components.start()
    components.ledger.set_queue(QueueSettings("q"))
    files = sorted(path.name for path in data.iterdir() if path.is_file())
    assert files == ["encryption.key", "jobs.db", "jobs.db-shm", "jobs.db-wal"]
    assert {name: mode_of(data / name) for name in files} == dict.fromkeys(files, "0o600")
    assert (mode_of(data), mode_of(data / "objects")) == ("0o700", "0o700")
    assert mode_of(data.parent) != "0o700"
    components.stop()


def test_existing_folders_of_separate_locations_keep_their_permissions(tmp_path):
    for name in ("ledger", "store"):
        (tmp_path / name).mkdir(0o755)
    locations = JobLocations(f"sqlite:///{tmp_path}/ledger/jobs.db", f"{tmp_path}/store/")
    components = open_job_components(locations, **INTERVALS)
    components.start()
    assert [mode_of(tmp_path / name) for name in ("ledger", "store", "ledger/jobs.db")] == [
        "0o755",
        "0o755",
        "0o600",
    ]
    components.stop()


def test_secret_of_an_receiver_is_encrypted_in_the_ledger(tmp_path):
    target = WebhookTarget("billing", "https://h.example/", (SECRET,))
    locations = JobLocations.folder(tmp_path)
    components = open_job_components(locations, JobsFile(receivers=(target,)), **INTERVALS)
    components.start()
    (kept,) = components.ledger.outbox.receiver("billing").target.secrets
    components.stop()
    assert kept.startswith("encrypted:v1:")
    assert EncryptionKey.load(locations.key_file).decrypt(kept, target.url) == SECRET
    assert not [
        path for path in tmp_path.iterdir() if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


def test_secret_without_an_encryption_key_stops_the_server(tmp_path):
    locations = JobLocations(f"sqlite:///{tmp_path}/jobs.db", f"{tmp_path}/objects/")
    file = JobsFile(receivers=(WebhookTarget("billing", "https://h.example/", (SECRET,)),))
    with pytest.raises(ConfigError, match=r"receivers\.billing.*--encryption-key FILE"):
        open_job_components(locations, file, **INTERVALS)


def test_named_key_file_must_exist(tmp_path):
    locations = replace(JobLocations.folder(tmp_path), encryption_key=tmp_path / "other.key")
    with pytest.raises(ConfigError, match="openssl rand"):
        open_job_components(locations, **INTERVALS)


def test_store_ledger_and_key_files_are_reserved(tmp_path):
    locations = JobLocations.folder(tmp_path)
    database = f"{tmp_path}/jobs.db"
    assert set(locations.reserved_uris) >= {
        locations.store_uri,
        database,
        f"{database}-wal",
        f"{tmp_path}/encryption.key",
    }
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
    file = JobsFile(queues={"q": {"pending_max": 5}}, receivers=(WebhookTarget("e", "https://h.example/"),))
    components = open_job_components(locations, file, **INTERVALS)
    components.start()
    assert components.ledger.queue("q") == QueueSettings("q", pending_max=5)
    assert components.ledger.outbox.receiver("e") is not None
    components.ledger.set_queue(QueueSettings("q", paused=True, pending_max=7))
    components.stop()
    components.stop()
    again = open_job_components(locations, file, **INTERVALS)
    again.start()
    assert again.ledger.queue("q") == QueueSettings("q", paused=True, pending_max=5)
    again.stop()


def test_file_replaces_the_limits_and_a_worker_without_file_keeps_them(tmp_path):
    locations = JobLocations.folder(tmp_path)
    closed = JobsFile(limits={**NO_LIMITS, "model": (ClaimLimit("model", "m", 0),)})
    claimed = []
    for file in (closed, None, JobsFile(limits=NO_LIMITS)):
        components = open_job_components(locations, file, **INTERVALS)
        components.start()
        components.ledger.submit([NewJob("m")])
        claim = ClaimRequest("w", ("default",), 9, 60_000)
        claimed.append(len(components.ledger.settle_and_claim([], claim).claimed))
        components.stop()
    assert claimed == [0, 0, 3]


def test_failed_start_leaves_nothing_running(tmp_path):
    components = open_job_components(JobLocations.folder(tmp_path), **INTERVALS)
    (tmp_path / "jobs.db").mkdir()
    with pytest.raises(Exception, match="jobs"):
        components.start()
    components.stop()


def test_endpoints_of_the_file_are_applied_at_every_start(tmp_path):
    hook = {"webhook": "https://h.example/", "secret": SECRET}
    settings = EndpointSettings("churn", notify=(hook, {"receiver": "billing"}))
    billing = WebhookTarget("billing", "https://h.example/billing", (SECRET,))
    locations = JobLocations.folder(tmp_path)

    def versions(file):
        components = open_job_components(locations, file, **INTERVALS)
        components.start()
        found = components.ledger.endpoint_versions("churn")
        components.stop()
        return found

    file = JobsFile(endpoints={"churn": settings}, receivers=(billing,))
    (first,) = versions(file)
    assert (first.version, first.created_by) == (1, "settings file")
    kept = first.settings.notify[0]["secret"]
    assert EncryptionKey.load(locations.key_file).decrypt(kept, hook["webhook"]) == SECRET
    assert first.settings.notify[1] == {"receiver": "billing"}
    assert versions(file) == [first], "an unchanged file makes no version"
    changed = replace(file, endpoints={"churn": replace(settings, priority=7)})
    assert [each.version for each in versions(changed)] == [2, 1]
    assert len(versions(JobsFile())) == 2, "an endpoint that the file no longer has stays"


@for_each(
    ("settings", "message"),
    [
        (EndpointSettings("m", notify=({"receiver": "unknown"},)), "unknown receiver 'unknown'"),
        (EndpointSettings("m", notify=({"webhook": "https://h.example/"},)), "needs a secret"),
        (EndpointSettings("m", notify=({"email": ["a@h.example"]},)), "declare .smtp."),
        (EndpointSettings("m", options={"unknown": 1}), "unknown"),
    ],
)
def test_invalid_endpoint_of_the_file_stops_the_server(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=rf"endpoints\.churn: .*{message}"):
        open_job_components(
            JobLocations.folder(tmp_path), JobsFile(endpoints={"churn": settings}), **INTERVALS
        )
