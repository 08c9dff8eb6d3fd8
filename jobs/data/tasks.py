#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Task files (docs/tasks.md) of HellaSwag, ARC, PIQA, LAMBADA and Winogrande as they are published.

Without --input the published file is fetched. Texts are put together as in lm-evaluation-harness.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
import urllib.request

MOST_BYTES = 1 << 30
TIMEOUT_SECONDS = 60

HELLASWAG = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
LAMBADA = "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl"
PIQA = "https://yonatanbisk.com/piqa/data/"


class Refused(Exception):
    """What the user has to change."""


def hellaswag_text(text):
    """WikiHow's marks of titles and steps, as lm-evaluation-harness takes them out."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub("\\[.*?\\]", "", text).replace("  ", " ")


def hellaswag(row):
    """Of hellaswag_val.jsonl."""
    begin = row["ctx_a"] + " " + row["ctx_b"].capitalize()
    return {"id": row["ind"], "context": hellaswag_text(row["activity_label"] + ": " + begin),
            "endings": [hellaswag_text(ending) for ending in row["endings"]], "label": int(row["label"])}


def arc(row):
    """Of ARC-Easy-Test.jsonl and ARC-Challenge-Test.jsonl."""
    choices = row["question"]["choices"]
    labels = [choice["label"] for choice in choices]
    return {"id": row["id"], "context": f"Question: {row['question']['stem']}\nAnswer:",
            "endings": [choice["text"] for choice in choices], "label": labels.index(row["answerKey"])}


def piqa(row):
    """Of valid.jsonl, with the label of the same line of valid-labels.lst."""
    return {"context": f"Question: {row['goal']}\nAnswer:", "endings": [row["sol1"], row["sol2"]],
            "label": int(row["label"])}


def lambada(row):
    """Of lambada_test.jsonl: the last word is the ending."""
    context, _, ending = row["text"].rpartition(" ")
    return {"context": context, "ending": ending}


def winogrande(row):
    """Of dev.jsonl: either option takes the place of _, and the rest of the sentence is the ending."""
    before, _, after = row["sentence"].partition("_")
    return {"id": row["qID"], "contexts": [before + row["option1"], before + row["option2"]],
            "ending": after.strip(), "label": int(row["answer"]) - 1}


CHOICE = {"kind": "multiple_choice", "metric": "acc_norm"}
# name: header, line of the published file -> question, addresses of the file and its labels
TASKS = {
    "hellaswag": (CHOICE, hellaswag, (HELLASWAG,)),
    "arc_easy": (CHOICE, arc, ()),
    "arc_challenge": (CHOICE, arc, ()),
    "piqa": (CHOICE, piqa, (PIQA + "valid.jsonl", PIQA + "valid-labels.lst")),
    "lambada": ({"kind": "completion", "metric": "acc"}, lambada, (LAMBADA,)),
    "winogrande": ({"kind": "multiple_choice", "metric": "acc"}, winogrande, ()),
}
ARCHIVES = {
    "arc_easy": "ARC-V1-Feb2018.zip of https://allenai.org/data/arc, which holds ARC-Easy-Test.jsonl",
    "arc_challenge": "ARC-V1-Feb2018.zip of https://allenai.org/data/arc, which holds ARC-Challenge-Test.jsonl",
    "winogrande": "winogrande_1.1.zip of https://winogrande.allenai.org, which holds dev.jsonl",
}


def fetched(address):
    """The text at an address."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as reply:
            data = reply.read(MOST_BYTES + 1)
    except OSError as error:
        raise Refused(f"cannot fetch {address}: {error}; give a local file with --input") from error
    if len(data) > MOST_BYTES:
        raise Refused(f"{address} has more than {MOST_BYTES} bytes")
    return data.decode("utf-8")


def texts_of(name, inputs):
    """The published file and, if the task has one, that of its labels."""
    addresses = TASKS[name][2]
    if inputs:
        files = max(1, len(addresses))
        if len(inputs) != files:
            raise Refused(f"{name} is made of {files} file(s), found {len(inputs)} --input")
        return [pathlib.Path(path).read_text(encoding="utf-8") for path in inputs]
    if not addresses:
        raise Refused(f"{name} is published in an archive: unpack {ARCHIVES[name]}, and give it with --input")
    return [fetched(address) for address in addresses]


def objects_of(text):
    """The objects of a published file, one a line."""
    # Other ends of lines than \n may stand within texts.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise Refused(f"line {number} of the published file is no JSON: {error}") from error


def rows_of(text, labels):
    """The objects of a published file, with the labels of a second one."""
    rows = list(objects_of(text))
    if labels is None:
        return rows
    values = labels.split()
    if len(values) != len(rows):
        raise Refused(f"{len(rows)} questions have {len(values)} labels")
    return [{**row, "label": value} for row, value in zip(rows, values)]


def converted(name, texts):
    """The lines of the task file."""
    header, question, _ = TASKS[name]
    yield json.dumps({"task": name, **header})
    rows = rows_of(texts[0], texts[1] if len(texts) > 1 else None)
    for number, row in enumerate(rows, 1):
        try:
            yield json.dumps(question(row), ensure_ascii=False)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise Refused(f"question {number} is none of {name}: {type(error).__name__} {error}") from error


def write(path, lines):
    """All of the file or nothing."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        try:
            file.writelines(line + "\n" for line in lines)
        except BaseException:
            os.unlink(file.name)
            raise
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--input", action="append", help="the published file; of piqa twice: questions, labels")
    parser.add_argument("--output", default="data/tasks", help="folder that gets TASK.jsonl (default %(default)s)")
    args = parser.parse_args()
    path = pathlib.Path(args.output) / f"{args.task}.jsonl"
    try:
        texts = texts_of(args.task, args.input)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, converted(args.task, texts))
    except (Refused, OSError, UnicodeDecodeError) as error:
        sys.exit(f"jobs/data/tasks.py: {error}")
    print(path)


if __name__ == "__main__":
    main()
