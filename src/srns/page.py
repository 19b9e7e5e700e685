"""Blocks for one HTML page that stands alone: it opens from disk, asks no network for anything, and works without its script.

Style and script are the files page.css and page.js beside this one. The page carries a policy (CSP) that lets a browser use
these two and nothing else, so that whatever a data set calls its items stays text.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from srns import charts
from srns.artifacts import replacing
from srns.charts import Curve
from srns.drawing import COLOURS
from srns.errors import ConfigError
from srns.markup import LONG, escape, lightened, shown

__all__ = ["Cell", "Curve", "Page", "Row"]

DARK = "#16181d"  # the background of the dark page, as in page.css
CONTRAST = 4.5  # of lines on it
DOTS_PER_INCH = 200  # of figures on a page, as their PNGs have it; those of SVGs are inches of paper, too few on a screen
CLIPPED = 80  # letters of a cell of a wide table, beyond which it shows its beginning: its row would be high above the others
BROKEN = 16  # letters of a number with its interval, beyond which the interval may go below it in a wide table
MADE_BY = '<meta name="generator" content="srns">'
PICTURES = {".svg": "image/svg+xml", ".png": "image/png"}
MARKS = ("", "best", "good", "bad", "faint")


class Cell(NamedTuple):
    """A cell of a table: its text, what it is sorted by where that is a number, and how it stands out."""

    text: str
    sort: float | None = None
    mark: str = ""


Row = Sequence[str | float | Cell]


class Page:
    """A page under construction; blocks appear in the order in which they are added.

    >>> page = Page("Results", "Two models on one data set.")
    >>> page.section("Accuracy")
    >>> page.table(["model", "ndcg@10"], [["srns", Cell("0.41", 0.41, "best")], ["uniform", 0.35]])
    >>> "<b>" in page.html()
    False
    """

    def __init__(self, title: str, summary: str = "") -> None:
        self.title = title
        self.summary = summary
        self._parts: list[str] = []
        self._sections: list[str] = []
        self._depth = 0  # of details within details
        self._looks: dict[str, int] = {}  # of curves, by name: a name has one colour all over the page

    def section(self, heading: str, intro: str = "") -> None:
        """Begin a section, which the table of contents lists."""
        if self._depth:
            raise ConfigError(f"section {heading!r} cannot begin within details")
        if self._sections:
            self._parts.append("</section>")
        self._sections.append(heading)
        number = len(self._sections)
        self._parts.append(f'<section id="s{number}" aria-labelledby="h{number}"><h2 id="h{number}">{escape(heading)}</h2>')
        if intro:
            self._parts.append(f'<p class="intro">{escape(intro)}</p>')

    def text(self, paragraph: str) -> None:
        self._parts.append(f"<p>{escape(paragraph)}</p>")

    def points(self, items: Sequence[str]) -> None:
        """A list of short statements."""
        if items:
            self._parts.append("<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>")

    def cards(self, values: Sequence[tuple[str, str, str]]) -> None:
        """The few numbers that matter most: label, value, remark."""
        each = "".join(
            f'<div class="card"><dt>{escape(label)}</dt><dd><strong>{escape(value)}</strong>'
            + (f"<small>{escape(remark)}</small>" if remark else "")
            + "</dd></div>"
            for label, value, remark in values
        )
        if each:
            self._parts.append(f'<dl class="cards">{each}</dl>')

    def table(self, columns: Sequence[str], rows: Sequence[Row], caption: str = "") -> None:
        """A table that can be sorted by each column. The first column names the rows; short rows are filled up."""
        cells = [[_cell(value) for value in [*row, *[""] * (len(columns) - len(row))]] for row in rows]
        for row in cells:
            if len(row) > len(columns):
                raise ConfigError(f"a row of {len(row)} cells in a table of {len(columns)} columns: {row}")
        numeric = [
            all(row[n].sort is not None or not row[n].text for row in cells) and any(row[n].sort is not None for row in cells)
            for n in range(len(columns))
        ]
        wide = bool(_width(columns))
        head = "".join(
            f'<th scope="col"{_class("number" if n and numeric[n] else "")}>{escape(name)}</th>'
            for n, name in enumerate(columns)
        )
        body = "".join(
            f"<tr>{''.join(_as_html(cell, n, numeric[n], wide) for n, cell in enumerate(row))}</tr>" for row in cells
        )
        self._parts.append(
            _scrolling(
                f'<table class="sortable{_width(columns)}">{{}}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>',
                caption,
            )
        )

    def curves(
        self,
        curves: Sequence[Curve],
        x_label: str,
        y_label: str,
        caption: str = "",
        *,
        log_x: bool = False,
        log_y: bool = False,
    ) -> None:
        """Lines with bands: a pointer or the arrow keys read values off, the legend hides lines, a table has the numbers."""
        for curve in curves:
            wrong = [part for part in curve[2:] if part is not None and len(part) != len(curve.x)]
            if wrong:
                raise ConfigError(f"curve {curve.name!r} has {len(curve.x)} values of x and {len(wrong[0])} of another part")
        drawn, said = charts.thin(curves)
        looks = [self._looks.setdefault(curve.name, len(self._looks)) for curve in curves]
        picture = charts.plot(drawn, looks, x_label, y_label, log_x, log_y) or "<p>There is nothing to draw.</p>"
        below = (
            f"<figcaption>{escape(' '.join(part for part in (caption, said) if part))}</figcaption>" if caption or said else ""
        )
        legend = "".join(
            f'<li><button type="button" aria-pressed="true" disabled data-curve="{n}">{charts.swatch(looks[n])}'
            f"<span>{escape(curve.name)}</span></button></li>"
            for n, curve in enumerate(drawn)
        )
        numbers = _numbers(drawn, x_label, y_label)
        self._parts.append(
            f'<figure class="chart">{picture}<ul class="legend" aria-label="Lines">{legend}</ul>{below}{numbers}</figure>'
        )

    def bars(
        self,
        labels: Sequence[str],
        values: Sequence[float],
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        caption: str = "",
        decimals: int | None = None,
    ) -> None:
        """Bars from 0, one under another, with intervals where they are given; numbers in so many `decimals`, for those who
        read them beside a table, else in as many as they need."""
        body = charts.bar_rows(labels, values, low, high, decimals)
        head = (
            '<thead class="unseen"><tr><th scope="col">name</th><th scope="col">bar</th><th scope="col">value</th></tr></thead>'
        )
        self._parts.append(_scrolling(f'<table class="bar-chart">{{}}{head}<tbody>{body}</tbody></table>', caption))

    def picture(self, path: Path, alt: str, caption: str = "") -> None:
        """An SVG or PNG file, within the page, as wide as its PNG where the page has that width."""
        kind = PICTURES.get(path.suffix.lower())
        if kind is None:
            raise ConfigError(f"cannot show {path}: expected a name that ends in {' or '.join(PICTURES)}")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot show {path}: {error.strerror}") from None
        data = base64.b64encode(content).decode()
        below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        image = f'<img alt="{escape(alt)}"{_picture_width(content)} src="data:{kind};base64,{data}">'
        self._parts.append(f'<figure class="picture">{image}{below}</figure>')

    def code(self, text: str, caption: str = "") -> None:
        """Text to be copied, such as a command."""
        above = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        named = f' aria-label="Copy: {escape(caption)}"' if caption else ""
        button = f'<button type="button" class="copy" hidden{named}>Copy</button>'
        self._parts.append(f'<figure class="code">{above}<pre tabindex="0"><code>{escape(text)}</code></pre>{button}</figure>')

    @contextmanager
    def details(self, heading: str) -> Iterator[None]:
        """What is added within the block is folded away under a heading until it is opened, or printed."""
        level = min(6, 2 + bool(self._sections) + self._depth)
        self._parts.append(f"<details><summary><h{level}>{escape(heading)}</h{level}></summary><div>")
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._parts.append("</div></details>")

    def html(self) -> str:
        """The whole page."""
        style, script = _within()
        links = "".join(f'<li><a href="#s{n}">{escape(name)}</a></li>' for n, name in enumerate(self._sections, 1))
        contents = f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if links else ""
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{MADE_BY}\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy()}">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
            f'<a class="skip" href="#main">Skip to the content</a>\n'
            f"<header><div><h1>{escape(self.title)}</h1>{f'<p>{escape(self.summary)}</p>' if self.summary else ''}</div>"
            f'<button type="button" id="theme" aria-pressed="false" hidden>Dark</button></header>\n'
            f'<div class="{"columns" if contents else "column"}">{contents}\n<main id="main" tabindex="-1">\n'
            + "\n".join(self._parts)
            + f"{'</section>' if self._sections else ''}\n</main></div>\n<script>{script}</script>\n</body>\n</html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page, whole or not at all, in the place of an earlier one but of nothing else."""
        refuse_other(path)
        text = self.html()
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def refuse_other(path: Path) -> None:
    """Pages are made again and again under one name; a file that is no such page stays."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        begin = file.read(200)
    if MADE_BY.encode() not in begin:
        raise ConfigError(f"{path} is there already and is not a page that srns wrote: give another name with --out")


def _within() -> tuple[str, str]:
    """Style and script of every page."""
    return _file("page.css") + _colours(), _file("page.js")


def policy() -> str:
    """What a browser may use of a page (CSP): its own style and script, and pictures that are within it."""
    style, script = map(_hash, _within())
    return f"default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'"


def _file(name: str) -> str:
    return resources.files("srns").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _colours() -> str:
    """The colours of figures, lightened on the dark page where they would be hard to see."""
    pairs = ((n, colour, lightened(colour, DARK, CONTRAST)) for n, colour in enumerate(COLOURS))
    return "".join(f".c{n}{{--c:{light};--c:light-dark({light},{dark})}}\n" for n, light, dark in pairs)


def _cell(value: str | float | Cell) -> Cell:
    if isinstance(value, Cell):
        if value.mark not in MARKS:
            raise ConfigError(f"mark {value.mark!r} of a cell: expected one of {', '.join(MARKS[1:])}")
        return value
    return Cell(value) if isinstance(value, str) else Cell(shown(value), float(value))


def _class(*names: str) -> str:
    given = " ".join(filter(None, names))
    return f' class="{given}"' if given else ""


def _as_html(cell: Cell, column: int, numeric: bool, wide: bool) -> str:
    text = escape(cell.text)
    if column and wide and len(cell.text) > CLIPPED:  # all of it is under the pointer, where it is focused, and on paper
        text = f'<div class="clip" tabindex="0" title="{text}">{text}</div>'
    long = "long" if len(cell.text) > LONG else ""
    value, bracket, within = cell.text.partition(" (")
    if (
        column and wide and bracket and numeric and BROKEN < len(cell.text) <= LONG
    ):  # an interval goes below its number where that saves a column
        text, long = f"<span>{escape(value)}</span> <span>({escape(within)}</span>", "parts"
    sort = "" if cell.sort is None else f' data-sort="{cell.sort if math.isfinite(cell.sort) else ""}"'
    if not column:
        return f'<th scope="row"{sort}{_class(long, cell.mark)}>{text}</th>'
    return f"<td{sort}{_class('number' if numeric else '', long, cell.mark)}>{text}</td>"


def _picture_width(content: bytes) -> str:
    """The attribute that makes an SVG as wide as its PNG; nothing for what is no SVG, or does not say its inches."""
    found = re.search(rb'<svg\b[^>]*?\swidth="([0-9.]{1,9})pt"', content[:4000])
    return f' width="{float(found[1]) / 72 * DOTS_PER_INCH:.0f}"' if found else ""


def _width(columns: Sequence[str]) -> str:
    """The class by which a table of many columns is printed in smaller letters, so that paper holds it."""
    return " wider" if len(columns) > 16 else " wide" if len(columns) > 7 else ""


def _scrolling(table: str, caption: str) -> str:
    """A table, with its caption where "{}" stands, in a frame that scrolls sideways, by keyboard too."""
    before, after = table.split("{}", 1)
    named = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
    label = escape(caption or "Table")
    return f'<div class="scroll" role="region" aria-label="{label}" tabindex="0">{before}{named}{after}</div>'


def _numbers(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """What is drawn as a table: a column for each curve where they share x, else a row for each point."""
    parts = [
        (f"{c.name}{end}", c.x, part)
        for c in curves
        for end, part in (("", c.y), (" low", c.low), (" high", c.high))
        if part is not None
    ]
    if not parts:
        return ""
    first = list(parts[0][1])
    if all(list(x) == first for _, x, _ in parts):
        columns = [x_label, *(name for name, _, _ in parts)]
        rows = [[shown(x), *(shown(part[n]) for _, _, part in parts)] for n, x in enumerate(first)]
    else:
        columns = ["line", x_label, y_label]
        rows = [[name, shown(a), shown(b)] for name, x, part in parts for a, b in zip(x, part, strict=True)]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    table = f'<table class="plain{_width(columns)}">{{}}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<details class="numbers"><summary>Numbers</summary>{_scrolling(table, f"{y_label} against {x_label}")}</details>'
