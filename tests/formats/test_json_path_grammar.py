"""The paths that filters take, and words for those that they do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.formats.json_path_grammar import Every, Names, Slice, parse


def bare(text, slice_end="exclusive"):
    """Segments without where they stand."""
    segments = parse(text, slice_end)
    return ["*" if isinstance(s, Every) else s.names if isinstance(s, Names) else s.places for s in segments]


@pytest.mark.parametrize(
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
def test_what_is_supported(text, segments):
    """Every operator of the vendor's table, in RFC 9535's grammar."""
    assert bare(text) == segments


def test_where_a_segment_stands_is_kept_for_failures():
    """The path's own text before it."""
    assert [s.where for s in parse("$.a [0].b", "exclusive")] == ["$", "$.a", "$.a [0]"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("$[1:4]", Slice(1, 5)),
        ("$[:5]", Slice(None, 6)),
        ("$[:-1]", Slice(None, None)),
        ("$[:-2]", Slice(None, -1)),
    ],
)
def test_the_last_one_may_be_meant_to_be_kept(text, place):
    """As the vendor's prose has it: also when it is counted from the end."""
    assert bare(text, "inclusive") == [(place,)]


@pytest.mark.parametrize(
    ("text", "character", "why"),
    [
        ("", 1, "a path starts with [$]"),
        ("id", 1, "a path starts with [$]"),
        (" $", 1, "a path starts with [$]"),
        ("$ ", 2, "blanks at the end"),
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
        ("$['a',0]", 7, "names or of indices"),
        ("$[0,'a']", 5, "not of both"),
        ("$[*,0]", 4, "stands alone"),
        ("$[0,*]", 5, "was expected"),
        ("$[]", 3, "was expected"),
        ("$[0", 4, "a comma or ]"),
        ("$['a'", 6, "a comma or ]"),
        ("$['a", 3, "never closes"),
        ("$['a',]", 7, "quoted name"),
        ("$.", 3, "a name was expected"),
        ("$.0", 3, "a name was expected"),
        ("$.my-key", 5, "a segment starts"),
        ("$[01]", 3, "01 is written 1"),
        ("$[-0]", 3, "-0 is written 0"),
        ("$[9007199254740992]", 3, "too large"),
        (r"$['\x']", 4, "no escape"),
        (r"""$['\"']""", 4, "no escape"),
        (r"$['\u12']", 4, "no escape"),
        (r"$['\ud800']", 4, "half a surrogate"),
        ("$['a\tb']", 4, "control characters"),
    ],
)
def test_what_is_not_is_said_where(text, character, why):
    """With what is allowed instead."""
    with pytest.raises(ConfigError, match=f"character {character} .*{why}.*; allowed are [$], .name"):
        parse(text, "exclusive")


def test_a_path_has_63_characters_at_most():
    """As the vendor's API has it."""
    with pytest.raises(ConfigError, match="has 64 characters; at most 63"):
        parse("$." + "a" * 62, "exclusive")


@given(st.text("$.[]*'\"\\,:-019ab u?@(){}\t\né\ud800", max_size=12))
def test_any_text_is_a_path_or_a_config_error(text):
    """Nothing else is ever raised."""
    try:
        parse("$" + text, "exclusive")
    except ConfigError:
        return


@given(
    st.lists(
        st.text(min_size=1, max_size=4).filter(lambda n: "." not in n), min_size=1, max_size=3, unique=True
    )
)
def test_any_name_can_be_written(names):
    """In JSON's own escapes, in double quotes."""
    import json

    if any("\ud800" <= c <= "\udfff" for name in names for c in name):
        return
    text = "$[" + ",".join(map(json.dumps, names)) + "]"
    if len(text) <= 63:
        assert bare(text) == [tuple(names)]
