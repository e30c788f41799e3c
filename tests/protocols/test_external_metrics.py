"""Label selectors as Kubernetes writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import DataError
from headrace.protocols.external_metrics import (
    SELECTOR_CHARS_MAX,
    LabelRequirement,
    LabelSelector,
    parse_label_selector,
)

GPU = {"pool": "gpu"}


@for_each(
    ("text", "selected"),
    [
        ("", True),
        (" \t\r\n", True),
        ("pool=gpu", True),
        ("pool==gpu", True),
        (" pool = gpu ", True),
        ("pool=cpu", False),
        ("pool=GPU", False),
        ("pool!=cpu", True),
        ("pool!=gpu", False),
        ("zone!=a", True),
        ("zone=", False),
        ("pool=", False),
        ("pool!=", True),
        ("pool in (cpu, gpu)", True),
        ("pool in(gpu)", True),
        ("pool in (cpu,disk)", False),
        ("pool notin (cpu)", True),
        ("pool notin (cpu,gpu)", False),
        ("zone notin (a)", True),
        ("zone in (a)", False),
        ("zone in ()", False),
        ("pool", True),
        ("zone", False),
        ("!pool", False),
        ("! zone", True),
        ("pool,!zone,pool notin (a,,b)", True),
        ("pool,zone", False),
        ("pool=gpu,pool=cpu", False),
    ],
)
def test_selector_selects_labels(text, selected):
    assert parse_label_selector(text).matches(GPU) is selected


@for_each(
    ("text", "labels"),
    [
        ("example.com/pool=a", {"example.com/pool": "a"}),
        ("in in (in,notin)", {"in": "notin"}),
        ("notin notin (in),in", {"in": "in", "notin": "notin"}),
        ("pool=", {"pool": ""}),
        ("pool in (,a)", {"pool": ""}),
        ("pool in (a,)", {"pool": ""}),
        ("pool in ()", {"pool": ""}),
        ("A.b_c-9=A.b_c-9", {"A.b_c-9": "A.b_c-9"}),
        (f"{'k' * 63}={'v' * 63}", {"k" * 63: "v" * 63}),
    ],
)
def test_selector_may_have_unusual_names(text, labels):
    assert parse_label_selector(text).matches(labels)


@for_each(
    ("text", "why"),
    [
        ("pool in (a", r"found the end, expected ',' or '\)'"),
        ("pool in a)", r"found 'a', expected '\('"),
        ("pool=a)", r"found '\)', expected ',' or the end"),
        ("pool in (a b)", "found 'b'"),
        ("pool in ((a))", r"found '\('"),
        ("pool>1", "found '>'"),
        ("pool<1", "found '<'"),
        ("pool=a b", "found 'b', expected ',' or the end"),
        ("pool===a", "found '='"),
        ("pool=!a", "found '!'"),
        ("!pool=a", "found '=', expected ',' or the end"),
        ("!", "found the end, expected the name of a label"),
        ("!!pool", "found '!'"),
        ("=a", "found '='"),
        ("pool,", "found the end"),
        (",pool", "found ','"),
        ("pool,,zone", "found ','"),
        ("pool like a", "found 'like'"),
        ("-pool", "found '-pool'"),
        ("pool=a-", "found 'a-'"),
        ("pööl", r"found 'p\\xf6\\xf6l'"),
        ("/pool", "found '/pool'"),
        ("a/b/c", "found 'a/b/c'"),
        ("Example.com/pool", "found 'Example.com/pool'"),
        (f"{'a.' * 126}aa/pool", "expected the name"),
        (f"{'k' * 64}=a", "expected the name"),
        (f"pool={'v' * 64}", "at most 63"),
        ("pool=\0", "x00"),
        ("pool=a\n=", "found '='"),
        (" " * (SELECTOR_CHARS_MAX + 1), "longer than the limit of 4096"),
    ],
)
def test_invalid_selector_is_refused(text, why):
    with pytest.raises(DataError, match=f"labelSelector: .*{why}") as caught:
        parse_label_selector(text)
    assert len(str(caught.value)) < 250


@given(st.text(st.sampled_from("ab-.=!<>(), \t/\0é") | st.characters(), max_size=40))
def test_any_text_is_a_selector_or_a_data_error(text):
    try:
        selector = parse_label_selector(text)
    except DataError:
        return
    selector.matches(GPU)


# Rendering


VALUES = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
KEYS = st.from_regex(
    r"([a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?(\.[a-z]{1,9}){0,2}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
    fullmatch=True,
)
REQUIREMENTS = st.builds(
    LabelRequirement, KEYS, st.none() | st.frozensets(VALUES, min_size=1, max_size=4), st.booleans()
)


def renderings(requirement, space):
    """Return all ways to write a requirement, with `space` wherever it is optional."""
    key, values, negated = f"{space}{requirement.key}{space}", requirement.values, requirement.negated
    if values is None:
        return [f"{space}!{key}" if negated else key]
    words = ",".join(f"{space}{value}{space}" for value in sorted(values))
    ways = [f"{key} {'notin' if negated else 'in'}{space}({words}){space}"]
    if len(values) == 1:
        ways += [f"{key}{operator}{words}" for operator in (("!=",) if negated else ("=", "=="))]
    return ways


@given(st.lists(REQUIREMENTS, max_size=4), st.sampled_from(["", " ", "\t \n"]), st.data())
def test_rendered_selector_is_read_back(requirements, space, data):
    ways = [data.draw(st.sampled_from(renderings(each, space)), label="way") for each in requirements]
    assert parse_label_selector(",".join(ways)).requirements == tuple(requirements)


@given(REQUIREMENTS, st.dictionaries(KEYS, VALUES, max_size=3))
def test_negated_requirement_selects_the_other_labels(requirement, labels):
    negated = LabelRequirement(requirement.key, requirement.values, not requirement.negated)
    assert requirement.matches(labels) is not negated.matches(labels)
    assert LabelSelector((requirement, negated)).matches(labels) is False
