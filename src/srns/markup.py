"""Text and numbers as HTML, for `srns.charts` and `srns.page`: nothing that comes from data is ever taken for markup."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable

DASH = "–"  # noqa: RUF001  # what stands for a number that is none
LONG = 36  # letters of a cell that may take several lines
# What no HTML may contain: control characters but for tab and new line, halves of surrogate pairs, and non-characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def escape(text: str) -> str:
    """Text for use between tags and within quotes.

    >>> escape('</script> & "[/x]"')
    '&lt;/script&gt; &amp; &quot;[/x]&quot;'
    """
    return html.escape(_FORBIDDEN.sub("\ufffd", text))


def shown(value: float) -> str:
    """A number as people read it, in four digits; a dash for NaN and infinities.

    >>> [shown(v) for v in (0.123456, 12345.6, 7, 0.0000123, float("nan"))]
    ['0.1235', '12,346', '7', '1.2e-05', '–']
    """  # noqa: RUF002
    if not math.isfinite(value):
        return DASH
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def alike(values: Iterable[float], decimals: int | None = None) -> Callable[[float], str]:
    """How to write numbers that stand side by side, all with equally many decimals: those given, else no more than it takes to
    show the largest in four digits, and no more than any of them needs.

    >>> for_bars = alike([2.76, 2.7, 2.82])
    >>> for_bars(2.76), for_bars(2.7), alike([0.3698, 0.3414, 0.39901])(0.39901), alike([3, 12])(3)
    ('2.76', '2.70', '0.3990', '3')
    """
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    if decimals is None and not 1e-4 <= largest < 1e15:
        return shown
    if decimals is None:
        room = max(0, 3 - math.floor(math.log10(largest)))
        decimals = max(len(f"{value:.{room}f}".rstrip("0").partition(".")[2]) for value in finite)

    def write(value: float) -> str:
        return f"{round(value, decimals) + 0.0:,.{decimals}f}" if abs(value) < 1e15 else shown(value)

    return write


def relative_luminance(colour: str) -> float:
    """How bright a colour (#rrggbb) is, as WCAG 2 defines it."""
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG 2 defines it.

    >>> round(contrast("#000000", "#ffffff"), 3)
    21.0
    """
    dark, bright = sorted((relative_luminance(one), relative_luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def lightened(colour: str, background: str, least: float) -> str:
    """The colour, with as much white in it as the contrast with a dark background asks for; what is black becomes white."""
    if relative_luminance(colour) == 0:
        return "#ffffff"
    parts = [int(colour[n : n + 2], 16) for n in (1, 3, 5)]
    for share in range(0, 101, 2):
        mixed = "#" + "".join(f"{round(part + (255 - part) * share / 100):02x}" for part in parts)
        if contrast(mixed, background) >= least:
            break
    return mixed
