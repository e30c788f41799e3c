"""Endpoints of jobs: their settings, and what a submission to one may ask for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError, ForbiddenError, HeadraceError, LimitError
from headrace.jobs.access.endpoints import (
    NOTIFY_MAX,
    Endpoint,
    EndpointSettings,
    apply_endpoint,
    dump_endpoint_settings,
    endpoint_document,
    keep_secrets,
    load_endpoint_settings,
    read_endpoint_settings,
    require_payload_size,
)
from headrace.jobs.job import NewJob
from headrace.jobs.paths import is_below

HOOK = {"webhook": "https://h.example/hook", "secret": "whsec_c2VjcmV0"}
FULL = EndpointSettings(
    "churn@2",
    queue="night",
    output_uri="s3://out/churn",
    notify=(HOOK, {"receiver": "billing"}),
    client_webhooks=True,
    options={"join": "input"},
    priority=4,
    attempts_max=2,
    time_limit_s=60,
    time_to_live_s=600,
    deadline_s=3600,
    payload_bytes_max=100,
    keep_days=0.5,
)
CHURN = Endpoint("churn", 3, FULL)


def applied(endpoint=CHURN, **fields):
    return apply_endpoint(endpoint, NewJob(**fields), frozenset(fields))


def test_settings_are_kept_as_json():
    assert load_endpoint_settings(dump_endpoint_settings(FULL)) == FULL
    plain = EndpointSettings("m")
    assert load_endpoint_settings(dump_endpoint_settings(plain)) == plain
    newer = dump_endpoint_settings(plain)[:-1] + ',"of_a_newer_program":1}'
    assert load_endpoint_settings(newer) == plain


def test_document_has_no_secret_and_can_be_sent_again():
    settings = endpoint_document(CHURN)["settings"]
    assert settings["notify"] == [{"webhook": HOOK["webhook"]}, {"receiver": "billing"}]
    again = read_endpoint_settings(settings, "endpoints.churn")
    assert keep_secrets(again, FULL) == FULL
    assert again != FULL
    assert endpoint_document(CHURN, with_notify=False)["settings"]["notify"] == []


def test_only_secrets_of_equal_addresses_are_kept():
    other = EndpointSettings("m", notify=({"webhook": "https://other.example/"}, {**HOOK, "secret": "new"}))
    assert keep_secrets(other, FULL) == other
    assert keep_secrets(other, None) == other


@for_each(
    ("table", "message"),
    [
        ({}, "endpoints.e: 'model' is missing"),
        ({"model": ""}, "model: must be a model's name"),
        ({"model": "a b"}, "model: must be a model's name"),
        ({"model": "m", "queue": "a/b"}, "queue: must be"),
        ({"model": "m", "models": "x"}, "unknown key 'models'"),
        ({"model": "m", "kind": "other"}, "endpoints.e.kind must be one of infer, transform, stream"),
        ({"model": "m", "kind": "transform"}, "output_uri: a transform endpoint needs one"),
        ({"model": "m", "priority": 10}, "endpoints.e.priority must be a whole number from 0 to 9"),
        ({"model": "m", "attempts_max": 0}, "attempts_max must be"),
        ({"model": "m", "keep_days": 0}, "keep_days must be a number above 0"),
        ({"model": "m", "output_uri": "s3://b/../c"}, "'.' or '..' segment"),
        ({"model": "m", "output_uri": "https://h/x"}, "outputs cannot be web addresses"),
        ({"model": "m", "notify": [{"receiver": "r"}] * 9}, "notify: 9 entries exceed the limit of 8"),
        ({"model": "m", "notify": ["r"]}, "endpoints.e.notify must be"),
    ],
)
def test_invalid_settings_are_refused(table, message):
    with pytest.raises(ConfigError) as refused:
        read_endpoint_settings(table, "endpoints.e")
    assert message in str(refused.value)
    assert str(refused.value).startswith("endpoints.e")


def test_fields_that_are_left_out_are_those_of_the_endpoint():
    job = applied(input_uri="s3://in/k", key="day")
    assert job == NewJob(
        model="churn@2",
        queue="night",
        input_uri="s3://in/k",
        key="day",
        output_uri="s3://out/churn",
        notify=FULL.notify,
        options={"join": "input"},
        priority=4,
        attempts_max=2,
        time_limit_s=60,
        time_to_live_s=600,
        deadline_s=3600,
        keep_s=43_200.0,
        endpoint="churn",
        endpoint_version=3,
    )


def test_narrower_fields_are_kept():
    webhook = {"webhook": "https://client.example/"}
    narrower = {
        "output_uri": "s3://out/churn/day",
        "priority": 9,
        "attempts_max": 1,
        "time_limit_s": 1.0,
        "time_to_live_s": 2.0,
        "deadline_s": 3.0,
    }
    job = applied(**narrower, options={"rows": 3, "join": "input"}, notify=(webhook,))
    assert {name: getattr(job, name) for name in narrower} == narrower
    assert job.options == {"rows": 3, "join": "input"}
    assert job.notify == (*FULL.notify, webhook)


@for_each(
    ("fields", "message"),
    [
        ({"model": "churn"}, "model: endpoint 'churn': must be 'churn@2', not 'churn'"),
        ({"kind": "stream"}, "kind: endpoint 'churn': must be 'infer'"),
        ({"queue": "default"}, "queue: endpoint 'churn': must be 'night', not 'default'"),
        ({"priority": 3}, "priority: endpoint 'churn': must be 4 or a larger number, not 3"),
        ({"attempts_max": 3}, "attempts_max: endpoint 'churn': must be at most 2, not 3"),
        ({"time_limit_s": 61.0}, "time_limit_s: endpoint 'churn': must be at most 60"),
        ({"time_to_live_s": 601.0}, "time_to_live_s: endpoint 'churn': must be at most 600"),
        ({"deadline_s": 3601.0}, "deadline_s: endpoint 'churn': must be at most 3600"),
        ({"options": {"join": "none"}}, "options.join: endpoint 'churn': must be 'input', not 'none'"),
        ({"output_uri": "s3://out/churn2"}, "write below the output of endpoint 'churn'"),
        ({"output_uri": "s3://out"}, "permitted outputs: 's3://out/churn'"),
        ({"notify": ({"receiver": "billing"},)}, "notify: endpoint 'churn': must be webhooks only"),
        ({"notify": ({"endpoint": "billing"},)}, "notify: endpoint 'churn': must be webhooks only"),
    ],
)
def test_wider_fields_are_refused(fields, message):
    with pytest.raises(ForbiddenError) as refused:
        applied(**fields)
    assert message in str(refused.value)


def test_webhooks_and_outputs_need_the_permission_of_the_endpoint():
    plain = Endpoint("plain", 1, EndpointSettings("m"))
    with pytest.raises(ForbiddenError, match="the endpoint has its own targets"):
        applied(plain, notify=(HOOK,))
    with pytest.raises(ForbiddenError, match="must be left out, as the endpoint has none"):
        applied(plain, output_uri="s3://out/x")
    trusted = NewJob(output_uri="s3://operator/x")
    job = apply_endpoint(plain, trusted, frozenset({"output_uri"}), trusted_output=True)
    assert job.output_uri == "s3://operator/x"


def test_targets_of_endpoint_and_client_are_limited_together():
    with pytest.raises(LimitError, match="7 entries and the 2 of endpoint 'churn' exceed the limit of 8"):
        applied(notify=({"webhook": "https://client.example/"},) * (NOTIFY_MAX - 1))


def test_output_below_the_own_store_is_refused():
    whole = Endpoint("whole", 1, EndpointSettings("m", output_uri="s3://out"))
    job = NewJob(output_uri="s3://out/own/x")
    with pytest.raises(ForbiddenError, match="headrace's own store"):
        apply_endpoint(whole, job, frozenset({"output_uri"}), reserved=("s3://out/own",))


def test_payload_size():
    require_payload_size(CHURN, 100)
    require_payload_size(None, 1 << 40)
    with pytest.raises(LimitError, match="101 bytes exceeds the 100 that endpoint 'churn' permits"):
        require_payload_size(CHURN, 101)


def maybe(values):
    return st.none() | values


names = st.sampled_from(["m", "n", "m@1"])
outputs = st.sampled_from(
    [
        "",
        "s3://b",
        "s3://b/",
        "s3://b/x",
        "s3://b/x/",
        "s3://b/x/y",
        "s3://b/xy",
        "s3://c",
        "s3://b/x/../y",
        "/x",
    ]
)
seconds = maybe(st.floats(0.1, 100))
options = st.dictionaries(st.sampled_from("ab"), st.sampled_from([0, 1, True, "x", None]))
targets = st.lists(
    st.sampled_from([HOOK, {"receiver": "r"}, {"email": ["a@h.example"]}, {"webhook": 1, "receiver": "r"}])
).map(tuple)
settings = st.builds(
    EndpointSettings,
    names,
    queue=names.map(lambda name: name.partition("@")[0]),
    output_uri=st.sampled_from(["", "s3://b", "s3://b/x", "s3://b/x/"]),
    notify=st.just(()) | st.just(({"receiver": "r"},)),
    client_webhooks=st.booleans(),
    options=options,
    priority=st.integers(0, 9),
    attempts_max=st.integers(1, 5),
    time_limit_s=seconds,
    time_to_live_s=seconds,
    deadline_s=seconds,
    keep_days=maybe(st.floats(0.1, 10)),
)
FIELDS = {
    "model": names,
    "kind": st.sampled_from(["infer", "transform"]),
    "queue": names,
    "output_uri": outputs,
    "options": options,
    "priority": st.integers(0, 9),
    "attempts_max": st.integers(1, 5),
    "time_limit_s": seconds,
    "time_to_live_s": seconds,
    "deadline_s": seconds,
    "notify": targets,
    "keep_s": seconds,
    "endpoint_version": st.integers(0, 9),
}
fields = st.fixed_dictionaries({}, optional=FIELDS)


@for_each("name", FIELDS)
def test_no_field_exceeds_its_endpoint(name):
    """One field at once, because of several fields any may be refused."""

    @given(settings, FIELDS[name])
    def check(allowed, value):
        require_within(allowed, {name: value})

    check()


@given(settings, fields)
def test_no_submission_exceeds_its_endpoint(allowed, asked):
    require_within(allowed, asked)


def require_within(allowed, asked):
    try:
        job = apply_endpoint(Endpoint("e", 1, allowed), NewJob(**asked), frozenset(asked))
    except HeadraceError:
        return
    assert (job.model, job.kind, job.queue) == (allowed.model, allowed.kind, allowed.queue)
    assert job.priority >= allowed.priority
    assert job.attempts_max <= allowed.attempts_max
    for name in ("time_limit_s", "time_to_live_s", "deadline_s"):
        limit = getattr(allowed, name)
        assert limit is None or getattr(job, name) <= limit
    assert {**job.options, **allowed.options} == job.options
    assert not job.output_uri or is_below(job.output_uri, allowed.output_uri)
    own = job.notify[len(allowed.notify) :]
    assert job.notify[: len(allowed.notify)] == allowed.notify
    assert not own or (allowed.client_webhooks and all("webhook" in entry for entry in own))
    assert job.keep_s == (None if allowed.keep_days is None else allowed.keep_days * 86_400)
    assert (job.endpoint, job.endpoint_version) == ("e", 1)


@given(settings, fields)
def test_a_submission_within_its_endpoint_is_accepted(allowed, asked):
    endpoint = Endpoint("e", 1, allowed)
    filled = apply_endpoint(endpoint, NewJob(), frozenset())
    same = {name: getattr(filled, name) for name in asked if name not in ("notify", "keep_s")}
    assert apply_endpoint(endpoint, replace(NewJob(), **same), frozenset(same)) == filled
