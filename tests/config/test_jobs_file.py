"""The file of jobs: what it says, and how mistakes in it are told."""

import pytest

from headrace.config.jobs_file import WorkerPlace, anyone, read_jobs_file, read_worker_place
from headrace.core.api_key import digest_of, digest_text
from headrace.core.errors import ConfigError, ForbiddenError
from headrace.jobs.access import Scope
from headrace.jobs.outbound.addresses import network

KEY = "hr_key-0123456789"
FILE = f"""
[keys.web]
digest = "{digest_text(digest_of(KEY))}"
scopes = ["submit"]
inputs = ["s3://b/in", "https://10.1.2.3/daily"]

[queues.default]
pending_max = 5

[[triggers]]
name = "incoming"
prefix = "s3://b/in/"
model = "churn"
output = "s3://b/out/"

[endpoints.billing]
webhook = "https://10.1.2.3/hook"
secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

[smtp]
host = "mail.example.com"
sender = "jobs@example.com"

[outbound]
networks = ["10.0.0.0/8"]

[vendor]
output_uri = "s3://b/async/"
"""


def read(tmp_path, text, **given):
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    return read_jobs_file(path, **{"store_uri": "s3://own/jobs/", **given})


def test_all_of_it_is_read(tmp_path):
    file = read(tmp_path, FILE)
    key = file.access.check(f"Bearer {KEY}", Scope.SUBMIT)
    assert key.inputs.require("https://10.1.2.3/daily/k", "input") == "https://10.1.2.3/daily/k"
    assert file.queues == {"default": {"pending_max": 5}}
    assert [trigger.name for trigger in file.triggers] == ["incoming"]
    assert [(e.endpoint_id, e.url) for e in file.endpoints] == [("billing", "https://10.1.2.3/hook")]
    assert (file.smtp.host, file.vendor.output_uri) == ("mail.example.com", "s3://b/async/")
    assert file.outbound.networks == (network("10.0.0.0/8"),)


def test_an_empty_file_is_as_by_default(tmp_path):
    file = read(tmp_path, "")
    assert file.access.open
    assert file.triggers is file.smtp is file.vendor is None
    with pytest.raises(ConfigError):
        file.access.check(None, Scope.SUBMIT).inputs.require("https://h.example/k", "input")


@pytest.mark.parametrize("place", ["s3://own/jobs/inputs/x", "/data/jobs.db", "/data/jobs.db-wal"])
def test_what_is_headraces_own_is_nobodys_to_name(tmp_path, place):
    own = ("/data/jobs.db", "/data/jobs.db-wal")
    file = read(
        tmp_path, '[anyone]\ninputs = ["s3://own", "/data"]\noutputs = ["s3://own", "/data"]', reserved=own
    )
    whoever = file.access.check(None, Scope.SUBMIT)
    for allowed in (whoever.inputs, whoever.outputs):
        with pytest.raises(ForbiddenError):
            allowed.require(place, "input")
    assert whoever.inputs.require("/data/other", "input") == "/data/other"
    with pytest.raises(ForbiddenError):
        anyone(inputs=["/data"], reserved=own).inputs.require("/data/jobs.db", "input")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1", "there is no 'x'"),
        ("regions = 1", "regions must be a table"),
        ("[regions]\nhere = 1", "regions: there is no 'here'"),
        ("[regions]\nask_buckets = 1", "regions.ask_buckets must be true or false, not 1"),
        ("[regions]\nworker = 1", "regions.worker must be a region, not 1"),
        ("[regions]\nworker = 'eu west'", "'eu west' cannot be a region"),
        (
            "[regions]\nother_regions = 'often'",
            "regions.other_regions must be one of idle, never, not 'often'",
        ),
        ("[regions]\ndata = 1", "regions.data must be a table of prefixes"),
        ("[regions.data]\n's3://b/' = 1.5", "regions.data: s3://b/ must have a region, not 1.5"),
        ("[regions.data]\n's3://' = 'eu'", "regions.data: s3://: no bucket"),
        ("[regions.data]\n's3://b' = 'eu'\n's3://b/' = 'us'", "s3://b/ is in two regions"),
        ("= 1", "it is no TOML"),
        ("keys = 1", "there is no key"),
        (FILE + "[anyone]\ninputs = []", "nobody is anyone"),
        ("[anyone]\nplaces = []", "anyone: there is no 'places'"),
        ("[anyone]\ninputs = [1]", "anyone.inputs must be a list"),
        ('[anyone]\noutputs = ["https://h.example/"]', "nothing is written to web addresses"),
        ('[anyone]\ninputs = ["https://10.0.0.1/"]', "may not be reached"),
        ("[queues]\ndefault = 1", "default must be a table"),
        ("[queues.default]\nsize = 1", "queues.default: there is no 'size'"),
        ('[queues.default]\nname = "other"', "queues.default: there is no 'name'"),
        ('[queues.default]\npending_max = "5"', "pending_max must be a whole number"),
        ("[queues.default]\npending_max = true", "pending_max must be a whole number"),
        ("[queues.default]\npending_max = -1", "pending_max must be 0 or more"),
        ("[queues.default]\npaused = 1", "paused must be true or false"),
        ("triggers = 1", "each is a table of its own"),
        ('[[triggers]]\nname = "x"', "'prefix' is missing"),
        ('[endpoints.e]\nendpoint = "f"', "endpoints.e: say a webhook"),
        ('[endpoints.e]\nwebhook = "https://127.0.0.1/"', "endpoints.e: .*may not be reached"),
        ('[smtp]\nhost = "h"', "smtp: .*sender.* is missing"),
        ("[smtp]\nhost = 1", "smtp.host must be text"),
        ("[outbound]\nports = [0]", "outbound.ports"),
        ("[outbound]\nports = [true]", "outbound.ports"),
        ('[outbound]\nnetworks = ["x"]', "is no subnet"),
        ("[outbound]\nplain_http = 1", "plain_http must be true or false"),
        ("[outbound]\nhttp = true", "outbound: there is no 'http'"),
        ("[vendor]", "vendor: .*output_uri.* is missing"),
    ],
)
def test_mistakes_are_told_with_file_and_place(tmp_path, text, why):
    with pytest.raises(ConfigError, match=why) as told:
        read(tmp_path, text)
    assert str(told.value).count("jobs.toml") == 1


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_jobs_file(tmp_path / "none.toml", store_uri="s3://own/")


def test_regions_of_data_and_of_workers_are_read(tmp_path):
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
    assert read_worker_place(tmp_path / "jobs.toml") == WorkerPlace("eu-west-1", "never")
    assert read(tmp_path, "").regions.ask_buckets is False
    assert read_worker_place(tmp_path / "jobs.toml") == read_worker_place(None) == WorkerPlace("", "idle")
    (tmp_path / "jobs.toml").write_text("[regions]\nworker = ''\nother_regions = 1")
    with pytest.raises(ConfigError, match=r"jobs.toml: regions.other_regions must be text"):
        read_worker_place(tmp_path / "jobs.toml")
