# SPDX-License-Identifier: Apache-2.0
"""What a user did wrong, reported in one line; and texts of files as a terminal may have them."""
from __future__ import annotations

import difflib
import re
from typing import Iterable

# These characters steer a terminal, begin a line or turn the letters around them: controls of C0 and C1, U+2028 and
# U+2029, those of text in two directions, and halves of characters, which no encoding has. printable() of the program
# takes the same.
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

MOST_LETTERS = 2500  # of an error


def visible(text: str) -> str:
    """The lines of a text, with ? for each character that a terminal would obey."""
    return OBEYED.sub("?", text)


def one_line(text: str) -> str:
    """The same of a text that is to be one line, as names and notes are."""
    return " ".join(visible(text).splitlines())


def nearest(name: str, known: Iterable[str]) -> str:
    """Such as " (did you mean ranks?)" for a misspelled name; empty if nothing is near."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


class UserError(Exception):
    """One line: what, where, what to do. The command line prints it and exits with 2. Of a very long one, as if it
    quotes a damaged file, the middle is left out."""

    def __init__(self, message: str) -> None:
        text = one_line(message)
        super().__init__(text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS - 500]} ... {text[-500:]}")
