#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The column `text` of parquet files on standard output.

parquet_text.py [--skip N] [--documents N] [--lines] FILE...
Each row is a document, ended by a NUL byte (one in the text becomes a space); with --lines rows are lines of one text,
empty ones a space and a line break, as in WikiText's own files.
"""

import argparse
import sys

import pyarrow.parquet


def rows(paths):
    """The text of every row, a batch in memory at a time."""
    for path in paths:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=["text"]):
            yield from batch.column(0).to_pylist()


def main():
    """Writes rows [skip, skip + documents)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--documents", type=int, default=None)
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("file", nargs="+")
    arguments = parser.parse_args()
    end = None if arguments.documents is None else arguments.skip + arguments.documents
    for number, text in enumerate(rows(arguments.file)):
        if end is not None and number >= end:
            break
        if number < arguments.skip or text is None:
            continue
        data = text.encode("utf-8", "surrogatepass")
        sys.stdout.buffer.write(data or b" \n" if arguments.lines else data.replace(b"\0", b" ") + b"\0")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
