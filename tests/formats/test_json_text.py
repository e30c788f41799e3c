"""Tests of JSON split as text: the parts that a parser finds, with unchanged bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from formats.json_texts import member, separated, texts
from headrace.formats.json_select import elements, json_type_name, members


@settings(max_examples=levels.examples(4))
@given(separated("{", st.lists(member(texts), max_size=5), "}"))
def test_members_equal_those_of_a_parser(text):
    raw = text.encode()
    found = members(raw)
    pairs = json.loads(text, object_pairs_hook=list)
    assert [m.name for m in found] == [name for name, _ in pairs]
    for one, (name, value) in zip(found, pairs, strict=True):
        assert json.loads(raw[one.start : one.end], object_pairs_hook=list) == value
        assert json.loads(b"{" + raw[one.key : one.end] + b"}", object_pairs_hook=list) == [(name, value)]
        assert raw[one.start : one.end] == raw[one.start : one.end].strip()


@settings(max_examples=levels.examples(4))
@given(separated("[", st.lists(texts, max_size=5), "]"))
def test_elements_equal_those_of_a_parser(text):
    found = elements(text.encode())
    assert [json.loads(one, object_pairs_hook=list) for one in found] == json.loads(
        text, object_pairs_hook=list
    )
    assert all(one == one.strip() for one in found)


def test_numbers_keep_their_digits():
    assert elements(b"[1.10, 1e400 ,-0,12345678901234567890123]") == [
        b"1.10",
        b"1e400",
        b"-0",
        b"12345678901234567890123",
    ]


def test_nesting_has_no_limit():
    deep = b"[" * 200_000 + b"]" * 200_000
    assert elements(b"[1," + deep + b",2]") == [b"1", deep, b"2"]
    (one,) = members(b'{"a":' + deep + b"}")
    assert (one.start, one.end) == (5, 5 + len(deep))


def test_members_after_a_deep_member_are_found():
    """The fast path ends at the first deep member."""
    text = b'{"a":1,"b":{"c":{"d":{"e":[[[1]]]}}},"f":2 , "g":[{"h":[{"i":3}]}]}'
    assert [(m.name, text[m.start : m.end]) for m in members(text)] == [
        ("a", b"1"),
        ("b", b'{"c":{"d":{"e":[[[1]]]}}}'),
        ("f", b"2"),
        ("g", b'[{"h":[{"i":3}]}]'),
    ]


@for_each(
    "text",
    [
        b'{"a"',
        b'{"a":}',
        b'{"a":1',
        b'{"a":1]',
        b'{"a":1,}',
        b"{a:1}",
        b'{"a":1 x,"b":2}',
        b'{x,"b":2}',
        b'{"a":[[[1]]',
        b'{"a":[[[1]]]',
        b"{",
    ],
)
def test_invalid_object_is_rejected(text):
    with pytest.raises(ValueError, match="not JSON"):
        members(text)


@for_each("text", [b"[1", b"[1,", b"[1,]", b"[,1]", b'["a"', b'["a",]', b"[[[[1]]]", b'["a"}', b"["])
def test_invalid_array_is_rejected(text):
    with pytest.raises(ValueError, match="not JSON"):
        elements(text)


def test_other_types_are_named():
    with pytest.raises(ValueError, match="not an object, but an array"):
        members(b"[1]")
    with pytest.raises(ValueError, match="not an array, but a string"):
        elements(b'"[1]"')
    kinds = [json_type_name(t) for t in (b"{}", b"[]", b'""', b"true", b"false", b"null", b"-1", b"")]
    assert kinds == ["an object", "an array", "a string", "true", "false", "null", "a number", "nothing"]
