# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files that a user names, and writes tables as such."""
from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Sequence

from analysis.errors import UserError

Lines = list[tuple[int, dict[str, str]]]


def csv_text(records: Sequence[dict[str, Any]]) -> str:
    """A row a record; the first one's keys are the columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def read_csv(path: Path) -> tuple[list[str], Lines]:
    """The columns, and each row with its line in the file; cells that a row lacks are empty."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            lines = [(reader.line_num, row) for row in reader]
            return list(reader.fieldnames or []), lines
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no CSV file: {error}") from error
