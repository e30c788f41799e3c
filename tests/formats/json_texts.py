"""Strategies of JSON texts with blanks, repeated keys, and numbers that a float would not keep."""

from hypothesis import strategies as st

blanks = st.sampled_from(["", "", "", " ", "\n\t", "  ", "\r\n"])
numbers = st.sampled_from(["0", "-0", "1.10", "1e400", "-2.5E-3", "12345678901234567890123", "7"])
strings = st.sampled_from(
    ['""', '"a"', '"b"', '"\\u0061"', '"\\u00e9é"', '"\\\\"', '"\\""', '"]}[{,:"', '"\\\\\\""', '"% b"']
)
scalars = numbers | strings | st.sampled_from(["true", "false", "null"])


@st.composite
def separated(draw, opening, items, closing):
    """Draw items between brackets, with blanks where JSON allows them."""
    parts = [draw(blanks) + item + draw(blanks) for item in draw(items)]
    return opening + (",".join(parts) if parts else draw(blanks)) + closing


@st.composite
def member(draw, values):
    return draw(strings) + draw(blanks) + ":" + draw(blanks) + draw(values)


def containers(values):
    return separated("[", st.lists(values, max_size=4), "]") | separated(
        "{", st.lists(member(values), max_size=4), "}"
    )


texts = st.recursive(scalars, containers, max_leaves=12)
