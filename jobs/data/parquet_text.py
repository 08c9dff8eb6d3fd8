#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A column of texts of parquet files on standard output.

parquet_text.py [--column NAME] [--skip N] [--documents N] [--lines | --jsonl | --chats] FILE...
Each row is a document, ended by a NUL byte (one in the text becomes a space); with --jsonl rows are lines {"text": ...},
which keep every text as it is, for `hyperslab tokenize --jsonl --input -`; with --lines rows are lines of one text, empty
ones a space and a line break, as in WikiText's own files. Rows without a text (null) are left out. With --chats rows are
lines of what `hyperslab tokenize --chat -` reads: messages, or prompt, chosen and rejected.
"""

import argparse
import json
import sys

try:
    import pyarrow.parquet
    LACKING = None
except ImportError as missing:
    LACKING = missing


CHATS = ("messages", "prompt", "chosen", "rejected")


def opened(path):
    """The file at a path."""
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        sys.exit(f"parquet_text.py: {path}: expected a parquet file: {error}")


def chats(paths):
    """The columns of a conversation or of a pair of answers in every row, a batch in memory at a time."""
    for path in paths:
        file = opened(path)
        columns = [name for name in CHATS if name in file.schema_arrow.names]
        if "messages" not in columns and not {"chosen", "rejected"} <= set(columns):
            sys.exit(f"parquet_text.py: {path}: expected a column 'messages', or 'chosen' and 'rejected', found "
                     f"{', '.join(file.schema_arrow.names)}; write such a file")
        for batch in file.iter_batches(columns=columns):
            yield from ({key: value for key, value in row.items() if value is not None} for row in batch.to_pylist())


def rows(paths, column):
    """The text of every row, a batch in memory at a time."""
    for path in paths:
        file = opened(path)
        if column not in file.schema_arrow.names:
            sys.exit(f"parquet_text.py: {path}: expected a column '{column}', found {', '.join(file.schema_arrow.names)}; "
                     "name another with --column")
        for batch in file.iter_batches(columns=[column]):
            for text in batch.column(0).to_pylist():
                if text is not None and not isinstance(text, str):
                    sys.exit(f"parquet_text.py: {path}: expected texts in the column '{column}', found "
                             f"{type(text).__name__}; name another with --column")
                yield text


def document(text):
    """A row as a document of text."""
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b" ") + b"\0"


def line(text):
    """A row as a line of one text."""
    return text.encode("utf-8", "surrogatepass") or b" \n"


def json_line(text):
    """A row as a line of JSON."""
    return json.dumps({"text": text}, ensure_ascii=False).encode("utf-8") + b"\n"


def chat_line(row):
    """A conversation as a line of JSON."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"


def main():
    """Writes rows [skip, skip + documents)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--column", default="text")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--documents", type=int, default=None)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--lines", dest="form", action="store_const", const=line, default=document)
    form.add_argument("--jsonl", dest="form", action="store_const", const=json_line)
    form.add_argument("--chats", dest="form", action="store_const", const=chat_line)
    parser.add_argument("file", nargs="+")
    arguments = parser.parse_args()
    if LACKING:
        sys.exit(f"parquet_text.py: Python's pyarrow is needed, and cannot be imported: {LACKING}")
    end = None if arguments.documents is None else arguments.skip + arguments.documents
    found = chats(arguments.file) if arguments.form is chat_line else rows(arguments.file, arguments.column)
    for number, text in enumerate(found):
        if end is not None and number >= end:
            break
        if number >= arguments.skip and text is not None:
            sys.stdout.buffer.write(arguments.form(text))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
