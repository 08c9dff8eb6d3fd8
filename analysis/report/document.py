# SPDX-License-Identifier: Apache-2.0
"""A report before it is written: sections of text, tables and figures; and its files."""
from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Sequence

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.dashes import dash_note
from analysis.errors import visible
from analysis.style import Figure, inline_svg
from analysis.tables import markdown_image, markdown_table, markdown_words

PRINT_DOTS_PER_INCH = 200
NO_PDF = ("there is no {path}: Python module {name} cannot be loaded; apt install weasyprint, or print the HTML page "
          "from a browser")


@dataclass(frozen=True)
class Sheet:
    """A table; `text`: its cells are words; `base`: the row that others are compared with."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: bool = False
    base: int = -1

    @property
    def markdown(self) -> str:
        return markdown_table(self.header, self.rows, self.text)


@dataclass(frozen=True)
class Drawing:
    """A figure under the name of its files; `label` is for those who cannot see it."""

    name: str
    figure: Figure
    caption: str
    label: str

    @property
    def svg(self) -> Markup:
        """inline_svg() escapes what it puts in, so that the page takes it as it is."""
        return Markup(inline_svg(self.figure, self.name, self.label))

    @property
    def png(self) -> str:
        """As the address of an image that is inside the page."""
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=PRINT_DOTS_PER_INCH)
        return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"


@dataclass(frozen=True)
class Section:
    title: str
    paragraphs: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)  # of a list
    drawings: list[Drawing] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    after: list[str] = field(default_factory=list)  # paragraphs below the tables
    level: int = 2  # of its heading; 3: within a part of a report on several studies

    @property
    def remarks(self) -> list[str]:
        """What stands below the tables, and why some of their cells are dashes."""
        note = dash_note((sheet.header, sheet.rows) for sheet in self.sheets)
        return [*self.after, *([note] if note else [])]

    def in_part(self, folder: str) -> Section:
        """The same below a part's heading, its figures in the part's folder."""
        return replace(self, level=self.level + 1,
                       drawings=[replace(drawing, name=f"{folder}/{drawing.name}") for drawing in self.drawings])


@dataclass(frozen=True)
class Document:
    title: str
    lead: str
    sections: list[Section]

    @property
    def drawings(self) -> list[Drawing]:
        return [drawing for section in self.sections for drawing in section.drawings]


def environment() -> Environment:
    """HTML is escaped as a whole, Markdown by `words` and `image`; a name that a template misspells is an error."""
    found = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), undefined=StrictUndefined,
                        autoescape=lambda name: bool(name and ".html" in name), trim_blocks=True, lstrip_blocks=True,
                        keep_trailing_newline=True)
    found.filters["words"] = markdown_words
    found.globals["image"] = markdown_image
    return found


def html_text(document: Document, drawn: str = "svg") -> str:
    """`drawn`: figures as svg, or as png."""
    return visible(environment().get_template("report.html.j2").render(document=document, drawn=drawn))


def markdown_text(document: Document) -> str:
    text = environment().get_template("report.md.j2").render(document=document)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def write_pdf(document: Document, path: Path) -> str:
    """Empty, or why there is none. The PDF is the page as print shows it; WeasyPrint 57 leaves out the
    letters of matplotlib's SVG, so the figures are pixels there."""
    try:
        from weasyprint import HTML
    except (ModuleNotFoundError, OSError) as error:  # OSError: a library that it loads is missing
        return NO_PDF.format(path=path, name=getattr(error, "name", None) or "weasyprint")
    HTML(string=html_text(document, "png")).write_pdf(path)
    return ""
