# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files that a user names."""
from __future__ import annotations

import csv
from pathlib import Path

from analysis.errors import UserError

Lines = list[tuple[int, dict[str, str]]]


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
