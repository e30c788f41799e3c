"""Tests of the supported path syntax and of its error messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.formats.json_path import compile_path
from headrace.formats.json_select import MemberSelector, Slice, WildcardSelector


def parse_bare(text, slice_end="exclusive"):
    """Return the segments without their prefixes."""
    segments = compile_path(text, slice_end=slice_end).segments
    return [
        "*" if isinstance(s, WildcardSelector) else s.names if isinstance(s, MemberSelector) else s.selectors
        for s in segments
    ]


@for_each(
    ("text", "segments"),
    [
        ("$", []),
        ("$.id", [("id",)]),
        ("$.é_1.b", [("é_1",), ("b",)]),
        ("$.*", ["*"]),
        ("$[*]", ["*"]),
        ("$.[ * ]", ["*"]),
        ("$['id','SageMakerOutput']", [("id", "SageMakerOutput")]),
        ("""$["a", 'b "c"']""", [("a", 'b "c"')]),
        (r"$['\'\\\/\b\f\n\r\t\u00e9']", [("'\\/\b\f\n\r\té",)]),
        (r'$["\"\ud83d\ude00"]', [('"😀',)]),
        ("$['a.b']", [("a.b",)]),
        (r"$['a\u002eb','c']", [("a.b", "c")]),
        ("$['']", [("",)]),
        ("$[1]", [(1,)]),
        ("$[0,-1]", [(0, -1)]),
        ("$[2:5]", [(Slice(2, 5),)]),
        ("$[:5]", [(Slice(None, 5),)]),
        ("$[ 2 : ]", [(Slice(2, None),)]),
        ("$[:]", [(Slice(None, None),)]),
        ("$[-3:-1]", [(Slice(-3, -1),)]),
        ("$[0,5:]", [(0, Slice(5, None))]),
        ("$[0:3, 7]", [(Slice(0, 3), 7)]),
        ("$.features[0:3]", [("features",), (Slice(0, 3),)]),
        ("$.f.['a','b']", [("f",), ("a", "b")]),
        ("$ ['a'] [0]", [("a",), (0,)]),
        ("$" + ".a" * 31, [("a",)] * 31),
    ],
)
def test_supported_syntax(text, segments):
    """Every operator in SageMaker's table, in the syntax of RFC 9535."""
    assert parse_bare(text) == segments


def test_segments_keep_the_path_before_them():
    assert [s.prefix for s in compile_path("$.a [0].b").segments] == ["$", "$.a", "$.a [0]"]


@for_each(
    ("text", "place"),
    [
        ("$[1:4]", Slice(1, 5)),
        ("$[:5]", Slice(None, 6)),
        ("$[:-1]", Slice(None, None)),
        ("$[:-2]", Slice(None, -1)),
    ],
)
def test_inclusive_slice_ends_one_later(text, place):
    assert parse_bare(text, "inclusive") == [(place,)]


@for_each(
    ("text", "character", "why"),
    [
        ("", 1, "a path starts with [$]"),
        ("id", 1, "a path starts with [$]"),
        (" $", 1, "a path starts with [$]"),
        ("$ ", 2, "trailing white space"),
        ("$x", 2, "a segment starts with . or"),
        ("$..a", 2, "descendants"),
        ("$.a..*", 4, "descendants"),
        ("$[?(@.a>1)]", 3, "filter expressions"),
        ("$[?@.a]", 3, "filter expressions"),
        ("$[(@.length-1)]", 3, "script expressions"),
        ("$[@]", 3, "script expressions"),
        ("$[1:4:2]", 6, "step"),
        ("$[::2]", 4, "step"),
        ("$['a','b.c']", 7, "a path inside a list of names"),
        ("$['a',0]", 7, "either names or indices"),
        ("$[0,'a']", 5, "either names or indices"),
        ("$[*,0]", 4, "cannot be combined"),
        ("$[0,*]", 5, "expected an index"),
        ("$[]", 3, "expected an index"),
        ("$[0", 4, "a comma or ]"),
        ("$['a'", 6, "a comma or ]"),
        ("$['a", 3, "unclosed quote"),
        ("$['a',]", 7, "quoted name"),
        ("$.", 3, "expected a name"),
        ("$.0", 3, "expected a name"),
        ("$.my-key", 5, "a segment starts"),
        ("$[01]", 3, "write 01 as 1"),
        ("$[-0]", 3, "write -0 as 0"),
        ("$[9007199254740992]", 3, "too large"),
        (r"$['\x']", 4, "is not an escape sequence"),
        (r"""$['\"']""", 4, "is not an escape sequence"),
        (r"$['\u12']", 4, "is not an escape sequence"),
        (r"$['\ud800']", 4, "an unpaired surrogate"),
        ("$['a\tb']", 4, "control characters"),
    ],
)
def test_unsupported_syntax_raises_with_its_character(text, character, why):
    with pytest.raises(ConfigError, match=f"character {character} .*{why}.*; allowed are [$], .name"):
        compile_path(text)


def test_path_over_63_characters_is_rejected():
    with pytest.raises(ConfigError, match="has 64 characters; the limit is 63"):
        compile_path("$." + "a" * 62)


@given(st.text("$.[]*'\"\\,:-019ab u?@(){}\t\né\ud800", max_size=12))
def test_any_text_is_a_path_or_a_config_error(text):
    try:
        compile_path("$" + text)
    except ConfigError:
        return


@given(
    st.lists(
        st.text(min_size=1, max_size=4).filter(lambda n: "." not in n), min_size=1, max_size=3, unique=True
    )
)
def test_any_name_can_be_written_with_json_escapes(names):
    import json

    if any("\ud800" <= c <= "\udfff" for name in names for c in name):
        return
    text = "$[" + ",".join(map(json.dumps, names)) + "]"
    if len(text) <= 63:
        assert parse_bare(text) == [tuple(names)]
