"""Which trigger an event fires, and that none goes round in a loop."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.jobs.trigger import Trigger, Triggers, idempotency_key, read_triggers
from headrace.protocols.object_events import ObjectEvent


def _trigger(name: str, prefix: str = "s3://b/in/", suffix: str = "", output: str = "s3://b/out/") -> Trigger:
    return Trigger(name=name, prefix=prefix, suffix=suffix, output=output)


def _fired(triggers: Triggers, key: str, bucket: str = "b") -> str | None:
    found = triggers.decide(ObjectEvent(bucket, key)).trigger
    return found.name if found else None


def test_the_longest_prefix_fires_whatever_the_order():
    near, far = _trigger("near", "s3://b/in/a/"), _trigger("far")
    for order in ((near, far), (far, near)):
        triggers = Triggers(order)
        assert _fired(triggers, "in/a/x") == "near"
        assert _fired(triggers, "in/x") == "far"
        assert _fired(triggers, "elsewhere/x") is None
        assert _fired(triggers, "in/x", bucket="c") is None


def test_of_one_prefix_the_first_that_fits_fires():
    triggers = Triggers(
        [_trigger("long", suffix=".tar.gz"), _trigger("short", suffix=".gz"), _trigger("any")]
    )
    assert [_fired(triggers, f"in/x{end}") for end in (".tar.gz", ".gz", ".csv")] == ["long", "short", "any"]


def test_prefix_and_suffix_fit_side_by_side():
    triggers = Triggers([_trigger("t", "s3://b/in/data.c", ".csv")])
    assert _fired(triggers, "in/data.csv") is None
    assert _fired(triggers, "in/data.c.csv") == "t"


def test_what_jobs_write_fires_nothing():
    triggers = Triggers(
        [_trigger("t", "s3://b/", ".csv", "s3://b/out"), _trigger("u", "s3://c/in/", output="s3://c/o")],
        outputs=["s3://b/default/"],
    )
    assert _fired(triggers, "x.csv") == "t"
    assert _fired(triggers, "outside/x.csv") == "t"
    for key in ("out/x.csv", "default/deep/x.csv"):
        decision = triggers.decide(ObjectEvent("b", key))
        assert decision.trigger is None
        assert "where jobs write" in decision.reason
    assert _fired(triggers, "o/x.csv", bucket="c") is None


@pytest.mark.parametrize(
    ("triggers", "outputs", "says"),
    [
        ([_trigger("a"), _trigger("a", "s3://b/other/")], [], "two triggers are called 'a'"),
        ([_trigger("a"), _trigger("b")], [], "'b' can never fire"),
        ([_trigger("a"), _trigger("b", suffix=".csv")], [], "'b' can never fire"),
        ([_trigger("a", suffix=".gz"), _trigger("b", suffix=".tar.gz")], [], "'b' can never fire"),
        ([_trigger("a", output="s3://b/in/out/")], [], "below its own prefix"),
        ([_trigger("a", output="s3://b/in")], [], "below its own prefix"),
        ([_trigger("a", "s3://b/", output="s3://b/out/")], [], "below its own prefix"),
        ([_trigger("a", "s3://b/out/x/", ".csv")], [], "where jobs write"),
        ([_trigger("a", suffix=".csv", output="s3://b/in/")], [], "where jobs write"),
        ([_trigger("a"), _trigger("b", "s3://b/out/a/", output="s3://c/")], [], "where jobs write"),
        ([_trigger("a")], ["s3://b"], "where jobs write"),
        ([_trigger("a", "/in/")], [], "no prefix of events"),
        ([_trigger("a", "gs://b/in/")], [], "no prefix of events"),
        ([_trigger("a", "s3://b")], [], "end the bucket's name with a slash"),
        ([_trigger("a", "s3:///x")], [], "no bucket"),
        ([_trigger("a", "s3://b/../x/")], [], "segment"),
        ([_trigger("")], [], "must not be empty"),
        ([_trigger("a", output="")], [], "must not be empty"),
    ],
)
def test_triggers_that_cannot_be_are_refused(triggers, outputs, says):
    with pytest.raises(ConfigError, match=says):
        Triggers(triggers, outputs=outputs)


_SEGMENT = st.sampled_from(["a", "b", "ab", "in", "out"])
_KEYS = st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join)
_FOLDERS = st.lists(_SEGMENT, max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))


@given(
    st.lists(st.tuples(_FOLDERS, st.sampled_from(["", "a", "b", "ab"]), _FOLDERS), min_size=1, max_size=4),
    _KEYS,
)
def test_no_set_that_is_accepted_can_go_round_in_a_loop(parts, written):
    """Whatever object a job writes below any output, nothing fires; and every trigger can fire on something."""
    try:
        triggers = Triggers(
            Trigger(name=str(n), prefix=f"s3://b/{prefix}", suffix=suffix, output=f"s3://b/{output}")
            for n, (prefix, suffix, output) in enumerate(parts)
        )
    except ConfigError:
        return
    for trigger in triggers:
        key = f"{trigger.output.removeprefix('s3://b/')}{written}"
        assert _fired(triggers, key) is None
        assert _fired(triggers, f"{trigger.prefix.removeprefix('s3://b/')}zzz{trigger.suffix}") is not None


EVENT = ObjectEvent("b", "k", 3, "e", "v", "0055AED6", "ObjectCreated:Put")


def test_an_event_has_one_key_by_whichever_way_it_comes():
    key = idempotency_key(EVENT)
    assert key.startswith("event-")
    assert len(key) == 70
    same = [
        {"name": "ObjectCreated"},
        {"size_bytes": None},
        {"etag": "other, where there is a version"},
        {"sequencer": "55aed6"},
    ]
    assert {idempotency_key(dataclasses.replace(EVENT, **change)) for change in same} == {key}


def test_another_event_has_another_key():
    changes = [
        {},
        {"bucket": "c"},
        {"key": "l"},
        {"version_id": "w"},
        {"sequencer": "0055AED7"},
        {"version_id": "", "etag": "e"},
        {"version_id": "", "etag": "f"},
        {"bucket": "bk", "key": ""},
    ]
    keys = {idempotency_key(dataclasses.replace(EVENT, **change)) for change in changes}
    assert len(keys) == len(changes)


def test_triggers_are_read_from_tables():
    (found,) = read_triggers(
        [
            {
                "name": "churn",
                "prefix": "s3://b/in/",
                "suffix": ".csv",
                "output": "s3://b/out/",
                "queue": "gpu",
                "model": "churn",
                "kind": "transform",
                "options": {"split": "line"},
            }
        ]
    )
    assert (found.queue, found.kind, dict(found.options)) == ("gpu", "transform", {"split": "line"})


GOOD = {"name": "a", "prefix": "s3://b/in/", "output": "s3://b/out/"}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("text", "expected a table"),
        ({**GOOD, "ending": ".csv"}, "no key is called 'ending'"),
        ({"name": "a", "prefix": "s3://b/in/"}, "'output' is missing"),
        ({**GOOD, "suffix": 3}, "suffix must be text"),
        ({**GOOD, "options": 3}, "options must be a table"),
    ],
)
def test_tables_that_are_none_are_refused(table, says):
    with pytest.raises(ConfigError, match=says):
        read_triggers([table])


@pytest.mark.parametrize(
    "key", ["in/../../x", "in/./x", "in//x", "in/..", "in/a\nb", "in/a\x00b", "in/day/", "in/"]
)
def test_names_that_lead_elsewhere_and_folders_markers_fire_nothing(key):
    """Anybody who may put an object chooses its name, and outputs are named after it."""
    decision = Triggers([_trigger("any")]).decide(ObjectEvent("b", key))
    assert decision.trigger is None
    assert "marker" in decision.reason or "segment" in decision.reason
    assert decision.reason.isprintable()
