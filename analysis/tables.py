# SPDX-License-Identifier: Apache-2.0
"""Plain text tables, values for JSON and the output folder."""
from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Iterable, Sequence
from urllib.parse import quote

from analysis.errors import UserError, one_line, visible

HUGE = 1e15


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns separated by two spaces, the first aligned left, the others right."""
    lines = [[one_line(cell) for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def join(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([join(lines[0]), rule, *(join(line) for line in lines[1:])])


def markdown_words(text: str) -> str:
    """A text in Markdown as it is: no tag, no link and no line of its own comes out of it."""
    return re.sub(r"([\\\[\]])", r"\\\1", one_line(text)).replace("<", "&lt;")


def markdown_image(label: str, path: str) -> str:
    """A figure in Markdown; nothing in a name ends the link, or makes another one."""
    return f"![{markdown_words(label)}]({quote(path, safe='/', errors='surrogateescape')})"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False) -> str:
    """The first column aligned left, the others right; all left if they hold `words`."""
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(markdown_words(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(header), line(["---", *(["---" if words else "---:"] * (len(header) - 1))]), *map(line, rows)])


def some(names: Sequence[str], between: str = ", ", most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def number(value: float, digits: int = 4) -> str:
    """A number with `digits` decimals, a dash if there is none; huge ones as 1.3e+157."""
    if math.isnan(value):
        return "-"
    if abs(value) >= HUGE:
        return f"{value:.2g}"
    return f"{0.0 if abs(value) < 0.5 * 10.0 ** -digits else value:,.{digits}f}"  # no -0.0


def sanitized(value: Any) -> Any:
    """Dictionaries and lists of numbers and texts, with None for numbers that are not finite: JSON has none."""
    if isinstance(value, dict):
        return {key: sanitized(each) for key, each in value.items()}
    if isinstance(value, list):
        return [sanitized(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note_lines(notes: Iterable[str]) -> list[str]:
    return [f"note: {one_line(note)}" for note in notes]


def path_lines(paths: Iterable[Path]) -> list[str]:
    """A line for each file that was written."""
    return [one_line(str(path)) for path in paths]


def write_report(path: Path, text: str) -> Path:
    """A file of a report, whatever letters are in the names and texts that it is made of."""
    path.write_text(visible(text), encoding="utf-8")
    return path


def output_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the output folder {path}: {error.strerror}; "
                        "name another with --output") from error
    return path
