"""Spec texts as tables: syntax, valid values, and the location in messages."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.runs.document import SpecTable, format_value, read_document

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def table(**values) -> SpecTable:
    return SpecTable("a.toml", "T", values)


def test_toml_and_json_are_equivalent():
    toml = read_document('A = 1\n[B]\nC.D = ["x"]\n', "spec.TOML")
    assert toml == read_document('{"A": 1, "B": {"C": {"D": ["x"]}}}', "dir.d/spec.json")
    assert toml == read_document('\ufeff{"A": 1, "B": {"C": {"D": ["x"]}}}', "spec.json")
    assert toml == {"A": 1, "B": {"C": {"D": ["x"]}}}


@for_each(
    ("text", "name", "why"),
    [
        ("", "spec.yaml", r"spec\.yaml: a spec file's name ends in \.toml or \.json"),
        ("", "toml", "ends in"),
        ("", "", "ends in"),
        ("{", "a.json", "a.json: invalid JSON: "),
        ("a = ", "a.toml", "a.toml: invalid TOML: "),
        ("[1]", "a.json", r"a spec must be an object with fields, not \[1\]"),
        ('{"a": {"b": 1, "b": 2}}', "a.json", "duplicate key 'b'"),
        ("[" * 100_000, "a.json", "nested too deeply"),
        ("a = " + "[" * 100_000, "a.toml", "nested too deeply"),
        ("9" * 5000, "a.json", "invalid JSON"),
        (r'{"a": "\ud800"}', "a.json", "invalid JSON: .*surrogates"),
        ('{"a": "\ud800"}', "a.json", "invalid JSON: .*surrogates"),
        ('a = "\ud800"', "a.toml", "invalid TOML: .*surrogates"),
    ],
)
def test_invalid_documents_are_refused(text, name, why):
    with pytest.raises(ConfigError, match=why):
        read_document(text, name)


@given(st.text(), st.sampled_from(["a.toml", "a.json"]))
def test_any_text_is_parsed_or_refused(text, name):
    with suppress(ConfigError):
        assert isinstance(read_document(text, name), dict)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_json_documents_round_trip(document):
    text = json.dumps(document)
    assert json.dumps(read_document(text, "a.json")) == text


def test_unknown_field_suggests_the_most_similar():
    with pytest.raises(
        ConfigError, match=r"^a\.json: T: there is no field 'SplitTyp'; did you mean 'SplitType'\?$"
    ):
        SpecTable.from_value("a.json", "T", {"SplitTyp": 1}, ("SplitType", "ContentType"))
    with pytest.raises(ConfigError, match=r"^a\.json: there is no field 'zzz' \(known: Alpha, Beta\)$"):
        SpecTable.from_value("a.json", "", {"zzz": 1}, ("Beta", "Alpha"))
    with pytest.raises(ConfigError, match=r"did you mean 'SplitType'"):
        SpecTable.from_value("a.json", "", {"split_type": 1}, ("SplitType",))
    with pytest.raises(ConfigError, match=r"^a\.json: T\.U: there is no field 'x'"):
        SpecTable.from_value("a.json", "T", {"U": {"x": 1}}, ("U",)).table("U", ("X_other",))


def test_value_in_place_of_a_table_is_refused():
    with pytest.raises(ConfigError, match=r"a\.json: T must be a table of fields, not \[\]"):
        SpecTable.from_value("a.json", "T", [], ())


def test_null_is_an_absent_field():
    found = SpecTable.from_value("a.json", "T", {"a": None}, ("a",))
    assert not found.has("a")
    assert found.text("a") is None


READERS = {
    "text": lambda t: t.text("k"),
    "short": lambda t: t.text("k", characters_max=3),
    "whole": lambda t: t.integer("k", 0, 5),
    "flag": lambda t: t.flag("k"),
    "word": lambda t: t.choice("k", {"Line": 1}),
    "listed": lambda t: t.array("k"),
    "table": lambda t: t.table("k", ("a",)).values,
}


@for_each(
    ("reader", "value", "found"),
    [
        ("text", "x", "x"),
        ("short", "xyz", "xyz"),
        ("whole", 5, 5),
        ("whole", 0, 0),
        ("flag", False, False),
        ("word", "Line", 1),
        ("listed", [1], [1]),
        ("table", {"a": 1}, {"a": 1}),
    ],
)
def test_valid_values_are_returned(reader, value, found):
    assert READERS[reader](table(k=value)) == found


@for_each(
    ("reader", "value", "why"),
    [
        ("text", "", "must be a non-empty text, not ''"),
        ("text", 1, "not 1"),
        ("short", "wxyz", "has 4 characters; the limit is 3"),
        ("whole", 6, "must be a whole number from 0 to 5, not 6"),
        ("whole", -1, "from 0 to 5"),
        ("whole", True, "not True"),
        ("whole", 1.0, r"not 1\.0"),
        ("whole", "1", "not '1'"),
        ("flag", 1, "must be true or false, not 1"),
        ("word", "line", r"must be one of Line, not 'line'; did you mean 'Line'\?"),
        ("word", [1], r"not \[1\]"),
        ("listed", "a", "must be a list"),
        ("table", 1, " must be a table of fields, not 1"),
    ],
)
def test_invalid_values_name_file_and_field(reader, value, why):
    with pytest.raises(ConfigError, match=rf"^a\.toml: T\.k.*{why}"):
        READERS[reader](table(k=value))


@for_each("reader", [r for r in READERS if r != "table"])
def test_missing_key_is_none(reader):
    assert READERS[reader](table()) is None


@given(JSON, st.sampled_from(sorted(READERS)))
def test_any_value_is_read_or_refused(value, reader):
    with suppress(ConfigError):
        READERS[reader](table(k=value))


@given(JSON)
def test_formatted_values_are_short_and_printable(value):
    text = format_value(value)
    assert len(text) <= 61
    text.encode()
    assert text.isprintable()


def test_deeply_nested_value_is_formatted():
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    assert format_value(deep) == "this list"
    assert format_value(10**5000) == "this int"
    while deep:  # unwound here, because some interpreters crash when they free it at once
        deep = deep[0]
