# SPDX-License-Identifier: Apache-2.0
"""A report before it is written: sections of text, tables and figures; and its files."""
from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Sequence
from weakref import WeakKeyDictionary

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.dashes import dash_note
from analysis.errors import visible
from analysis.style import MM_PER_INCH, Figure, inline_svg
from analysis.tables import markdown_image, markdown_table, markdown_words

PRINT_DOTS_PER_INCH = 200
PIXELS: WeakKeyDictionary[Figure, str] = WeakKeyDictionary()  # of figures that were drawn: a page is tried more than once
HIGH_MM = 75.0
NARROW_MM, NARROW_LETTERS = 90.0, 64  # of a figure and of a table's longest row that fit beside each other
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
    def letters(self) -> int:
        """Of a row, where words of the header stand below each other."""
        def widest(column: int) -> int:
            return max(*(len(row[column]) for row in self.rows), *map(len, self.header[column].split()), 1)

        return sum(widest(column) + 2 for column in range(len(self.header))) if self.rows else 0

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
        if self.figure not in PIXELS:
            content = io.BytesIO()
            self.figure.savefig(content, format="png", dpi=PRINT_DOTS_PER_INCH)
            PIXELS[self.figure] = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"
        return PIXELS[self.figure]

    @property
    def height_mm(self) -> float:
        return float(self.figure.get_figheight()) * MM_PER_INCH

    @property
    def width_mm(self) -> float:
        return float(self.figure.get_figwidth()) * MM_PER_INCH


@dataclass(frozen=True)
class Section:
    title: str
    paragraphs: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)  # of a list
    drawings: list[Drawing] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    after: list[str] = field(default_factory=list)  # paragraphs below the tables
    level: int = 2  # of its heading; 3: within a part of a report on several studies
    style: str = ""  # a class of the page: columns, appendix

    @property
    def is_beside(self) -> bool:
        """Whether its figure and its table fit beside each other on a page of A4."""
        return len(self.drawings) == 1 == len(self.sheets) and self.drawings[0].width_mm <= NARROW_MM and \
            self.sheets[0].letters <= NARROW_LETTERS

    @property
    def is_together(self) -> bool:
        """Whether no page ends between its figures and tables; high figures would leave half a page empty."""
        return bool(self.drawings) and sum(each.height_mm for each in self.drawings) <= HIGH_MM

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
    template: str = "report.html.j2"

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
    return visible(environment().get_template(document.template).render(document=document, drawn=drawn))


def markdown_text(document: Document) -> str:
    text = environment().get_template("report.md.j2").render(document=document)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def rendered_pages(document: Document) -> int:
    """Of the PDF; 0 if there is no WeasyPrint to count them."""
    try:
        from weasyprint import HTML
    except (ModuleNotFoundError, OSError):
        return 0
    return len(HTML(string=html_text(document, "png")).render().pages)


def write_pdf(document: Document, path: Path) -> str:
    """Empty, or why there is none. The PDF is the page as print shows it; WeasyPrint 57 leaves out the
    letters of matplotlib's SVG, so the figures are pixels there."""
    try:
        from weasyprint import HTML
    except (ModuleNotFoundError, OSError) as error:  # OSError: a library that it loads is missing
        return NO_PDF.format(path=path, name=getattr(error, "name", None) or "weasyprint")
    HTML(string=html_text(document, "png")).write_pdf(path)
    return ""
