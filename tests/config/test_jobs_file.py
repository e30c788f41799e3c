"""The settings file of jobs: its contents, and its error messages."""

import pytest

from cases import for_each
from headrace.config.jobs_file import (
    NO_LIMITS,
    WorkerRegion,
    anonymous_key,
    read_jobs_file,
    read_pool,
    read_worker_region,
)
from headrace.core.errors import ConfigError, ForbiddenError
from headrace.jobs.access import Scope, format_digest, hash_key
from headrace.jobs.access.endpoints import EndpointSettings
from headrace.jobs.lanes import ClaimLimit
from headrace.jobs.outbound import parse_network

KEY = "hr_key-0123456789"
FILE = f"""
[keys.web]
digest = "{format_digest(hash_key(KEY))}"
scopes = ["submit"]
inputs = ["s3://b/in", "https://10.1.2.3/daily"]

[queues.default]
pending_max = 5

[[triggers]]
name = "incoming"
prefix = "s3://b/in/"
model = "churn"
output = "s3://b/out/"

[receivers.billing]
webhook = "https://10.1.2.3/hook"
secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

[smtp]
host = "mail.example.com"
sender = "jobs@example.com"

[outbound]
networks = ["10.0.0.0/8"]

[sagemaker]
output_uri = "s3://b/async/"
"""


def read(tmp_path, text, **options):
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    return read_jobs_file(path, **{"store_uri": "s3://own/jobs/", **options})


def test_whole_file(tmp_path):
    file = read(tmp_path, FILE)
    key = file.access.check(f"Bearer {KEY}", Scope.SUBMIT)
    assert key.inputs.require("https://10.1.2.3/daily/k", "input") == "https://10.1.2.3/daily/k"
    assert file.queues == {"default": {"pending_max": 5}}
    assert [trigger.name for trigger in file.triggers] == ["incoming"]
    assert [(e.receiver_id, e.url) for e in file.receivers] == [("billing", "https://10.1.2.3/hook")]
    assert (file.smtp.host, file.sagemaker.output_uri) == ("mail.example.com", "s3://b/async/")
    assert file.outbound.networks == (parse_network("10.0.0.0/8"),)


def test_vendor_table_is_a_deprecated_name_of_sagemaker(tmp_path):
    old = FILE.replace("[sagemaker]", "[vendor]")
    with pytest.warns(FutureWarning, match=r"jobs\.toml: the table \[vendor\] .* name it \[sagemaker\]"):
        assert read(tmp_path, old).sagemaker.output_uri == "s3://b/async/"
    with pytest.raises(ConfigError, match=r"\[vendor\] is the old name of \[sagemaker\]"):
        read(tmp_path, FILE + '[vendor]\noutput_uri = "s3://b/other/"\n')


def test_limits_of_keys_models_and_tenants(tmp_path):
    limits = """
[tenants.shop]
weight = 2.5
[models.churn]
running_max = 4
[models.free]
"""
    file = read(
        tmp_path, FILE.replace('scopes = ["submit"]', 'scopes = ["submit"]\nrunning_max = 3') + limits
    )
    assert file.limits == {
        "tenant": (ClaimLimit("tenant", "shop", weight=2.5),),
        "model": (ClaimLimit("model", "churn", 4), ClaimLimit("model", "free")),
        "key": (ClaimLimit("key", "web", 3),),
    }
    assert read(tmp_path, "").limits == NO_LIMITS


def test_empty_file_has_defaults(tmp_path):
    file = read(tmp_path, "")
    assert file.access.open
    assert file.triggers is file.smtp is file.sagemaker is None
    with pytest.raises(ConfigError):
        file.access.check(None, Scope.SUBMIT).inputs.require("https://h.example/k", "input")


@for_each("uri", ["s3://own/jobs/inputs/x", "/data/jobs.db", "/data/jobs.db-wal"])
def test_own_store_is_never_allowed(tmp_path, uri):
    own = ("/data/jobs.db", "/data/jobs.db-wal")
    file = read(
        tmp_path, '[anyone]\ninputs = ["s3://own", "/data"]\noutputs = ["s3://own", "/data"]', reserved=own
    )
    key = file.access.check(None, Scope.SUBMIT)
    for allowed in (key.inputs, key.outputs):
        with pytest.raises(ForbiddenError):
            allowed.require(uri, "input")
    assert key.inputs.require("/data/other", "input") == "/data/other"
    with pytest.raises(ForbiddenError):
        anonymous_key(inputs=["/data"], reserved=own).inputs.require("/data/jobs.db", "input")


@for_each(
    ("text", "message"),
    [
        ("x = 1", "unknown table 'x'"),
        ("regions = 1", "regions must be a table"),
        ("[regions]\nhere = 1", "regions: unknown key 'here'"),
        ("[regions]\nask_buckets = 1", "regions.ask_buckets must be true or false, not 1"),
        ("[regions]\nworker = 1", "regions.worker must be a region, not 1"),
        ("[regions]\nworker = 'eu west'", "regions.worker: 'eu west' is not a valid region"),
        (
            "[regions]\nother_regions = 'often'",
            "regions.other_regions must be one of idle, never, not 'often'",
        ),
        ("[regions]\ndata = 1", "regions.data must be a table of prefixes"),
        (
            "[regions.data]\n's3://b/' = 1.5",
            "regions.data must be a table of prefixes and regions, not .*1.5",
        ),
        ("[regions.data]\n's3://' = 'eu'", "regions.data: s3://: the bucket is missing"),
        ("[regions.data]\n's3://b' = 'eu'\n's3://b/' = 'us'", "s3://b/ is in two regions"),
        ("= 1", "invalid TOML"),
        ("keys = 1", "the file has no key"),
        (FILE + "[anyone]\ninputs = []", "exclude each other"),
        ("[anyone]\nplaces = []", "anyone: unknown key 'places'"),
        ("[anyone]\ninputs = [1]", "anyone.inputs must be a list"),
        ("[anyone]\npending_max = 0", "anyone.pending_max must be a whole number of 1 or more, not 0"),
        ('[anyone]\noutputs = ["https://h.example/"]', "outputs cannot be web addresses"),
        ('[anyone]\ninputs = ["https://10.0.0.1/"]', "may not be reached"),
        ("[queues]\ndefault = 1", "default must be a table"),
        ("[queues.default]\nsize = 1", "queues.default: unknown key 'size'"),
        ('[queues.default]\nname = "other"', "queues.default: unknown key 'name'"),
        ('[queues.default]\npending_max = "5"', "pending_max must be a whole number"),
        ("[queues.default]\npending_max = true", "pending_max must be a whole number"),
        (
            "[queues.default]\npending_max = -1",
            "queues.default.pending_max must be a whole number of 0 or more, not -1",
        ),
        ("[queues.default]\npaused = 1", "paused must be true or false"),
        ("triggers = 1", "triggers must be an array of tables"),
        ('[[triggers]]\nname = "x"', "'prefix' is missing"),
        ("[tenants.a]\nweight = 0", "tenants.a.weight"),
        ("[models.a]\nrunning_max = -1", "models.a.running_max"),
        ('[models."a@1"]\nrunning_max = 1', "a limit is of all versions"),
        ('[receivers.e]\nreceiver = "f"', "receivers.e: set webhook"),
        ('[receivers.e]\nwebhook = "https://127.0.0.1/"', "receivers.e: .*may not be reached"),
        ('[smtp]\nhost = "h"', "smtp: .*sender.* is missing"),
        ("[smtp]\nhost = 1", "smtp.host must be text"),
        ("[outbound]\nports = [0]", "outbound.ports"),
        ("[outbound]\nports = [true]", "outbound.ports"),
        ('[outbound]\nnetworks = ["x"]', "is not a subnet"),
        ("[outbound]\nplain_http = 1", "plain_http must be true or false"),
        ("[outbound]\nhttp = true", "outbound: unknown key 'http'"),
        ("[sagemaker]", "sagemaker: .*output_uri.* is missing"),
    ],
)
def test_error_names_file_and_key(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as raised:
        read(tmp_path, text)
    assert str(raised.value).count("jobs.toml") == 1


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_jobs_file(tmp_path / "none.toml", store_uri="s3://own/")


def test_regions(tmp_path):
    text = """
[regions]
ask_buckets = true
worker = "eu-west-1"
other_regions = "never"

[regions.data]
"s3://b/" = "eu-west-1"
"s3://b/us/" = "us-east-1"
"""
    rules = read(tmp_path, text).regions
    assert (rules.region("s3://b/k"), rules.region("s3://b/us/k"), rules.ask_buckets) == (
        "eu-west-1",
        "us-east-1",
        True,
    )
    assert read_worker_region(tmp_path / "jobs.toml") == WorkerRegion("eu-west-1", "never")
    assert read(tmp_path, "").regions.ask_buckets is False
    assert read_worker_region(tmp_path / "jobs.toml") == read_worker_region(None) == WorkerRegion("", "idle")
    (tmp_path / "jobs.toml").write_text("[regions]\nworker = ''\nother_regions = 1")
    with pytest.raises(
        ConfigError, match=r"jobs.toml: regions.other_regions must be one of idle, never, not 1"
    ):
        read_worker_region(tmp_path / "jobs.toml")


def test_endpoints_have_the_settings_of_their_tables(tmp_path):
    text = """
    [endpoints.churn]
    model = "churn"
    output_uri = "s3://b/out"
    notify = [{ receiver = "billing" }]
    payload_bytes_max = "1KiB"

    [endpoints.plain]
    model = "m"
    """
    assert read(tmp_path, text).endpoints == {
        "churn": EndpointSettings(
            "churn", output_uri="s3://b/out", notify=({"receiver": "billing"},), payload_bytes_max=1024
        ),
        "plain": EndpointSettings("m"),
    }


def test_receivers_may_be_in_the_table_of_endpoints_for_one_release(tmp_path):
    old = FILE.replace("[receivers.billing]", "[endpoints.billing]") + '[endpoints.churn]\nmodel = "churn"\n'
    message = r"jobs\.toml: the table \[endpoints\.billing\] is deprecated: name it \[receivers\.billing\]"
    with pytest.warns(FutureWarning, match=message) as warned:
        file = read(tmp_path, old)
    assert len(warned) == 1
    assert [target.receiver_id for target in file.receivers] == ["billing"]
    assert list(file.endpoints) == ["churn"]
    with pytest.raises(
        ConfigError, match=r"\[endpoints\.billing\] is the old name of \[receivers\.billing\]"
    ):
        read(tmp_path, FILE + '[endpoints.billing]\nemail = ["a@h.example"]\n')


@for_each(
    ("text", "message"),
    [
        ("endpoints = 1", "endpoints must be a table"),
        ("endpoints.e = 1", "e must be a table"),
        ("[endpoints.e]", "endpoints.e: 'model' is missing"),
        ('[endpoints."a b"]\nmodel = "m"', "endpoints: endpoint: must be a letter or digit"),
        ("[endpoints.e]\nmodel = 1", "endpoints.e.model must be text"),
        (
            '[endpoints.e]\nmodel = "m"\noutput_uri = "s3://own/jobs/x"',
            "endpoints.e: the output .* lies in headrace's own store",
        ),
    ],
)
def test_invalid_endpoints_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


POOLS = """
[pools.gpu]
workers = "0..20"
queues = ["night"]
schedules = [{ cron = "0 8 * * 1-5", workers = "2..20" }]
"""


def test_pools_are_read_by_their_controllers(tmp_path):
    read(tmp_path, POOLS)
    found = read_pool(tmp_path / "jobs.toml", "gpu")
    assert (str(found["workers"]), found["queues"], len(found["schedules"])) == ("0..20", ("night",), 1)
    assert read_pool(tmp_path / "jobs.toml", "cpu") == read_pool(None, "gpu") == {}


@for_each(
    ("text", "message"),
    [
        ('[pools.gpu]\nworkers = "20..0"', r"pools\.gpu\.workers: 20\.\.0: must be a smallest number"),
        ("[pools.gpu]\nworker = 1", r"pools\.gpu: unknown key 'worker'; did you mean 'workers'"),
        ('[pools."a b"]\nidle_s = 1', "'a b' is no name of a pool"),
        ("[pools.gpu]\nschedules = [{ cron = 'x', workers = '1' }]", "schedule 1.*cron: must be five fields"),
    ],
)
def test_invalid_pool_stops_every_program_that_reads_the_file(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)
    with pytest.raises(ConfigError, match=message):
        read_pool(tmp_path / "jobs.toml", "another")
