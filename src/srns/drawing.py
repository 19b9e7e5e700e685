"""One look for all figures: colours that colour-blind readers can tell apart, lines that differ in more than colour, sizes that
stay readable in the column of a paper. Needs matplotlib (`srns[report]`)."""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from srns.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, those that are easy to tell on white first. Eight colours and eleven markers: no two of 88 lines have
# both in common, and one that comes round to a colour again has another dash, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
DASHES = ("-", "--", "-.", ":")
PUBLISHED = "#7F7F7F"  # what the paper has is drawn in grey
TEXT_WIDTH = 5.5  # inches, of a page of the paper
ENDINGS = (".png", ".svg", ".pdf")  # of files that figures are written to
PANEL_WIDTH = 2.75  # inches, where there is room for it
STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5,
    "lines.linewidth": 1.3, "lines.markersize": 3.5, "legend.frameon": False, "svg.hashsalt": "srns", "svg.fonttype": "none",
    "font.family": "sans-serif", "figure.dpi": 100, "savefig.dpi": 200,
}  # fmt: skip


def require_matplotlib() -> None:
    """Refuse before long work rather than after it."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plots need matplotlib, which is not installed: pip install 'srns[report]'")


def styled() -> AbstractContextManager[None]:
    """The style, for the length of a block that draws: titles and legends take theirs when they are made."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_figure(
    columns: int = 1, rows: int = 1, *, height: float = 2.2, width: float = TEXT_WIDTH, **options: Any
) -> tuple[Figure, NDArray[Any]]:
    """A figure and its panels (rows, columns), each of this height, all together not wider than `width` (inches); `options` go
    to `subplots`, such as sharey=True."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(min(PANEL_WIDTH * columns, width), height * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def look(number: int) -> dict[str, Any]:
    """Colour, marker and dash of the line of that number, for `Axes.plot`."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def curve(axes: Axes, x: ArrayLike, runs: ArrayLike, label: str, number: int, *, markers: bool = False) -> None:
    """The mean of several runs (n, points) over x (points,), with a shade of one standard deviation to either side."""
    values = np.asarray(runs, float)
    style = look(number) if markers else look(number) | {"marker": None, "linestyle": DASHES[number % len(DASHES)]}
    mean = values.mean(axis=0)
    axes.plot(x, mean, label=label, **style)
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=style["color"], alpha=0.18, linewidth=0)


def require_place(path: Path) -> None:
    """Refuse before long work what figures cannot be written to; a folder that is missing is made."""
    if path.suffix and path.suffix not in ENDINGS:
        raise ConfigError(
            f"{path} ends in {path.suffix}; figures are {', '.join(ENDINGS)}, or both of the first without an ending"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: the folder cannot be made: {error.strerror}") from None
    for each in _files(path):
        if each.is_dir() or not os.access(each if each.exists() else each.parent, os.W_OK):
            raise ConfigError(f"{each} cannot be written")


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure; a name without an ending becomes a PNG and an SVG. The same figure gives the same bytes."""
    with styled():
        for each in _files(path):
            figure.savefig(each, metadata={"Date": None} if each.suffix == ".svg" else None)
    return _files(path)


def _files(path: Path) -> list[Path]:
    return [path] if path.suffix in ENDINGS else [path.with_name(path.name + ending) for ending in ENDINGS[:2]]
