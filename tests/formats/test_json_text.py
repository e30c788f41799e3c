"""JSON taken apart as text: what is found is what a parser finds, in the bytes that it was written in."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.json_texts import member, separated, texts
from headrace.formats.json_text import elements, kind_of, members


@settings(deadline=None, max_examples=400)
@given(separated("{", st.lists(member(texts), max_size=5), "}"))
def test_members_are_those_that_a_parser_finds(text):
    """Names decoded, values cut out exactly, doubled names and all."""
    raw = text.encode()
    found = members(raw)
    pairs = json.loads(text, object_pairs_hook=list)
    assert [m.name for m in found] == [name for name, _ in pairs]
    for one, (name, value) in zip(found, pairs, strict=True):
        assert json.loads(raw[one.start : one.end], object_pairs_hook=list) == value
        assert json.loads(b"{" + raw[one.key : one.end] + b"}", object_pairs_hook=list) == [(name, value)]
        assert raw[one.start : one.end] == raw[one.start : one.end].strip()


@settings(deadline=None, max_examples=400)
@given(separated("[", st.lists(texts, max_size=5), "]"))
def test_elements_are_those_that_a_parser_finds(text):
    """Also where they are numbers alone, which is done in another way."""
    found = elements(text.encode())
    assert [json.loads(one, object_pairs_hook=list) for one in found] == json.loads(
        text, object_pairs_hook=list
    )
    assert all(one == one.strip() for one in found)


def test_numbers_keep_their_digits():
    """No number is ever read."""
    assert elements(b"[1.10, 1e400 ,-0,12345678901234567890123]") == [
        b"1.10",
        b"1e400",
        b"-0",
        b"12345678901234567890123",
    ]


def test_nesting_has_no_limit():
    """A parser gives up long before."""
    deep = b"[" * 200_000 + b"]" * 200_000
    assert elements(b"[1," + deep + b",2]") == [b"1", deep, b"2"]
    (one,) = members(b'{"a":' + deep + b"}")
    assert (one.start, one.end) == (5, 5 + len(deep))


def test_what_is_deep_does_not_hide_what_is_behind_it():
    """The quick way ends at the first deep member; keys inside it are none of the object's."""
    text = b'{"a":1,"b":{"c":{"d":{"e":[[[1]]]}}},"f":2 , "g":[{"h":[{"i":3}]}]}'
    assert [(m.name, text[m.start : m.end]) for m in members(text)] == [
        ("a", b"1"),
        ("b", b'{"c":{"d":{"e":[[[1]]]}}}'),
        ("f", b"2"),
        ("g", b'[{"h":[{"i":3}]}]'),
    ]


@pytest.mark.parametrize(
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
def test_an_object_that_is_none_is_refused(text):
    """At the level that is looked at."""
    with pytest.raises(ValueError, match="not JSON"):
        members(text)


@pytest.mark.parametrize(
    "text", [b"[1", b"[1,", b"[1,]", b"[,1]", b'["a"', b'["a",]', b"[[[[1]]]", b'["a"}', b"["]
)
def test_an_array_that_is_none_is_refused(text):
    """At the level that is looked at."""
    with pytest.raises(ValueError, match="not JSON"):
        elements(text)


def test_what_is_something_else_is_said():
    """In words."""
    with pytest.raises(ValueError, match="not an object, but an array"):
        members(b"[1]")
    with pytest.raises(ValueError, match="not an array, but a string"):
        elements(b'"[1]"')
    kinds = [kind_of(t) for t in (b"{}", b"[]", b'""', b"true", b"false", b"null", b"-1", b"")]
    assert kinds == ["an object", "an array", "a string", "true", "false", "null", "a number", "nothing"]
