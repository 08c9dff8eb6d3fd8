# SPDX-License-Identifier: Apache-2.0
"""One look for all plots: the colours of Okabe and Ito (2008), told apart by the colour-blind."""
from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the backend is chosen)
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from analysis.errors import UserError  # noqa: E402

RUN_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
RUN_LINES = ["-", "--", ":"]
RUN_MARKERS = ["o", "s", "^", "D", "v"]
DOTS_PER_INCH = 130

plt.rcParams.update({
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
})

__all__ = ["Axes", "Figure", "RUN_COLOURS", "look_of_run", "plt", "save"]


def look_of_run(index: int) -> tuple[str, str, str]:
    """Colour, line style and marker of the run at `index`; together they repeat after 105 runs."""
    return (RUN_COLOURS[index % len(RUN_COLOURS)],
            RUN_LINES[index // len(RUN_COLOURS) % len(RUN_LINES)],
            RUN_MARKERS[index % len(RUN_MARKERS)])


def save(figure: Figure, path: Path) -> Path:
    try:
        figure.savefig(path, dpi=DOTS_PER_INCH)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another --output") from error
    finally:
        plt.close(figure)
    return path
