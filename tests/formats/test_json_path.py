"""Tests of applied paths: values of RFC 9535, shapes of batch transform, and unchanged bytes."""

import json

import jsonpath
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from formats.json_texts import texts
from headrace.core.errors import ConfigError
from headrace.formats.json_path import ColumnSelection, compile_path
from headrace.formats.json_select import Slice

ORACLE = jsonpath.JSONPathEnvironment(strict=True)

NAMES = ["a", "b", "é", "\\", "x y"]
names = st.sampled_from(NAMES)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)
documents = st.lists(values, max_size=6) | st.dictionaries(names, values, max_size=4)
indices = st.integers(-4, 4)
ends = st.none() | st.integers(-6, 6)
slices = st.tuples(ends, ends).map(lambda pair: ("slice", pair))
anything = st.one_of(
    st.lists(names.map(lambda n: ("name", n)), min_size=1, max_size=2, unique=True),
    st.lists(st.integers(-4, 4).map(lambda i: ("index", i)) | slices, min_size=1, max_size=2),
    st.just([("every", None)]),
)


@st.composite
def segments_for(draw, document):
    """Draw segments that mostly exist in the document, and now and then any others."""
    segments, node = [], document
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(node, list | dict) or not node or draw(st.integers(0, 5)) == 0:
            segments.append(draw(anything))
            continue
        inside = list(node.values()) if isinstance(node, dict) else node
        if draw(st.integers(0, 5)) == 0:
            segments.append([("every", None)])
        elif isinstance(node, dict):
            chosen = draw(st.lists(st.sampled_from(list(node)), min_size=1, max_size=2, unique=True))
            segments.append([("name", name) for name in chosen])
            inside = [node[chosen[0]]]
        else:
            there = st.integers(-len(node), len(node) - 1).map(lambda i: ("index", i))
            segments.append(draw(st.lists(there | slices, min_size=1, max_size=2)))
            inside = [node[i] for kind, i in segments[-1] if kind == "index"] or node
        node = inside[0]
    return segments


def selector_text(selector):
    kind, value = selector
    if kind == "name":
        return json.dumps(value, ensure_ascii=False)
    if kind == "slice":
        return ":".join("" if end is None else str(end) for end in value)
    return "*" if kind == "every" else str(value)


def path_of(segments):
    return "$" + "".join(f"[{','.join(map(selector_text, segment))}]" for segment in segments)


def reference_nodes(segments, document):
    """Return the nodes of the other implementation."""
    started = [
        [
            ("slice", (0 if value[0] is None else value[0], value[1])) if kind == "slice" else (kind, value)
            for kind, value in s
        ]
        for s in segments
    ]
    return ORACLE.findall(path_of(started), document)


def is_missing(segments, document):
    """Return True if a name or index is missing, or a sliced value is no array, per the reference."""
    for depth, segment in enumerate(segments):
        before = reference_nodes(segments[:depth], document)
        for selector in segment:
            kinds = {"slice": list, "every": list | dict}
            if selector[0] in kinds:
                if not all(isinstance(node, kinds[selector[0]]) for node in before):
                    return True
            elif len(reference_nodes([*segments[:depth], [selector]], document)) < len(before):
                return True
    return False


@settings(max_examples=levels.examples(6))
@given(documents, st.data())
def test_values_equal_those_of_rfc_9535(document, data):
    """Another implementation is the reference. If a part is missing, headrace raises."""
    segments = data.draw(segments_for(document))
    text = path_of(segments)
    assume(len(text) <= 63)
    path = compile_path(text)
    if is_missing(segments, document):
        event("lacking")
        with pytest.raises(ValueError):
            path.value(document)
        with pytest.raises(ValueError):
            path.raw(json.dumps(document).encode())
        return
    nodes = reference_nodes(segments, document)
    value = path.value(document)
    event(f"{len(segments)} segments, {min(len(nodes), 3)} nodes")
    single = [len(s) == 1 and s[0][0] in {"name", "index"} for s in segments]
    listed = bool(segments) and len(segments[-1]) > 1 and segments[-1][0][0] == "name"
    if all(single):
        assert [value] == nodes
    elif listed and all(single[:-1]):
        assert list(value) == [name for _, name in segments[-1]]
        assert list(value.values()) == nodes
    elif listed:
        assert [inner for one in value for inner in one.values()] == nodes
    else:
        assert value == nodes
    assert json.loads(path.raw(json.dumps(document).encode())) == value


@settings(max_examples=levels.examples(6))
@given(texts, st.data())
def test_selection_of_a_text_equals_that_of_the_parsed_record(text, data):
    """Repeated keys, escapes and blanks are included, and numbers keep their text."""
    path = path_of(data.draw(segments_for(json.loads(text))))
    assume(len(path) <= 63)
    compiled = compile_path(path)
    # Numbers stay texts, so that digits are compared instead of values.
    as_written = {"parse_int": lambda digits: f"#{digits}", "parse_float": lambda digits: f"#{digits}"}
    parsed = json.loads(text, **as_written)
    try:
        expected = compiled.value(parsed)
    except ValueError:
        event("lacking")
        with pytest.raises(ValueError):
            compiled.raw(text.encode())
        return
    raw = compiled.raw(text.encode())
    event("found")
    assert json.loads(raw, **as_written) == expected
    assert json.loads(raw) == compiled.value(json.loads(text))


RECORD = {"id": 7, "features": list(range(8)), "f": {"a": 1, "b": {"c": 2}, "z": [{"q": 3}, {"q": 4}]}}


@for_each(
    ("path", "value"),
    [
        ("$.id", 7),
        ("$['id']", 7),
        ("$['f','id']", {"f": RECORD["f"], "id": 7}),
        ("$.features[0]", 0),
        ("$.features[-1]", 7),
        ("$.features[0,-1]", [0, 7]),
        ("$.features[0,5:]", [0, 5, 6, 7]),
        ("$.features[0:3,7]", [0, 1, 2, 7]),
        ("$.features[2:5]", [2, 3, 4]),
        ("$.features[6:99]", [6, 7]),
        ("$.features[9:]", []),
        ("$.f.['a','b']", {"a": 1, "b": {"c": 2}}),
        ("$.f.b.*", [2]),
        ("$.f.z[*].q", [3, 4]),
        ("$.f.z[0:1]['q','q']", [{"q": 3}]),
        ("$['f']['b','a'][*]", None),
    ],
)
def test_selection_is_a_value_an_object_or_an_array(path, value):
    compiled = compile_path(path)
    if value is None:
        with pytest.raises(ValueError, match="needs an array"):
            compiled.value(RECORD)
        return
    assert compiled.value(RECORD) == value
    text = compiled.raw(json.dumps(RECORD).encode())
    assert json.loads(text) == value
    if isinstance(value, dict):
        assert list(compiled.value(RECORD)) == list(json.loads(text)) == list(value)


def test_inclusive_slice_keeps_its_last_element():
    assert compile_path("$[1:4]").value(list("abcdef")) == list("bcd")
    assert compile_path("$[1:4]", slice_end="inclusive").value(list("abcdef")) == list("bcde")
    assert compile_path("$[:-2]", slice_end="inclusive").raw(b"[1,2,3]") == b"[1,2]"
    with pytest.raises(ConfigError, match="slice_end must be"):
        compile_path("$", slice_end="both")


@for_each(
    ("path", "raw"),
    [
        ("$", b' {"n": 1.10, "big":12345678901234567890123,"z":[-0, 1e400],"s":"\\u00e9" } '),
        ("$.n", b"1.10"),
        ("$['s','n']", b'{"s":"\\u00e9","n": 1.10}'),
        ("$.z", b"[-0, 1e400]"),
        ("$.z[1,0]", b"[1e400,-0]"),
        ("$.*", b'[1.10,12345678901234567890123,[-0, 1e400],"\\u00e9"]'),
    ],
)
def test_selected_parts_keep_their_bytes(path, raw):
    text = b' {"n": 1.10, "big":12345678901234567890123,"z":[-0, 1e400],"s":"\\u00e9" } '
    assert compile_path(path).raw(text) == raw


@for_each(
    ("path", "record", "why"),
    [
        ("$.id", {"a": 1, "b": 2}, '"id" is missing; the value has "a", "b"'),
        ("$.id", {}, '"id" is missing; the value has no members'),
        ("$.id", [1], '"id" is missing: the value is an array, not an object'),
        ("$['a','id']", {"a": 1}, '"id" is missing; the value has "a"'),
        ("$.a.b.c", {"a": {"b": 3}}, '"c" is missing: $.a.b is a number, not an object'),
        ("$[7]", [1, 2], "there is no element 7; the value has 2 elements, counted from 0"),
        ("$[0,-3]", [1, 2], "there is no element -3; the value has 2 elements, counted from 0"),
        ("$[1:]", {"a": 1}, "a slice needs an array, but the value is an object"),
        ("$[0]", "text", "element 0 needs an array, but the value is a string"),
        ("$.a[*]", {"a": None}, "[*] needs an array or object, but $.a is null"),
        ("$.a.*.x", {"a": {"b": True}}, '"x" is missing: $.a.* is true, not an object'),
    ],
)
def test_missing_parts_raise_alike_for_values_and_texts(path, record, why):
    compiled = compile_path(path)
    for apply, given_record in ((compiled.value, record), (compiled.raw, json.dumps(record).encode())):
        with pytest.raises(ValueError) as raised:
            apply(given_record)
        assert str(raised.value) == why


def test_message_for_a_wide_record_stays_short():
    wide = {f"a rather long name of a member of this record, {i}": i for i in range(5000)}
    with pytest.raises(ValueError, match=r"… \(5000 in all\)") as raised:
        compile_path("$.x").value(wide)
    assert len(str(raised.value)) < 1600


def test_invalid_json_raises_value_error():
    with pytest.raises(ValueError, match="not JSON"):
        compile_path("$.a").raw(b'{"a":1')
    with pytest.raises(ValueError, match="the value is nothing"):
        compile_path("$.a").raw(b"  ")


@for_each(
    ("path", "selection"),
    [
        ("$[0,-1]", ColumnSelection("$[0,-1]", (0, -1))),
        ("$[1:]", ColumnSelection("$[1:]", (Slice(1, None),))),
        ("$[*]", ColumnSelection("$[*]", (Slice(None, None),))),
        ("$['a','b']", ColumnSelection("$['a','b']", names=("a", "b"))),
        ("$.a", ColumnSelection("$.a", names=("a",))),
        ("$.a[0]", None),
        ("$[0][0]", None),
        ("$", None),
    ],
)
def test_paths_of_one_segment_select_columns(path, selection):
    assert compile_path(path).columns == selection


def test_other_paths_are_rejected_for_csv():
    assert compile_path("$").csv_columns(named=False) is None
    assert compile_path("$[1]").csv_columns(named=False) == ColumnSelection("$[1]", (1,))
    assert compile_path("$.a").csv_columns(named=True) == ColumnSelection("$.a", names=("a",))
    with pytest.raises(ConfigError, match=r"\$\.a selects columns by name, but the records have no header"):
        compile_path("$.a").csv_columns(named=False)
    with pytest.raises(ConfigError, match=r"\$\.a\[0\] does not select columns of CSV records"):
        compile_path("$.a[0]").csv_columns(named=True)


def test_path_relative_to_a_member():
    inner = compile_path("$.out.p[0]").relative_to("out")
    assert inner is not None
    assert inner.value({"p": [5]}) == 5
    assert compile_path("$['out','id']").relative_to("out") is None
    assert compile_path("$").relative_to("out") is None
    assert compile_path("$.out").relative_to("out").is_root
