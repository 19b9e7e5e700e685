"""Charts as SVG text for `srns.page`: curves with bands, and bars. No script draws them, so they are there on paper too.

Lines are drawn in a square of 1000 x 1000 that stretches with the page, while strokes and letters keep their size: so a chart
is as readable on a telephone as on a screen. Positions are shares of the frame, never styles, which the page's policy forbids.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from srns.drawing import COLOURS
from srns.markup import DASH, LONG, alike, escape

POINTS = 300  # drawn of one curve at most
ALL_POINTS = 9000  # drawn of all curves of a chart at most
LARGEST = 1e100  # what is larger cannot be drawn
DOTS = 24  # a curve of no more points shows where they are
SIDE = 1000.0  # of the square that lines are drawn in
STROKES = ("", "7 4", "10 3 2 3", "2 4")  # solid, dashed, dash-dotted, dotted: `srns.drawing.DASHES`
Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """A line through (x, y), each (points,), with a band from `low` to `high` where they are given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


class Axis(NamedTuple):
    """A scale from `low` to `high` with labelled `ticks`."""

    low: float
    high: float
    log: bool
    ticks: list[tuple[float, str]]

    def share(self, values: Any) -> Floats:
        """Where values lie, from 0 at `low` to 1 at `high`; NaN where they cannot be drawn."""
        with np.errstate(all="ignore"):
            found = np.asarray(values, float)
            low, high = self.low, self.high
            if self.log:
                found, low, high = np.log10(np.where(found > 0, found, np.nan)), math.log10(low), math.log10(high)
            found = (found - low) / (high - low)
        return np.where((found > -1e-6) & (found < 1 + 1e-6), np.clip(found, 0, 1), np.nan)


def linear_ticks(low: float, high: float, about: int = 6) -> list[tuple[float, str]]:
    """Round numbers between two numbers, and how they are written.

    >>> linear_ticks(0, 1.1)
    [(0.0, '0.0'), (0.2, '0.2'), (0.4, '0.4'), (0.6, '0.6'), (0.8, '0.8'), (1.0, '1.0')]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(power * by for by in (1, 2, 5, 10) if (high - low) / (power * by) <= about + 0.5)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    largest = max(abs(low), abs(high))
    form = f".{math.ceil(math.log10(largest / step)) + 1}g" if largest >= 1e6 or digits > 6 else f",.{digits}f"
    return [(tick, f"{tick:{form}}") for tick in (round(n * step, digits + 2) + 0.0 for n in range(first, last + 1))]


def log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten between two numbers, or more where there are few.

    >>> log_ticks(1, 1000)
    [(1.0, '1'), (10.0, '10'), (100.0, '100'), (1000.0, '1000')]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, (last - first) // 6)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        found = [f * 10.0**n for n in range(first, last + 1, every) for f in factors if low <= f * 10.0**n <= high]
        if len(found) >= 3:
            return [(tick, f"{tick:g}") for tick in found]
    return linear_ticks(low, high)


def axis(values: Floats, log: bool, room: float) -> Axis | None:
    """A scale that holds all finite values (positive ones, if it is logarithmic), with some room; None where there are none."""
    values = values[(np.abs(values) < LARGEST) & ((values > 1 / LARGEST) | (not log))]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = math.log10(low), math.log10(high)
    apart = high - low > 1e-9 * max(abs(low), abs(high))  # else they are one number, but for rounding
    margin = (high - low) * room if apart else abs(low) * 0.1 or 0.5
    low, high = low - margin, high + margin
    if log:
        low, high = 10.0**low, 10.0**high
    return Axis(low, high, log, log_ticks(low, high) if log else linear_ticks(low, high))


def thinned(curve: Curve, most: int) -> Curve:
    """The same curve in at most so many points: evenly taken, with the first, the last, the lowest and the highest."""
    n = len(curve.x)
    if n <= most:
        return curve
    y = np.asarray(curve.y, float)
    ends = {int(np.nanargmin(y)), int(np.nanargmax(y))} if np.isfinite(y).any() else set()
    kept = sorted({*np.linspace(0, n - 1, most - len(ends)).round().astype(int).tolist(), *ends})
    parts = (None if part is None else [part[k] for k in kept] for part in (curve.x, curve.y, curve.low, curve.high))
    return Curve(curve.name, *parts)  # type: ignore[arg-type]


def thin(curves: Sequence[Curve]) -> tuple[list[Curve], str]:
    """Curves of few enough points for a page to stay quick, and what to say about it."""
    most = min(POINTS, max(40, ALL_POINTS // max(1, len(curves))))
    longest = max((len(curve.x) for curve in curves), default=0)
    said = f"Drawn with at most {most} of {longest:,} points each." if longest > most else ""
    return [thinned(curve, most) for curve in curves], said


def _line(x: Floats, y: Floats) -> str:
    """A path through points (n,); a gap where one is missing, and a dot for one that stands alone."""
    good = np.isfinite(x) & np.isfinite(y)
    parts = []
    for n in np.flatnonzero(good):
        before, after = n > 0 and good[n - 1], n + 1 < len(good) and good[n + 1]
        parts.append(f"{'L' if before else 'M'}{x[n]:.1f} {y[n]:.1f}{'' if before or after else 'h0'}")
    return "".join(parts)


def _band(x: Floats, low: Floats, high: Floats) -> str:
    good = np.flatnonzero(np.isfinite(x) & np.isfinite(low) & np.isfinite(high))
    if not len(good):
        return ""
    around = [f"{x[n]:.1f} {high[n]:.1f}" for n in good] + [f"{x[n]:.1f} {low[n]:.1f}" for n in good[::-1]]
    return f'<path class="band" d="M{"L".join(around)}Z"/>'


def look(number: int) -> tuple[str, str]:
    """Class and dashes of the curve of that number: colours first, then the same with other dashes."""
    return f"c{number % len(COLOURS)}", STROKES[(number + number // len(COLOURS)) % len(STROKES)]


def _drawn(curve: Curve, number: int, its_look: int, across: Axis, up: Axis) -> str:
    name, dashes = look(its_look)
    x, y = (across.share(curve.x) * SIDE, (1 - up.share(curve.y)) * SIDE)
    parts = [f'<g class="curve {name}" data-curve="{number}">']
    if curve.low is not None and curve.high is not None:
        parts.append(_band(x, (1 - up.share(curve.low)) * SIDE, (1 - up.share(curve.high)) * SIDE))
    parts.append(f'<path class="line" stroke-dasharray="{dashes}" d="{_line(x, y)}"/>')
    if len(x) <= DOTS:
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b))
        parts.append(f'<path class="dots" d="{dots}"/>')
    return "".join([*parts, "</g>"])


def plot(curves: Sequence[Curve], looks: Sequence[int], x_label: str, y_label: str, log_x: bool, log_y: bool) -> str:
    """The frame, axes and lines of curves, and their numbers as JSON for the page's script; empty where there is nothing.

    `looks` has the number of the colour and dashes of each."""
    bands = [part for curve in curves for part in (curve.y, curve.low, curve.high) if part is not None]
    across = axis(np.concatenate([[], *(np.asarray(curve.x, float) for curve in curves)]), log_x, 0.01)
    up = axis(np.concatenate([[], *(np.asarray(part, float) for part in bands)]), log_y, 0.05)
    if across is None or up is None:
        return ""
    columns = [(100 * float(across.share(tick)), text) for tick, text in across.ticks]
    rows = [(100 * (1 - float(up.share(tick))), text) for tick, text in up.ticks]
    grid = [f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>' for at, _ in columns]
    grid += [f'<line class="grid" x1="0" x2="100%" y1="{at:.2f}%" y2="{at:.2f}%"/>' for at, _ in rows]
    lines = "".join(_drawn(curve, n, looks[n], across, up) for n, curve in enumerate(curves))
    left = "".join(f'<text x="100%" dx="-6" y="{at:.2f}%" dy="0.32em" text-anchor="end">{text}</text>' for at, text in rows)
    below = "".join(f'<text x="{at:.2f}%" y="1.2em" text-anchor="{_anchor(at)}">{text}</text>' for at, text in columns)
    return (
        f'<p class="axis-name">{escape(y_label)}</p><div class="plot">'
        f'<svg class="left" aria-hidden="true">{left}</svg>'
        f'<div class="frame" role="img" aria-label="{escape(f"{y_label} against {x_label}")}">'
        f'<svg class="area" aria-hidden="true">{"".join(grid)}'
        f'<svg viewBox="0 0 {SIDE:.0f} {SIDE:.0f}" preserveAspectRatio="none" width="100%" height="100%">{lines}</svg>'
        f'<line class="cursor" y1="0" y2="100%"/></svg><div class="readout" hidden></div></div>'
        f'<svg class="below" aria-hidden="true">{below}</svg></div><p class="axis-name across">{escape(x_label)}</p>'
        f'<script type="application/json">{_numbers(curves, across, up, x_label, y_label)}</script>'
    )


def _anchor(at: float) -> str:
    return "start" if at < 4 else "end" if at > 96 else "middle"


def _numbers(curves: Sequence[Curve], across: Axis, up: Axis, x_label: str, y_label: str) -> str:
    """What the script needs to say which value lies under the pointer; within HTML, so "<" must not occur."""

    def rounded(part: Sequence[float] | None) -> list[float | None] | None:
        return None if part is None else [float(f"{v:.6g}") if math.isfinite(v) else None for v in map(float, part)]

    scales = {name: [a.low, a.high, a.log] for name, a in (("across", across), ("up", up))}
    each = [
        {"name": c.name, "x": rounded(c.x), "y": rounded(c.y), "low": rounded(c.low), "high": rounded(c.high)} for c in curves
    ]
    text = json.dumps({**scales, "x": x_label, "y": y_label, "curves": each}, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def swatch(number: int) -> str:
    """A short piece of the line of a curve, for the legend."""
    name, dashes = look(number)
    return (
        f'<svg class="swatch {name}" width="28" height="10" aria-hidden="true">'
        f'<line class="line" x1="1" x2="27" y1="5" y2="5" stroke-dasharray="{dashes}"/></svg>'
    )


def bar_rows(
    labels: Sequence[str],
    values: Sequence[float],
    low: Sequence[float] | None,
    high: Sequence[float] | None,
    decimals: int | None = None,
) -> str:
    """Rows of a table, each with a bar from 0 to its value and the number itself, with its interval where there is one; all
    numbers with as many decimals, those given or as many as they need."""
    ends = [float(v) for part in (values, low, high) if part is not None for v in part if math.isfinite(v)]
    least, most = min([0.0, *ends]), max([0.0, *ends])
    written = alike(ends, decimals)
    scale = Axis(least, most if most > least else least + 1, False, [])

    def at(value: float) -> float:
        return 100 * float(scale.share(value))

    rows = []
    for n, (label, value) in enumerate(zip(labels, values, strict=True)):
        between = (low[n], high[n]) if low is not None and high is not None else None
        shape = f'<line class="zero" x1="{at(0):.2f}%" x2="{at(0):.2f}%" y1="0" y2="100%"/>'
        text = written(value)
        if math.isfinite(value):
            begin, end = sorted((at(0), at(value)))
            shape = f'<rect class="bar c0" x="{begin:.2f}%" width="{end - begin:.2f}%" y="15%" height="70%" rx="2"/>' + shape
        if between is not None:
            text += f" <small>({' to '.join(map(written, between))})</small>"
        if between is not None and all(map(math.isfinite, between)):
            a, b = map(at, between)
            shape += f'<line class="whisker" x1="{a:.2f}%" x2="{b:.2f}%" y1="50%" y2="50%"/>'
            shape += "".join(f'<line class="whisker" x1="{e:.2f}%" x2="{e:.2f}%" y1="30%" y2="70%"/>' for e in (a, b))
        drawing = f'<svg class="bars" aria-hidden="true">{shape}</svg>'
        long = ' class="long"' if len(label) > LONG else ""
        rows.append(
            f'<tr><th scope="row"{long}>{escape(label) or DASH}</th><td class="drawn">{drawing}</td><td>{text}</td></tr>'
        )
    return "".join(rows)
