# SPDX-License-Identifier: Apache-2.0
"""One look for all plots: the colours of Okabe and Ito (2008), told apart by the colour-blind."""
from __future__ import annotations

import html
import io
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import matplotlib

matplotlib.use("Agg")
from matplotlib import font_manager  # noqa: E402  (after the backend is chosen)
import matplotlib.pyplot as plt  # noqa: E402  (after the backend is chosen)
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.text import Text  # noqa: E402

from analysis.errors import UserError, nearest, visible  # noqa: E402
from analysis.tables import some  # noqa: E402

RUN_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
RUN_LINES = ["-", "--", ":"]
RUN_MARKERS = ["o", "s", "^", "D", "v"]
DOTS_PER_INCH = 130
PRINT_DOTS_PER_INCH = 300  # of figures as wide as a column
USUAL_FONT = 10.0  # points
FONT_SIZES = {"font.size": USUAL_FONT, "axes.titlesize": 11.0, "legend.fontsize": 9.0}
# Suffixes of a saved figure, and what keeps dates out of its file: equal inputs give equal files.
FORMATS: dict[str, dict[str, None]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
TITLE_SIZE, SUBTITLE_SIZE = 12, 9.5
LINE_INCHES, GAP_INCHES = 0.21, 0.12
ROW_SHARE = 0.6  # of the height of the first row of panels, for each further row
LETTERS_PER_INCH = 13.5  # of the subtitle and of legends, at least

plt.rcParams.update({
    **FONT_SIZES,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "pdf.fonttype": 42,  # TrueType, which publishers ask for
    "svg.hashsalt": "hyperslab",
})

__all__ = ["Axes", "Figure", "LOOK", "Look", "RUN_COLOURS", "add_head", "add_legend", "inline_svg", "look_of_run",
           "plt", "save", "set_look"]
MM_PER_INCH = 25.4

set_text = Text.set_text


def set_visible_text(self: Text, text: Any) -> None:
    """Every text of every figure comes through here. A control character has no shape, and no SVG may hold one."""
    set_text(self, "" if text is None else visible(str(text)))


Text.set_text = set_visible_text


@dataclass
class Look:
    """What the command line asks of all figures; `size`: width and height in mm. `widths`: those of a figure with panels in
    one column and in several, which keeps its shape; `most_height` in mm of a row of panels then."""

    title: bool = True
    size: tuple[float, float] | None = None
    widths: tuple[float, float] | None = None
    most_height: float = 1000.0
    font_size: float = USUAL_FONT

    @property
    def scale(self) -> float:
        """Of all letters."""
        return self.font_size / USUAL_FONT

    def points(self, size: float) -> float:
        """A size of letters that is `size` with the usual font."""
        return size * self.scale


LOOK = Look()


def set_look(look: Look, font: str = "") -> None:
    """For all figures from now on; an error if there is no such font."""
    vars(LOOK).update(vars(look))
    if font:
        try:
            font_manager.findfont(font, fallback_to_default=False)
        except ValueError as error:
            names = sorted({each.name for each in font_manager.fontManager.ttflist})
            raise UserError(f"--font {font}: no such font is installed{nearest(font, names)}; there are {some(names)}") from error
    plt.rcParams["font.family"] = font or "sans-serif"
    for key, size in FONT_SIZES.items():
        plt.rcParams[key] = look.points(size)


def look_of_run(index: int) -> tuple[str, str, str]:
    """Colour, line style and marker of the run at `index`; together they repeat after 105 runs. Neighbours have other lines,
    so that one below another is seen."""
    return (RUN_COLOURS[index % len(RUN_COLOURS)],
            RUN_LINES[(index + index // len(RUN_COLOURS)) % len(RUN_LINES)],
            RUN_MARKERS[index % len(RUN_MARKERS)])


def fit_width(figure: Figure) -> None:
    """The width of LOOK; letters do not shrink as the figure does, so that it becomes a little higher."""
    assert LOOK.widths is not None
    grids = [axes.get_gridspec() for axes in figure.axes if axes.get_gridspec()]
    several, rows = max(grid.ncols for grid in grids) > 1, max(grid.nrows for grid in grids)
    width, height = figure.get_size_inches()
    new = LOOK.widths[several] / MM_PER_INCH
    taller = 1.0 + 0.5 * max(0.0, LOOK.scale * width / new - 1.0)
    figure.set_size_inches(new, min(height * new / width * taller, (1.0 + ROW_SHARE * (rows - 1)) * LOOK.most_height / MM_PER_INCH))


def add_head(figure: Figure, title: str, subtitle: str) -> float:
    """Gives the figure the size of LOOK, and writes title and subtitle at the top left unless LOOK has none;
    returns the height that is left, as a share."""
    if LOOK.size is not None:
        figure.set_size_inches(*(side / MM_PER_INCH for side in LOOK.size))
    elif LOOK.widths is not None:
        fit_width(figure)
    if not LOOK.title:
        return 1.0
    width, height = figure.get_size_inches()
    line = LINE_INCHES * LOOK.scale
    lines = textwrap.wrap(subtitle, max(1, int(LETTERS_PER_INCH / LOOK.scale * (width - 0.3))))
    left = 0.12 / width
    figure.text(left, 1.0 - GAP_INCHES / height, title, fontsize=LOOK.points(TITLE_SIZE), va="top")
    top = GAP_INCHES + 1.2 * line
    figure.text(left, 1.0 - top / height, "\n".join(lines), fontsize=LOOK.points(SUBTITLE_SIZE), va="top",
                color="#444444", linespacing=1.3)
    return 1.0 - (top + line * len(lines) + GAP_INCHES) / height


def add_legend(figure: Figure, handles: Sequence[Line2D | Patch]) -> float:
    """Writes a legend below all panels, in as many columns as fit; returns the height it takes."""
    width, height = figure.get_size_inches()
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), 6, int(LETTERS_PER_INCH / LOOK.scale * (width - 0.4) / (longest + 7))))
    rows = -(-len(handles) // columns)
    figure.legend(handles=list(handles), loc="lower center", ncol=columns, borderaxespad=0.3)
    return (GAP_INCHES + LINE_INCHES * LOOK.scale * rows) / height


def write_figure(figure: Figure, path: Path) -> Path:
    try:
        figure.savefig(path, dpi=PRINT_DOTS_PER_INCH if LOOK.widths else DOTS_PER_INCH, metadata=FORMATS[path.suffix[1:]])
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another --output") from error
    return path


def save(figure: Figure, path: Path) -> list[Path]:
    """Writes a figure as `path`.png, .pdf and .svg and closes it; returns the three paths."""
    try:
        return [write_figure(figure, path.parent / f"{path.name}.{suffix}") for suffix in FORMATS]
    finally:
        plt.close(figure)


def inline_svg(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an element of a page: named for screen readers, its ids apart from others'."""
    text = io.StringIO()
    prefix = re.sub(r"[^\w.-]", "_", prefix)
    with plt.rc_context({"svg.hashsalt": prefix}):
        figure.savefig(text, format="svg", metadata=FORMATS["svg"])
    svg = text.getvalue()
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for size in ("height", "width"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
