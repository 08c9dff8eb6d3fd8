#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files of up to 400 lines, functions of up to 40 (of a GPU 80), at most 7 parameters, as CONTRIBUTING.md asks.

check_sizes.py [--self-test | --update]
Larger ones are named in exceptions.txt with a number, which may fall and never rise; --update writes numbers that have fallen.
"""

import ast
import re
import sys

import exceptions
import tree

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_KERNEL_LINES = 80
MAX_PARAMETERS = 7

_TREES = {"src", "include", "parallel", "io", "analysis", "jobs"}  # check_repository.py has wider limits, for tests too
_CPP = {".cpp", ".hpp", ".cu", ".cuh"}
_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|(?<![0-9A-Fa-f])\'(?:[^\'\\\n]|\\.)+\''
                       r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE | re.DOTALL)
_TOKEN = re.compile(r"[{}();,<>=\[\]]|->")
_SCOPE = re.compile(r"\s*(?:template\s*<.*>\s*)?(?:inline\s+|typedef\s+)?(?:namespace|class|struct|union|extern)\b", re.DOTALL)
_NAME = re.compile(r"(operator\s*\S{1,3}|[\w:~]+)\s*$")
_NO_FUNCTION = {"if", "for", "while", "switch", "return", "static_assert", "alignas", "decltype", "requires", "sizeof", "noexcept"}


def blank(match):
    """As many lines, without their text."""
    return "\n" * match[0].count("\n") + " "


def parameters_in(text):
    """(name, parameters) of a declaration, or None: what is before its first bracket, and how many commas are in it."""
    depth, start, count, squares = 0, None, 0, 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "<>" and start is None:
            depth += 1 if sign == "<" else -1
        elif sign in "<>":
            squares += 1 if sign == "<" else -1
        elif start is None and sign == "=" and depth == 0 and not text[: token.start()].rstrip().endswith("operator"):
            return None
        elif sign == "(" and start is None and depth == 0:
            start, nested = token.end(), 1
            name = _NAME.search(text[: token.start()])
        elif start is not None and sign in "([":
            nested += 1
        elif start is not None and sign in ")]":
            nested -= 1
            if nested == 0:
                inside = text[start : token.start()].strip()
                return (name[1], count + 1 if inside else 0) if name and name[1] not in _NO_FUNCTION else None
        elif start is not None and sign == "," and nested == 1 and squares == 0:
            count += 1
    return None


def cpp_functions(text):
    """(line, name, parameters, lines, whether it is of a GPU) of every function outside of other functions' bodies."""
    text = _NOT_CODE.sub(blank, text)
    scopes, begin, round_brackets, opened = [], 0, 0, None
    for token in re.finditer(r"[{}();]", text):
        sign = token[0]
        if sign in "()":
            round_brackets += 1 if sign == "(" else -1
        elif opened is not None:
            opened[1] += {"{": 1, "}": -1}.get(sign, 0)
            if opened[1] == 0:
                head, _, is_function = opened
                if is_function:
                    yield from function_of(text, head, token.end())
                # `x{1}, y{2} {`: braces of initializers belong to the head of what follows.
                begin, opened = (token.end() if is_function else head), None
        elif round_brackets:
            continue
        elif sign == "{":
            head = text[begin : token.start()]
            if _SCOPE.match(head) and "(" not in re.sub(r"(alignas|__\w+__)\s*\([^)]*\)", "", head):
                scopes.append(token)
                begin = token.end()
            else:
                opened = [begin, 1, is_body(head)]
        elif sign == "}":
            begin = token.end()
        elif sign == ";":
            yield from function_of(text, begin, None, end=token.start())
            begin = token.end()


def is_body(head):
    """Whether a brace after this text opens a function's body and no initializer of a member."""
    return re.search(r"(\)|\b(?:const|override|final|noexcept|mutable|try)|->[\s\w:<>,*&]+)\s*$|:[^:]*[})]\s*$", head) is not None


def function_of(text, begin, stop, end=None):
    """The function whose declaration begins there, if it is one; stop: the end of its body, if it has one."""
    head = text[begin : end if end is not None else text.index("{", begin)]
    head = re.sub(r"^\s*(?:public|private|protected)\s*:", lambda m: blank(m), head)
    lead = len(head) - len(head.lstrip())
    found = parameters_in(re.sub(r"\[\[.*?\]\]|(alignas|__launch_bounds__|__attribute__|requires)\s*\((?:[^()]|\([^()]*\))*\)", " ", head))
    if found is None:
        return
    line = text.count("\n", 0, begin + lead) + 1
    lines = text.count("\n", begin + lead, stop) + 1 if stop else 0
    yield line, found[0], found[1], lines, "__global__" in head or "__device__" in head


def python_functions(text):
    """(line, name, parameters, lines, False) of every function of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            yield node.lineno, node.name, len([n for n in names if n not in ("self", "cls")]), node.end_lineno - node.lineno + 1, False


def measures(root):
    """(kind, name, number, limit, line) of everything that has a limit."""
    for path in tree.files(root):
        functions = cpp_functions if path.suffix in _CPP else python_functions if path.suffix == ".py" else None
        if functions is None or path.parts[0] not in _TREES or path.is_relative_to("analysis/tests"):
            continue
        text = (root / path).read_text(encoding="utf-8")
        yield "lines", str(path), text.count("\n"), MAX_FILE_LINES, 1
        for line, name, parameters, lines, on_gpu in functions(text):
            yield "parameters", f"{path}:{name}", parameters, MAX_PARAMETERS, line
            yield "function", f"{path}:{name}", lines, MAX_KERNEL_LINES if on_gpu else MAX_FUNCTION_LINES, line


_WORDS = {"lines": "{path}: {number} lines", "function": "{path}:{line}: {name} has {number} lines",
          "parameters": "{path}:{line}: {name} has {number} parameters"}


def check(root):
    """All complaints about the tree at root."""
    def words(kind, key, number, limit, line):
        path, _, name = key.partition(":")
        return f"{_WORDS[kind].format(path=path, name=name, number=number, line=line)}, more than {limit}"
    return list(exceptions.check(root, measures(root), words))


def function(lines, parameters=0, head="void f", body="  g();\n"):
    """A function of so many lines and parameters."""
    return head + "(" + ", ".join(f"std::pair<int, int> a{i}" for i in range(parameters)) + ") {\n" + body * (lines - 2) + "}\n"


CLEAN = {
    exceptions.FILE: "lines 500 src/long.cpp\nparameters 9 src/many.hpp:many\n",
    "src/long.cpp": "int a;\n" * 500,
    "src/many.hpp": "class C : public B {\n public:\n  C() : a{1}, b{2} {}\n  void many(int a, int b, int c, int d, int e, int f, int g, int h, int i);\n};\n",
    "src/short.cpp": "#define X(a, b, c, d, e, f, g, h, i) {\nnamespace a {\n// void f(int a, int b, int c, int d, int e, int f, int g, int h) {\n"
                     + function(40, 7) + "int x = f(1, 2, 3, 4, 5, 6, 7, 8, 9);\nconst char* s = \"(,,,,,,,,\";\n}\n",
    "src/kernel.cu": function(80, 7, "__global__ void k"),
    "src/table.cpp": "const Row kRows[] = {\n" + "    {1, 2},\n" * 80 + "};\n" + function(40),
    "analysis/a.py": "def f(a, b, c, d, e, f, g):\n" + "    g()\n" * 39,
}

# (a file that must be refused, its text, what the complaint says)
BROKEN = [
    ("src/a.cpp", "int a;\n" * 401, "src/a.cpp: 401 lines, more than 400"),
    ("src/long.cpp", "int a;\n" * 501, "src/long.cpp: 501 lines, more than 500"),
    ("src/a.cpp", "\n" + function(41), "src/a.cpp:2: f has 41 lines, more than 40"),
    ("src/a.cpp", "namespace a::b {\n" + function(41, 2, "C::C") + "}\n", "src/a.cpp:2: C::C has 41 lines"),
    ("src/a.hpp", "struct S {\n  int x = 1;\n" + function(41, 2, "  int f") + "};\n", "src/a.hpp:3: f has 41 lines"),
    ("src/a.hpp", "struct S {\n  S(int x)\n      : a_{x}, b_(x) {\n" + "    g();\n" * 41 + "  }\n};\n", "src/a.hpp:2: S has 44 lines"),
    ("src/a.cu", function(81, 0, "__global__ void k"), "src/a.cu:1: k has 81 lines, more than 80"),
    ("src/a.cpp", "static " + function(5, 8), "src/a.cpp:1: f has 8 parameters, more than 7"),
    ("src/a.hpp", "template <class A, class B>\nA f(B, int b, int c, int d, int e, A (*f)(int, int), int g = h(1, 2), int h = 2);\n",
     "src/a.hpp:1: f has 8 parameters"),
    ("src/many.hpp", "void many(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j);\n",
     "src/many.hpp:1: many has 10 parameters, more than 9"),
    ("analysis/a.py", "def f():\n" + "    g()\n" * 40, "analysis/a.py:1: f has 41 lines"),
    ("analysis/b.py", "class C:\n    def f(self, a, b, c, d, *, e, f, g, h):\n        g()\n", "analysis/b.py:2: f has 8 parameters"),
    ("src/long.cpp", "int a;\n", "exceptions.txt: 'lines 500 src/long.cpp' is no exception any more"),
]


if __name__ == "__main__":
    sys.exit(exceptions.update(tree.ROOT, measures(tree.ROOT)) if sys.argv[1:] == ["--update"]
             else tree.main("sizes", check, CLEAN, BROKEN))
