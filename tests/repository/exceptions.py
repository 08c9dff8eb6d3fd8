# SPDX-License-Identifier: Apache-2.0
"""Files and functions above a limit today, in exceptions.txt: a line has a kind, a number and a name. Numbers may fall and never rise."""

FILE = "tests/repository/exceptions.txt"


def read(root):
    """{(kind, name): number} of the file."""
    path = root / FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = (line.split(" ", 2) for line in lines if line and not line.startswith("#"))
    return {(kind, name): int(number) for kind, number, name in rows}


def above(measured):
    """{(kind, name): (number, limit, line)} of everything above its limit; of several of one name the largest."""
    found = {}
    for kind, name, number, limit, line in measured:
        if number > limit and number > found.get((kind, name), (0,))[0]:
            found[kind, name] = number, limit, line
    return found


def check(root, measured, words):
    """Complaints: numbers above their limit and their exception, and exceptions that nothing needs."""
    allowed, found = read(root), above(measured)
    for (kind, name), (number, limit, line) in found.items():
        if number > allowed.get((kind, name), limit):
            yield words(kind, name, number, allowed.get((kind, name), limit), line)
    for kind, name in allowed.keys() - found.keys():
        yield (f"{FILE}: '{kind} {allowed[kind, name]} {name}' is no exception any more: "
               "run the check with --update")


def update(root, measured):
    """Writes numbers that have fallen and drops exceptions that are gone; nothing rises. The exit code."""
    allowed, found = read(root), above(measured)
    lines = []
    for line in (root / FILE).read_text(encoding="utf-8").splitlines():
        kind, _, rest = line.partition(" ")
        key = kind, rest.partition(" ")[2]
        if key not in allowed:
            lines.append(line)
        elif key in found:
            lines.append(f"{kind} {min(allowed[key], found[key][0])} {key[1]}")
    (root / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0
