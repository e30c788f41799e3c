import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.reports.markup import (
    Figure,
    Html,
    count,
    document,
    duration,
    element,
    facts,
    figure,
    join,
    pluralize,
    section,
    share,
    size,
    table,
    text,
)
from reports.page_reader import read_page


@given(st.text())
def test_any_text_is_escaped(value):
    found = read_page(element("p", value, title=value)).children
    assert [e.name for e in found] == ["p"]
    assert found[0].children == []
    assert list(found[0].attributes) == ["title"]


@for_each("bad", ["<script>alert(1)</script>", '"><script>', "'onload='x", "&lt;b&gt;", "]]>", "<!--"])
def test_markup_in_text_is_shown_literally(bad):
    (found,) = read_page(element("p", bad, title=bad)).children
    assert "".join(found.texts) == bad
    assert found.attributes == {"title": bad}


def test_invisible_characters_are_shown_as_escapes():
    assert text("a\x00\n\t\r\x1b\u202eb\ud800") == "a\\x00\\n\\t\\r\\x1b\\u202eb\\ud800"
    assert text("Zürich 東京 👍") == "Zürich 東京 👍"


def test_finished_markup_is_not_escaped_again():
    assert Html("<b>") + "<i>" == "<b>&lt;i&gt;"
    assert isinstance(Html("<b>") + Html("</b>"), Html)
    assert text(Html("<b>")) == "<b>"
    assert join([Html("<b>"), "<"]) == "<b>&lt;"


@for_each(
    ("number", "shown"),
    [
        (0, "0"),
        (1, "1"),
        (0.5, "0.5"),
        (1 / 3, "0.3333"),
        (1234567.8, "1,234,568"),
        (999.96, "1,000"),
        (-2.5, "-2.5"),
        (1e-9, "1e-09"),
        (1e12, "1e+12"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (0.00012345, "0.0001234"),
        (100, "100"),
        (1200.0, "1,200"),
    ],
)
def test_figures_are_rounded(number, shown):
    assert figure(number) == shown


@given(st.floats(1e-4, 9e8))
def test_figures_have_four_correct_digits(number):
    assert float(figure(number).replace(",", "")) == pytest.approx(number, rel=5.1e-4)


@for_each(
    ("part", "whole", "shown"),
    [
        (1, 2, "50.0 %"),
        (0, 5, "0.0 %"),
        (5, 5, "100.0 %"),
        (12, 1_000_000, "0.0012 %"),
        (999_988, 1_000_000, "99.9988 %"),
        (0, 0, "n/a"),
        (1, 1000, "0.1 %"),
    ],
)
def test_shares_never_round_to_none_or_all(part, whole, shown):
    assert share(part, whole) == shown


@for_each(
    ("nbytes", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (23_456_789, "23.5 MB"),
        (999_900, "1,000 kB"),
        (5 * 10**18, "5,000 PB"),
    ],
)
def test_sizes_have_suitable_units(nbytes, shown):
    assert size(nbytes) == shown


@for_each(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.35, "350 ms"),
        (12.34, "12.3 s"),
        (59.96, "1 min 0 s"),
        (245, "4 min 5 s"),
        (7380, "2 h 3 min"),
    ],
)
def test_durations_have_suitable_units(seconds, shown):
    assert duration(seconds) == shown


def test_counts_are_grouped_and_pluralized():
    assert count(1_234_567) == "1,234,567"
    assert pluralize(1, "object") == "1 object"
    assert pluralize(2000, "object") == "2,000 objects"
    assert pluralize(0, "object has", "objects have") == "0 objects have"


def test_table_has_headers_and_alignment():
    found = read_page(
        table("Reasons", ("Reason", "Failures", "Share"), [("<b>", 1200, Figure("1.0 %")), ("x", 3, "?")])
    )
    (made,) = found.all("table")
    assert made.children[0].name == "caption"
    assert [e.attributes["scope"] for e in made.all("thead")[0].all("th")] == ["col"] * 3
    rows = made.all("tbody")[0].all("tr")
    assert [[cell.text for cell in row.children] for row in rows] == [
        ["<b>", "1,200", "1.0 %"],
        ["x", "3", "?"],
    ]
    assert all(row.children[0].name == "th" and row.children[0].attributes["scope"] == "row" for row in rows)
    assert [e.attributes.get("class") for e in rows[0].children] == [None, "n", "n"]
    assert [e.attributes.get("class") for e in made.all("thead")[0].all("th")] == [None, "n", "n"]


def test_table_can_be_empty():
    assert read_page(table("None", ("A", "B"), [])).all("tbody")[0].children == []


def test_sections_have_headings_and_facts():
    found = read_page(section("How fast", facts([("a", "1"), ("b", "<")], wide=True)))
    (made,) = found.all("section")
    assert made.attributes["aria-labelledby"] == made.all("h2")[0].attributes["id"] == "how-fast"
    assert [(e.all("dt")[0].text, e.all("dd")[0].text) for e in made.all("div")] == [("a", "1"), ("b", "<")]


def test_page_is_self_contained_without_scripts():
    page = document("<t>", element("p", "x"))
    found = read_page(page)
    assert page.startswith(b"<!DOCTYPE html>")
    assert found.all("title")[0].text == "<t>"
    assert found.all("html")[0].attributes == {"lang": "en"}
    assert not [e for name in ("script", "link", "img", "iframe", "object") for e in found.all(name)]
    policy = next(e for e in found.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    style = found.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style
    assert style.count("{") == style.count("}")
