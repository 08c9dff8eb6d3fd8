# SPDX-License-Identifier: Apache-2.0
"""A published strong scaling beside the simulated one."""
from __future__ import annotations

from pathlib import Path
from typing import Sequence

from analysis.published_rows import CurvePoint
from analysis.style import RUN_COLOURS, Axes, add_head, plt, save
from analysis.ticks import round_log_axis, widened


def draw_panel(axes: Axes, gpus: Sequence[int], published: Sequence[float], simulated: Sequence[float], label: str) -> None:
    axes.plot(gpus, published, marker="o", color=RUN_COLOURS[0], label="published")
    axes.plot(gpus, simulated, marker="s", linestyle="--", color=RUN_COLOURS[1], label="simulated")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(gpus), [f"{count:,}" for count in gpus], rotation=45)
    axes.minorticks_off()
    axes.set_xlabel("GPUs")
    axes.set_ylabel(label)
    axes.legend()


def draw_curve(points: Sequence[CurvePoint], simulated: Sequence[float], subtitle: str, path: Path) -> None:
    """`simulated` in TFLOP/s per GPU. Writes path.png, .pdf and .svg."""
    figure, (each, total) = plt.subplots(1, 2, figsize=(9.5, 4.2))
    top = add_head(figure, "Strong scaling, published and simulated", subtitle)
    gpus = [point.gpus for point in points]
    draw_panel(each, gpus, [point.tflops_per_gpu for point in points], simulated, "TFLOP/s per GPU")
    draw_panel(total, gpus, [point.pflops for point in points],
               [1e-3 * rate * count for rate, count in zip(simulated, gpus)], "PFLOP/s")
    each.set_ylim(0.0, 1.1 * max(*simulated, *(point.tflops_per_gpu for point in points)))
    values = [*(point.pflops for point in points), *(1e-3 * rate * count for rate, count in zip(simulated, gpus))]
    round_log_axis(total, "y", *widened(min(values), max(values)))
    figure.tight_layout(rect=(0.0, 0.0, 1.0, top))
    save(figure, path)
