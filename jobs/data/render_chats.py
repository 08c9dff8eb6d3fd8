#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations as a chat template of Jinja2 writes them, on standard output.

render_chats.py --vocab DIR [--template FILE] [--fingerprint] FILE.jsonl...
Each row ({"messages": [...], "tools": [...]}) becomes a line {"rendered": [{"text": ..., "trained": true|false}, ...]} for
`hyperslab tokenize --chat - --chat-template rendered`, whose texts name special tokens. DIR has the vocabulary's
chat_template.jinja or tokenizer_config.json; FILE is another template. What is trained is what the template marks by
{% generation %}; without such marks it is what follows the words that ask for an answer, and the template must write the
beginning of a conversation as it does within the whole. A message that names a special token is refused, as it could not be
told from that token. --fingerprint prints the number by which `tokenize` knows the template, and ends. Needs jinja2.
"""

import argparse
import datetime
import json
import pathlib
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    LACKING = None
except ImportError as missing:
    LACKING = missing


class Refusal(Exception):
    """A row that cannot be rendered."""


def fingerprint(source):
    """The number of `fingerprint_of_template`: FNV-1a of the source with one way of writing line breaks."""
    source = source.removesuffix("\n").removesuffix("\r").replace("\r\n", "\n").replace("\\n", "\n")
    value = 0xCBF29CE484222325
    for byte in source.encode("utf-8"):
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def compiled(source):
    """A template with the filters and functions of transformers; marks of {% generation %} become NUL characters."""

    class Generation(jinja2.ext.Extension):
        """Puts a NUL before and after what the block writes."""

        tags = {"generation"}

        def parse(self, parser):
            """The block as a call of _marked."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller):
            return f"\0{caller()}\0"

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                               extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source)


def marked_parts(text):
    """[(text, is trained)] of a rendering with marks."""
    return [(part, number % 2 == 1) for number, part in enumerate(text.split("\0")) if part]


def compared_parts(template, values):
    """[(text, is trained)] by comparing renderings of the beginnings of a conversation."""
    messages = values["messages"]
    whole = template.render(values, add_generation_prompt=False)
    parts, done = [], 0
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = template.render(values | {"messages": messages[:i]}, add_generation_prompt=True)
        after = template.render(values | {"messages": messages[:i + 1]}, add_generation_prompt=False)
        if not after.startswith(before) or not whole.startswith(after) or len(before) < done:
            raise Refusal(f"message {i + 1}: the template writes it in another way within the whole conversation; mark what is "
                          "trained with {% generation %} and {% endgeneration %} in a copy of it, and give that with --template")
        end = len(before) + len(after[len(before):].rstrip())
        parts += [(whole[done:len(before)], False), (whole[len(before):end], True)]
        done = end
    return [part for part in [*parts, (whole[done:], False)] if part[0]]


def texts_of(value):
    """All texts within a value of JSON."""
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from texts_of(each)


def rendered(template, row, words, specials):
    """A row as parts. words: of the vocabulary (bos_token and others); specials: names of special tokens."""
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list) or not row["messages"]:
        raise Refusal("expected an object with a list of messages")
    for text in texts_of(row):
        for special in specials:
            if special in text:
                raise Refusal(f"a text names the special token '{special}'; leave the row out")
        if "\0" in text:
            raise Refusal("a text holds a NUL; leave the row out")
    values = words | {"messages": row["messages"]} | ({"tools": row["tools"]} if row.get("tools") else {})
    try:
        text = template.render(values, add_generation_prompt=False)
        parts = marked_parts(text) if "\0" in text else compared_parts(template, values)
    except (jinja2.exceptions.TemplateError, TypeError, KeyError) as error:
        raise Refusal(f"the template refuses it: {error}") from error
    return {"rendered": [{"text": part, "trained": trained} for part, trained in parts]}


def read_json(path):
    """A file of JSON, or an empty object if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def source_of(folder, path):
    """The source of the template in the file `path`, or of the vocabulary in `folder`."""
    if path:
        return pathlib.Path(path).read_text(encoding="utf-8")
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    source = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(source, list):
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        sys.exit(f"render_chats.py: {folder}: expected a chat template, found none; give one with --template")
    return source


def words_of(folder):
    """bos_token and other named tokens of a vocabulary, as templates see them."""
    config = read_json(folder / "tokenizer_config.json")
    words = {key: value.get("content") if isinstance(value, dict) else value
             for key, value in config.items() if key.endswith("_token")}
    return {key: value for key, value in words.items() if isinstance(value, str)}


def main():
    """Renders all rows, or prints the fingerprint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", required=True, type=pathlib.Path)
    parser.add_argument("--template")
    parser.add_argument("--fingerprint", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    source = source_of(args.vocab, args.template)
    if args.fingerprint:
        print(f"{fingerprint(source):016x}")
        return
    if LACKING:
        sys.exit(f"render_chats.py: {LACKING}; install it: apt-get install python3-jinja2, or pip install jinja2")
    template = compiled(source)
    added = read_json(args.vocab / "tokenizer.json").get("added_tokens", [])
    specials = [token["content"] for token in added if token.get("special")]
    for path in args.files:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    row = rendered(template, json.loads(line), words_of(args.vocab), specials) if line.strip() else None
                except (Refusal, ValueError) as error:
                    sys.exit(f"render_chats.py: {path}:{number}: {error}")
                if row:
                    print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
