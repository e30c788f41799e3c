"""Triggers: selection by prefix and suffix, prevention of loops, and keys of events."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.jobs.trigger import Trigger, Triggers, idempotency_key, read_triggers
from headrace.protocols.object_events import ObjectEvent


def _trigger(name: str, prefix: str = "s3://b/in/", suffix: str = "", output: str = "s3://b/out/") -> Trigger:
    return Trigger(name=name, prefix=prefix, suffix=suffix, output=output)


def _fired(triggers: Triggers, key: str, bucket: str = "b") -> str | None:
    found = triggers.decide(ObjectEvent(bucket, key)).trigger
    return found.name if found else None


def test_longest_prefix_fires():
    near, far = _trigger("near", "s3://b/in/a/"), _trigger("far")
    for order in ((near, far), (far, near)):
        triggers = Triggers(order)
        assert _fired(triggers, "in/a/x") == "near"
        assert _fired(triggers, "in/x") == "far"
        assert _fired(triggers, "elsewhere/x") is None
        assert _fired(triggers, "in/x", bucket="c") is None


def test_first_of_equal_prefixes_fires():
    triggers = Triggers(
        [_trigger("long", suffix=".tar.gz"), _trigger("short", suffix=".gz"), _trigger("any")]
    )
    assert [_fired(triggers, f"in/x{end}") for end in (".tar.gz", ".gz", ".csv")] == ["long", "short", "any"]


def test_prefix_and_suffix_must_not_overlap():
    triggers = Triggers([_trigger("t", "s3://b/in/data.c", ".csv")])
    assert _fired(triggers, "in/data.csv") is None
    assert _fired(triggers, "in/data.c.csv") == "t"


def test_outputs_fire_nothing():
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


@for_each(
    ("triggers", "outputs", "says"),
    [
        ([_trigger("a"), _trigger("a", "s3://b/other/")], [], "two triggers are named 'a'"),
        ([_trigger("a"), _trigger("b")], [], "'b' can never fire"),
        ([_trigger("a"), _trigger("b", suffix=".csv")], [], "'b' can never fire"),
        ([_trigger("a", suffix=".gz"), _trigger("b", suffix=".tar.gz")], [], "'b' can never fire"),
        ([_trigger("a", output="s3://b/in/out/")], [], "below its own prefix"),
        ([_trigger("a", output="s3://b/in")], [], "below its own prefix"),
        ([_trigger("a", "s3://b/", output="s3://b/out/")], [], "below its own prefix"),
        ([_trigger("a", "s3://b/out/x/", ".csv")], [], "lies below the output"),
        ([_trigger("a", suffix=".csv", output="s3://b/in/")], [], "lies below the output"),
        ([_trigger("a"), _trigger("b", "s3://b/out/a/", output="s3://c/")], [], "lies below the output"),
        ([_trigger("a")], ["s3://b"], "lies below the output"),
        ([_trigger("a", "/in/")], [], "is not an S3 prefix"),
        ([_trigger("a", "gs://b/in/")], [], "is not an S3 prefix"),
        ([_trigger("a", "s3://b")], [], "end the bucket name with a slash"),
        ([_trigger("a", "s3:///x")], [], "the bucket is missing"),
        ([_trigger("a", "s3://b/../x/")], [], "segment"),
        ([_trigger("")], [], "must not be empty"),
        ([_trigger("a", output="")], [], "must not be empty"),
    ],
)
def test_invalid_triggers_are_refused(triggers, outputs, says):
    with pytest.raises(ConfigError, match=says):
        Triggers(triggers, outputs=outputs)


_SEGMENT = st.sampled_from(["a", "b", "ab", "in", "out"])
_KEYS = st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join)
_FOLDERS = st.lists(_SEGMENT, max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))


@given(
    st.lists(st.tuples(_FOLDERS, st.sampled_from(["", "a", "b", "ab"]), _FOLDERS), min_size=1, max_size=4),
    _KEYS,
)
def test_accepted_triggers_cannot_loop(parts, written):
    """Objects below an output fire no trigger, and every accepted trigger can fire."""
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


def test_copies_of_an_event_have_one_key():
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


def test_other_events_have_other_keys():
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


@for_each(
    ("table", "says"),
    [
        ("text", "expected a table"),
        ({**GOOD, "ending": ".csv"}, "unknown key 'ending'"),
        ({"name": "a", "prefix": "s3://b/in/"}, "'output' is missing"),
        ({**GOOD, "suffix": 3}, "suffix must be text, not 3"),
        ({**GOOD, "options": 3}, "options must be a table"),
    ],
)
def test_invalid_tables_are_refused(table, says):
    with pytest.raises(ConfigError, match=says):
        read_triggers([table])


@for_each("key", ["in/../../x", "in/./x", "in//x", "in/..", "in/a\nb", "in/a\x00b", "in/day/", "in/"])
def test_unsafe_names_and_folder_markers_fire_nothing(key):
    """Clients with write access choose object names, and headrace names outputs after them."""
    decision = Triggers([_trigger("any")]).decide(ObjectEvent("b", key))
    assert decision.trigger is None
    assert "marker" in decision.reason or "segment" in decision.reason
    assert decision.reason.isprintable()
