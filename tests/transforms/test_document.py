"""Spec texts as tables: what parses, what a key may hold, and where messages say the fault is."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.transforms.document import Table, read_document, shown

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def table(**values) -> Table:
    return Table("a.toml", "T", values)


def test_toml_and_json_hold_the_same():
    toml = read_document('A = 1\n[B]\nC.D = ["x"]\n', "spec.TOML")
    assert toml == read_document('{"A": 1, "B": {"C": {"D": ["x"]}}}', "dir.d/spec.json")
    assert toml == read_document('\ufeff{"A": 1, "B": {"C": {"D": ["x"]}}}', "spec.json")
    assert toml == {"A": 1, "B": {"C": {"D": ["x"]}}}


@pytest.mark.parametrize(
    ("text", "name", "why"),
    [
        ("", "spec.yaml", r"spec\.yaml: a spec file's name ends in \.toml or \.json"),
        ("", "toml", "ends in"),
        ("", "", "ends in"),
        ("{", "a.json", "a.json: it is no JSON: "),
        ("a = ", "a.toml", "a.toml: it is no TOML: "),
        ("[1]", "a.json", r"a spec is an object of fields, not \[1\]"),
        ('{"a": {"b": 1, "b": 2}}', "a.json", "the key 'b' is there twice"),
        ("[" * 100_000, "a.json", "nested too deeply"),
        ("a = " + "[" * 100_000, "a.toml", "nested too deeply"),
        ("9" * 5000, "a.json", "it is no JSON"),
        (r'{"a": "\ud800"}', "a.json", "it is no JSON: .*surrogates"),
        ('{"a": "\ud800"}', "a.json", "it is no JSON: .*surrogates"),
        ('a = "\ud800"', "a.toml", "it is no TOML: .*surrogates"),
    ],
)
def test_what_is_no_spec(text, name, why):
    with pytest.raises(ConfigError, match=why):
        read_document(text, name)


@given(st.text(), st.sampled_from(["a.toml", "a.json"]))
def test_any_text_is_a_document_or_refused(text, name):
    with suppress(ConfigError):
        assert isinstance(read_document(text, name), dict)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_what_json_writes_is_read_back(document):
    text = json.dumps(document)
    assert json.dumps(read_document(text, "a.json")) == text


def test_an_unknown_field_is_told_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"^a\.json: T: there is no field 'SplitTyp'; did you mean 'SplitType'\?$"
    ):
        Table.of("a.json", "T", {"SplitTyp": 1}, ("SplitType", "ContentType"))
    with pytest.raises(ConfigError, match=r"^a\.json: there is no field 'zzz' \(there are Alpha, Beta\)$"):
        Table.of("a.json", "", {"zzz": 1}, ("Beta", "Alpha"))
    with pytest.raises(ConfigError, match=r"did you mean 'SplitType'"):
        Table.of("a.json", "", {"split_type": 1}, ("SplitType",))
    with pytest.raises(ConfigError, match=r"^a\.json: T\.U: there is no field 'x'"):
        Table.of("a.json", "T", {"U": {"x": 1}}, ("U",)).table("U", ("X_other",))


def test_what_is_no_table():
    with pytest.raises(ConfigError, match=r"a\.json: T must be a table of fields, not \[\]"):
        Table.of("a.json", "T", [], ())


def test_null_says_nothing():
    found = Table.of("a.json", "T", {"a": None}, ("a",))
    assert not found.has("a")
    assert found.text("a") is None


READERS = {
    "text": lambda t: t.text("k"),
    "short": lambda t: t.text("k", characters_max=3),
    "whole": lambda t: t.whole("k", 0, 5),
    "number": lambda t: t.number("k", 0.5),
    "flag": lambda t: t.flag("k"),
    "word": lambda t: t.word("k", {"Line": 1}),
    "listed": lambda t: t.listed("k"),
    "texts": lambda t: t.texts("k"),
    "size": lambda t: t.size_bytes("k"),
    "table": lambda t: t.table("k", ("a",)).values,
}


@pytest.mark.parametrize(
    ("reader", "value", "found"),
    [
        ("text", "x", "x"),
        ("short", "xyz", "xyz"),
        ("whole", 5, 5),
        ("whole", 0, 0),
        ("number", 1, 1.0),
        ("number", 0.5, 0.5),
        ("flag", False, False),
        ("word", "Line", 1),
        ("listed", [1], [1]),
        ("texts", ["a", "b"], ("a", "b")),
        ("size", 1000, 1000),
        ("size", "1000", 1000),
        ("size", "64MiB", 64 << 20),
        ("size", "2 k", 2 << 10),
        ("table", {"a": 1}, {"a": 1}),
    ],
)
def test_values(reader, value, found):
    assert READERS[reader](table(k=value)) == found


@pytest.mark.parametrize(
    ("reader", "value", "why"),
    [
        ("text", "", "must be text that is not empty, not ''"),
        ("text", 1, "not 1"),
        ("short", "wxyz", "has 4 characters, and at most 3"),
        ("whole", 6, "must be a whole number from 0 to 5, not 6"),
        ("whole", -1, "from 0 to 5"),
        ("whole", True, "not True"),
        ("whole", 1.0, r"not 1\.0"),
        ("whole", "1", "not '1'"),
        ("number", 0.4, r"must be a number of at least 0\.5, not 0\.4"),
        ("number", float("nan"), "not nan"),
        ("number", float("inf"), "not inf"),
        ("number", True, "not True"),
        ("flag", 1, "must be true or false, not 1"),
        ("word", "line", r"must be one of Line, not 'line'; did you mean 'Line'\?"),
        ("word", [1], r"not \[1\]"),
        ("listed", "a", "must be a list"),
        ("texts", [1], "a list of texts"),
        ("texts", [""], "a list of texts"),
        ("size", 0, "at least 1 byte"),
        ("size", True, "at least 1 byte"),
        ("size", "0k", "at least 1 byte"),
        ("size", "1.5MiB", "at least 1 byte"),
        ("size", 1.5, "at least 1 byte"),
        ("size", "many", "at least 1 byte"),
        ("table", 1, " must be a table of fields, not 1"),
    ],
)
def test_wrong_values_name_file_and_field(reader, value, why):
    with pytest.raises(ConfigError, match=rf"^a\.toml: T\.k.*{why}"):
        READERS[reader](table(k=value))


@pytest.mark.parametrize("reader", [r for r in READERS if r != "table"])
def test_a_missing_key_is_none(reader):
    assert READERS[reader](table()) is None


@given(JSON, st.sampled_from(sorted(READERS)))
def test_a_reader_takes_any_value_or_refuses_it(value, reader):
    with suppress(ConfigError):
        READERS[reader](table(k=value))


@given(JSON)
def test_what_is_shown_is_short_and_printable(value):
    text = shown(value)
    assert len(text) <= 61
    text.encode()
    assert text.isprintable()


def test_what_is_nested_deeply_is_shown():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "this list"
    assert shown(10**5000) == "this int"
    while deep:  # unwound here: letting go of it all at once is not every interpreter's strength
        deep = deep[0]
