#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_words.py PROGRAM [--self-test]: what the documents name exists.

In every block of commands, those for clusters and GPUs too: commands and options of hyperslab, keys
after --set, files below jobs/ and inputs/. Everywhere: relative links, with the headings that they
name. The index in docs/README.md: every page of docs/. The help of every command fits a terminal.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import pages

README_LINES = 150
COLUMNS = 80  # of a terminal
_LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
_PATH = re.compile(r"(?<![\w/.-])((?:jobs|inputs)/[\w./*-]*[\w*])")


class Program:
    """What the program says of itself."""

    def __init__(self, path):
        self.path = path
        self._help = {}
        self.keys = set(re.findall(r"`(\w+\.\w+)`", self.output("--keys", "--markdown")))

    def commands(self):
        """The names of its commands, as its help lists them."""
        return re.findall(r"^  ([a-z][\w-]*) ", self.output("--help"), re.MULTILINE)

    def output(self, *arguments):
        """What it prints."""
        return subprocess.run([self.path, *arguments], capture_output=True, text=True, check=False).stdout

    def knows(self, command, option):
        """Whether a command has an option."""
        if command not in self._help:
            self._help[command] = self.output(command, "--help")
        return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", self._help[command]) is not None


def check_help(program):
    """Complaints about the help of commands: how each is called, then what it does, for 80 columns."""
    if "train" not in program.commands():
        yield "hyperslab --help lists no command train"
    for command in program.commands():
        text = program.output(command, "--help")
        if not re.match(rf"usage: (\[?mpirun -np N\]? )?hyperslab {command}\b.*\n(.+\n)*\n(?!Options:)[A-Za-z]", text):
            yield f"hyperslab {command} --help does not begin with its usage and what it does"
        yield from (f"hyperslab {command} --help has {len(line)} columns: {line}"
                    for line in text.splitlines() if len(line) > COLUMNS)


def check_hyperslab(words, program):
    """Complaints about the words after `hyperslab`."""
    if not words or words[0].startswith("--"):
        return
    for i, word in enumerate(words[1:], 1):
        if word == "--set" and i + 1 < len(words):
            key = words[i + 1].split("=")[0].strip("'\"")
            if "$" not in key and key not in program.keys:
                yield f"there is no key '{key}'"
        elif word.startswith("--") and not program.knows(words[0], word.split("=")[0]):
            yield f"hyperslab {words[0]} has no option {word}"


def check_commands(text, program, root):
    """Complaints about all blocks of commands of a page."""
    for block in pages.blocks(text, "sh", "console"):
        for line in pages.commands(block):
            for match in _PATH.finditer(line):
                if not list(root.glob(match[1])):
                    yield f"'{match[1]}' does not exist"
            for part in re.split(r"[|;&]|\bdo\b", line):
                words = part.split()
                names = [i for i, word in enumerate(words) if word.split("/")[-1] == "hyperslab"]
                if names and not {"spack", "docker", "apptainer"} & set(words):
                    yield from check_hyperslab(words[names[0] + 1:], program)


def anchors(text):
    """What links may name in a page: its headings, in lower case, with hyphens for blanks and without
    punctuation, and its ids."""
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", outside, re.MULTILINE)
    named = {"#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return named | {"#" + name for name in re.findall(r"<a id=\"([\w-]+)\">", outside)}


def check_links(page, text, root):
    """Complaints about the links of a page."""
    for match in _LINK.finditer(text):
        if "://" in match[1]:
            continue
        target = root / page.parent / match[1] if match[1] else root / page
        if not target.exists():
            yield f"{page}: the link to '{match[1]}' leads nowhere"
        elif match[2] and target.suffix == ".md" and match[2] not in anchors(target.read_text(encoding="utf-8")):
            yield f"{page}: the link to '{match[1]}{match[2]}' names no heading there"


def check_index(root):
    """Complaints about pages of docs/ that the index does not name."""
    index = root / "docs/README.md"
    named = {match[1] for match in _LINK.finditer(index.read_text(encoding="utf-8"))}
    for path in sorted((root / "docs").glob("*.md")):
        if path != index and path.name not in named:
            yield f"docs/README.md: does not name {path.name}"


def check_page(page, text, program, root):
    """Complaints about a page."""
    yield from check_links(page, text, root)
    yield from (f"{page}: {complaint}" for complaint in check_commands(text, program, root))
    if page == pathlib.Path("README.md") and text.count("\n") > README_LINES:
        yield f"{page}: {text.count(chr(10))} lines, more than {README_LINES}: the rest belongs in docs/"


def check(root, program):
    """Complaints about all pages."""
    return [*check_index(root), *(complaint for page in pages.pages(root)
            for complaint in check_page(page, (root / page).read_text(encoding="utf-8"), program, root))]


BROKEN = [
    ("```sh\nhyperslab train a --nothing\n```\n", "hyperslab train has no option --nothing"),
    ("```console\nmpirun -np 2 hyperslab train a \\\n  --set model.heeds=2\n```\n", "there is no key 'model.heeds'"),
    ("```sh\njobs/absent.sh\n```\n", "'jobs/absent.sh' does not exist"),
    ("See [this](docs/absent.md#part).\n", "the link to 'docs/absent.md' leads nowhere"),
    ("See [this](docs/a.md#part).\n", "the link to 'docs/a.md#part' names no heading there"),
    ("# A\n```sh\n# part\n```\nSee [this](#part).\n", "the link to '#part' names no heading there"),
    ("line\n" * (README_LINES + 1), "more than 150"),
]
CLEAN = ("See [it](docs/a.md#some-part-b-and-c) and [that](https://example.org/a).\n```sh\n"
         "hyperslab train jobs/a.sh --resume never --set train.steps=1  # --no-option here\n```\n")


def self_test(program):
    """Proves that a clean page passes and that every kind of fault is found."""
    failures = []
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for path, content in (("docs/a.md", "## Some part: `b`, and c\n"), ("docs/README.md", "[a](a.md)\n"),
                              ("jobs/a.sh", "")):
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text(content, encoding="utf-8")
        for text, expected in [(CLEAN, None), *BROKEN]:
            (root / "README.md").write_text(text, encoding="utf-8")
            found = check(root, program)
            if (found != []) if expected is None else not any(expected in each for each in found):
                failures.append(f"{text[:60]!r}: expected {expected!r}, found {found}")
        (root / "docs/b.md").write_text("", encoding="utf-8")
        if "docs/README.md: does not name b.md" not in check(root, program):
            failures.append("a page that the index does not name was not found")
    return failures


if __name__ == "__main__":
    PROGRAM = Program(sys.argv[1])
    COMPLAINTS = self_test(PROGRAM) if "--self-test" in sys.argv else [*check(pages.ROOT, PROGRAM), *check_help(PROGRAM)]
    print("\n".join(COMPLAINTS) or "documents: nothing to complain about")
    sys.exit(1 if COMPLAINTS else 0)
