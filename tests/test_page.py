"""Pages that stand alone: data never become markup, numbers that are none become dashes, lines are drawn where they belong."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srns import charts
from srns.drawing import COLOURS
from srns.errors import ArtifactError, ConfigError
from srns.markup import DASH, alike, contrast, escape, lightened, shown
from srns.page import DARK, Cell, Curve, Page

NASTY = [
    "[/x] <b>",
    "</script><script>alert(1)</script>",
    "<!--",
    "]]>",
    "&amp;",
    "'\"`=",
    "{}",
    "\u2028",
    "</style>",
    "x\x00y",
    "\ud800",
]
texts = st.one_of(st.sampled_from(NASTY), st.text(st.characters(codec=None), max_size=20))


class Reader(HTMLParser):
    """What a parser that is not ours makes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ends: list[str] = []
        self.said: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, *each) for each in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.ends.append(tag)

    def handle_data(self, data: str) -> None:
        (
            self.scripts
            if self.tags and self.tags[-1] in ("script", "style") and self.lasttag == self.tags[-1] and self.cdata_elem
            else self.said
        ).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def whole_page(a: str, b: str, tmp_path: Path | None = None) -> Page:
    """All blocks, with two texts all over."""
    page = Page(a, b)
    page.section(a, b)
    page.text(a)
    page.points([a, b])
    page.cards([(a, b, a), (b, a, b)])
    page.table([a, b], [[a, Cell(b, 1.0, "best")], [b, 2.5]], a)
    page.curves([Curve(a, [1, 2], [3, 4]), Curve(b, [1, 3], [1, 2], [0, 1], [2, 3])], a, b, a)
    page.bars([a, b], [1, -1], [0.5, -2], [2, 0], b)
    page.code(a, b)
    with page.details(a):
        page.text(b)
    return page


def as_read(text: str) -> str:
    """What of a text may be in a page: what HTML forbids is replaced."""
    forbidden = {
        *range(9),
        11,
        *range(12, 32),
        *range(127, 160),
        *range(0xD800, 0xE000),
        *range(0xFDD0, 0xFDF0),
        0xFFFE,
        0xFFFF,
    }
    return "".join("\ufffd" if ord(letter) in forbidden else letter for letter in text)


@settings(max_examples=60, deadline=None)
@given(texts, texts)
def test_whatever_things_are_called_the_markup_stays_the_same(a: str, b: str) -> None:
    html = whole_page(a, b).html()
    html.encode()  # as UTF-8, which has no halves of pairs
    found, plain = Reader(html), Reader(whole_page("x" * len(a), "y" * len(b)).html())
    assert found.tags == plain.tags
    assert found.ends == plain.ends
    assert [each[:2] for each in found.attributes] == [each[:2] for each in plain.attributes]
    said = "".join(found.said)
    assert said.count(as_read(a)) >= 5
    numbers = [json.loads(text) for text in found.scripts if text.startswith("{")]
    assert [curve["name"] for chart in numbers for curve in chart["curves"]] == [a, b]


def test_a_page_asks_for_nothing_and_allows_its_own_style_and_script_alone() -> None:
    html = whole_page("a", "b").html()
    found = Reader(html)
    assert not [each for each in found.attributes if each[1] in ("src", "action", "style") or each[1].startswith("on")]
    assert {value for _, name, value in found.attributes if name == "href"} == {"#main", "#s1"}
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttp|eval\(", html)
    policy = next(value for _, name, value in found.attributes if name == "content" and value and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text.group(1).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_headings_are_in_order_and_tags_are_closed() -> None:
    page = Page("title")
    with page.details("before any section"):
        page.text("early")
    page.section("one")
    with page.details("outer"), page.details("inner"):
        page.text("deep")
    page.section("two", "with an intro")
    found = Reader(page.html())
    levels = [int(tag[1]) for tag in found.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels == [1, 2, 2, 3, 4, 2]
    void = {"meta", "img", "line", "path", "rect"}
    for tag in set(found.tags) - void:
        assert found.tags.count(tag) == found.ends.count(tag), tag


def test_details_close_whatever_happens_within_and_hold_no_section() -> None:
    page = Page("title")
    with pytest.raises(ConfigError, match="section 'late' cannot begin within details"), page.details("folded"):
        page.section("late")
    page.text("after")
    assert page.html().count("<details>") == page.html().count("</details>") == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_dash_everywhere(value: float) -> None:
    page = Page("numbers")
    page.table(["name", "value"], [["a", value], ["b", 1.0]])
    page.curves(
        [Curve("c", [1, 2, 3], [1, value, 2], [0, value, 1], [2, value, 3]), Curve("d", [1, 2], [value, value])], "x", "y"
    )
    page.curves([Curve("e", [1], [value])], "x", "y")
    page.bars(["f", "g"], [value, 1], [value, 0], [value, 2])
    said = "".join(Reader(page.html()).said)
    assert shown(value) == DASH
    assert said.count(DASH) >= 8
    assert "There is nothing to draw." in said
    page_only = re.sub(r"<(script|style)>.*?</\1>", "", page.html(), flags=re.S)
    assert not re.search(r"\b(nan|inf|NaN|Infinity)\b", page_only)


@given(st.floats(-1e300, 1e300))
def test_numbers_are_shown_close_to_what_they_are(value: float) -> None:
    read = float(shown(value).replace(",", ""))
    assert read == pytest.approx(value, rel=0.06, abs=0.5 if abs(value) >= 1000 else 0)
    if 1e-4 <= abs(value) < 1000:
        assert read == pytest.approx(value, rel=6e-4)


finite = st.floats(-1e6, 1e6)


@given(finite, st.floats(1e-6, 1e6))
def test_ticks_are_round_numbers_within_the_axis(low: float, length: float) -> None:
    high = low + length
    if high - low < 1e-9 * max(1, abs(low)):
        return
    ticks = [tick for tick, _ in charts.linear_ticks(low, high)]
    assert 2 <= len(ticks) <= 7
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    steps = [b - a for a, b in pairwise(ticks)]
    leading = f"{steps[0]:.3e}"
    assert leading.startswith(("1.000", "2.000", "5.000", "9.99", "4.99", "1.99"))
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-3)


@given(st.floats(1e-9, 1e9), st.floats(1.05, 1e9))
def test_ticks_of_a_logarithmic_axis_lie_within_it(low: float, factor: float) -> None:
    ticks = charts.log_ticks(low, low * factor)
    assert 2 <= len(ticks) <= 22
    assert all(low * 0.999 <= tick <= low * factor * 1.001 for tick, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)


def path_of(html: str, curve: int) -> list[tuple[float, float]]:
    group = re.search(rf'data-curve="{curve}">.*?class="line"[^>]* d="([^"]*)"', html)
    assert group is not None
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", group.group(1))]


def test_points_are_drawn_where_they_belong() -> None:
    page = Page("lines")
    page.curves([Curve("a", [0, 50, 100], [0, 1, 2]), Curve("b", [25, 75], [2, 0])], "x", "y")
    # x reaches from 0 to 100 with 1 per cent of room to either side, y from 0 to 2 with 5; 1000 across, and down from the top
    across = [(x + 1) / 102 * 1000 for x in (0, 50, 100)]
    down = [(1 - (y + 0.1) / 2.2) * 1000 for y in (0, 1, 2)]
    assert path_of(page.html(), 0) == [pytest.approx(pair, abs=0.06) for pair in zip(across, down, strict=True)]
    assert path_of(page.html(), 1)[0] == pytest.approx((26 / 102 * 1000, down[2]), abs=0.06)


def test_points_of_logarithmic_axes_are_drawn_where_they_belong() -> None:
    page = Page("lines")
    page.curves([Curve("a", [1, 10, 100], [1, 0, 1000])], "x", "y", log_x=True, log_y=True)
    drawn = path_of(page.html(), 0)  # 0 has no place
    assert [x for x, _ in drawn] == pytest.approx([(e + 0.02) / 2.04 * 1000 for e in (0, 2)], abs=0.06)
    assert [y for _, y in drawn] == pytest.approx([(1 - (e + 0.15) / 3.3) * 1000 for e in (0, 3)], abs=0.06)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=1000), st.integers(10, 300))
def test_thinning_keeps_ends_and_extremes(values: list[float], most: int) -> None:
    curve = Curve("a", list(range(len(values))), values, values, values)
    kept = charts.thinned(curve, most)
    assert len(kept.x) <= most
    assert list(kept.y) == [values[int(x)] for x in kept.x] == list(kept.low or [])
    assert kept.x[0] == 0
    assert kept.x[-1] == len(values) - 1
    assert min(kept.y) == min(values)
    assert max(kept.y) == max(values)
    if len(values) <= most:
        assert kept == curve


def test_many_long_curves_are_thinned_and_the_page_says_so() -> None:
    page = Page("long")
    xs = [float(n) for n in range(5000)]
    page.curves([Curve(f"c{n}", xs, [x * n for x in xs]) for n in range(50)], "x", "y", "Caption.")
    assert "Caption. Drawn with at most 180 of 5,000 points each." in page.html()
    assert len(path_of(page.html(), 7)) <= 180


any_numbers = st.lists(st.floats(), min_size=1, max_size=6)


@settings(deadline=None)
@given(any_numbers, any_numbers, st.booleans(), st.booleans())
def test_any_numbers_can_be_drawn(x: list[float], y: list[float], log_x: bool, log_y: bool) -> None:
    n = min(len(x), len(y))
    page = Page("any")
    page.curves([Curve("c", x[:n], y[:n], y[:n], x[:n])], "x", "y", log_x=log_x, log_y=log_y)
    page.bars(["bar"] * n, x[:n], y[:n], x[:n])
    numbers = [text for text in Reader(page.html()).scripts if text.startswith("{")]
    for text in numbers:
        json.loads(text, parse_constant=pytest.fail)
        assert all(0 <= value <= 1000 for pair in path_of(page.html(), 0) for value in pair)


def test_a_name_has_one_look_all_over_the_page() -> None:
    page = Page("looks")
    for names in (["a", "b", "c"], ["c"], ["b", "a"]):
        page.curves([Curve(name, [1, 2], [1, 2]) for name in names], "x", "y")
    looks = re.findall(r'<g class="curve (c\d)"', page.html())
    assert looks == ["c0", "c1", "c2", "c2", "c1", "c0"]
    assert len({charts.look(n) for n in range(32)}) == 32


def test_bars_start_at_zero() -> None:
    page = Page("bars")
    page.bars(["a", "b", "c"], [3, -1, 0], [2, -1, 0], [3, 0, 0])
    bars = [(float(x), float(w)) for x, w in re.findall(r'class="bar c0" x="([\d.]+)%" width="([\d.]+)%"', page.html())]
    assert bars == [(25, 75), (0, 25), (25, 0)]
    whiskers = re.findall(r'class="whisker" x1="([\d.]+)%" x2="([\d.]+)%" y1="50%"', page.html())
    assert [tuple(map(float, pair)) for pair in whiskers] == [(75, 100), (0, 25), (25, 25)]


def test_tables_say_what_rows_are_sorted_by() -> None:
    page = Page("table")
    page.table(
        ["name", "n", "note"], [["a", 1.5, "x"], ["b", Cell("many", 1000.0, "good"), Cell("y")], ["c", math.nan]], "What"
    )
    html = page.html()
    assert re.findall(r'data-sort="([^"]*)"', html) == ["1.5", "1000.0", ""]
    assert re.findall(r'<td[^>]*class="([^"]*)"', html) == ["number", "number good", "number"]
    assert html.count('<th scope="row">') == 3
    assert html.count('<th scope="col"') == 3
    assert "<caption><span>What</span></caption>" in html


def said_by_bars(*args: Any, **options: Any) -> list[str]:
    page = Page("bars")
    page.bars(["a", "b"], *args, **options)
    return [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"</svg></td><td>(.*?)</td>", page.html())]


def test_numbers_of_bars_have_equally_many_decimals() -> None:
    assert said_by_bars([2.76, 1], [2.7, 0.5], [2.82, 1.25]) == ["2.76 (2.70 to 2.82)", "1.00 (0.50 to 1.25)"]
    few = said_by_bars([0.36981234, 0.1], [0.34140001, 0.08174], [0.399, 0.12], decimals=4)
    assert few == ["0.3698 (0.3414 to 0.3990)", "0.1000 (0.0817 to 0.1200)"]
    assert said_by_bars([3, 1200]) == ["3", "1,200"]
    assert said_by_bars([1e-6, 2e-6]) == ["1.0e-06", "2.0e-06"]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
def test_numbers_side_by_side_are_written_alike(values: list[float]) -> None:
    largest = max(map(abs, values))
    if largest < 1e-4:
        return
    texts = [alike(values)(value).replace(",", "") for value in values]
    assert len({len(text.partition(".")[2]) for text in texts}) == 1
    assert not {text for text in texts if float(text) == 0 and text.startswith("-")}
    for value, text in zip(values, texts, strict=True):
        assert float(text) == pytest.approx(value, abs=max(largest * 6e-4, 0.5 if largest >= 1000 else 0))


def test_a_long_cell_of_a_wide_table_is_cut_but_all_of_it_is_there() -> None:
    long = "learning_rate 0.001, " * 9 + "<b>"
    for columns, cut in ((3, False), (9, True)):
        page = Page("table")
        page.table(
            ["name", *(f"c{n}" for n in range(1, columns))], [[long, *range(columns - 2), long], ["a", *["b"] * (columns - 1)]]
        )
        found = Reader(page.html())
        assert [value for tag, name, value in found.attributes if (tag, name) == ("div", "title")] == [long] * cut
        assert found.said.count(long) == 2, "text is never cut itself"


def test_an_interval_of_a_wide_table_may_go_below_its_number() -> None:
    page = Page("table")
    cell = Cell("-.0073 (-.0123 to .0023)", -0.0073)
    page.table(["name", *"abcdefgh"], [["x", *[cell] * 8]])
    assert page.html().count('class="number parts"><span>-.0073</span> <span>(-.0123 to .0023)</span></td>') == 8


def test_an_svg_is_as_wide_as_its_png(tmp_path: Path) -> None:
    for head, width in (('<svg height="9pt" width="396pt">', "1100"), ('<svg stroke-width="3pt">', None), ("<p>", None)):
        (tmp_path / "a.svg").write_text(f"<?xml version='1.0'?>\n{head}")
        page = Page("picture")
        page.picture(tmp_path / "a.svg", "a plot")
        found = [value for tag, name, value in Reader(page.html()).attributes if (tag, name) == ("img", "width")]
        assert found == ([width] if width else [])


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda page: page.table(["a"], [["x", "y"]]), "a row of 2 cells in a table of 1 columns"),
        (lambda page: page.table(["a"], [[Cell("x", mark="loud")]]), "mark 'loud' of a cell: expected one of best, good"),
        (lambda page: page.curves([Curve("c", [1, 2], [1])], "x", "y"), "curve 'c' has 2 values of x and 1 of another"),
        (
            lambda page: page.picture(Path("plot.pdf"), "a plot"),
            "cannot show plot.pdf: expected a name that ends in .svg or .png",
        ),
        (lambda page: page.picture(Path("nowhere.png"), "a plot"), "cannot show nowhere.png: No such file"),
    ],
)
def test_mistakes_are_explained(add: Callable[[Page], None], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        add(Page("wrong"))


def test_pictures_are_within_the_page(tmp_path: Path) -> None:
    for name, kind in (("a.png", "image/png"), ("b.SVG", "image/svg+xml")):
        (tmp_path / name).write_bytes(b"<svg>\x00\xff")
        page = Page("picture")
        page.picture(tmp_path / name, 'an "odd" plot', "caption")
        source = next(value for tag, key, value in Reader(page.html()).attributes if (tag, key) == ("img", "src"))
        assert source is not None
        head, _, data = source.partition(",")
        assert head == f"data:{kind};base64"
        assert base64.b64decode(data) == b"<svg>\x00\xff"
        assert ("img", "alt", 'an "odd" plot') in Reader(page.html()).attributes


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    page = whole_page("a", "b")
    page.write(tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == page.html()
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["page.html"]
    with pytest.raises(ArtifactError, match="cannot write"):
        page.write(tmp_path / "new" / "page.html" / "below.html")


def test_a_page_takes_the_place_of_a_page_and_of_nothing_else(tmp_path: Path) -> None:
    page, path = whole_page("a", "b"), tmp_path / "page.html"
    path.write_text("<p>mine</p>")
    with pytest.raises(ConfigError, match="not a page that srns wrote"):
        page.write(path)
    assert path.read_text() == "<p>mine</p>"
    path.unlink()
    whole_page("earlier", "b").write(path)
    page.write(path)
    assert path.read_text(encoding="utf-8") == page.html()


def test_colours_are_those_of_figures_and_stand_out_in_the_dark() -> None:
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # WebAIM's example of what just passes AA
    assert contrast("#ff0000", "#ffffff") == pytest.approx(4.0, abs=0.005)
    html = Page("colours").html()
    assert f"--paper: light-dark(#ffffff, {DARK})" in html
    for n, colour in enumerate(COLOURS):
        dark = lightened(colour, DARK, 4.5)
        assert f".c{n}{{--c:{colour};--c:light-dark({colour},{dark})}}" in html
        assert contrast(dark, DARK) >= 4.5
    assert len({lightened(colour, DARK, 4.5) for colour in COLOURS}) == len(COLOURS)


def test_escape_leaves_letters_of_all_scripts_alone() -> None:
    assert escape("Ünïcødé 漢字 🎬 a\tb\nc") == "Ünïcødé 漢字 🎬 a\tb\nc"
