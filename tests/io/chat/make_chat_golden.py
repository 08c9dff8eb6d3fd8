#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat_golden.json: conversations as the families' own templates write them, by Jinja2.

make_chat_golden.py TEMPLATES.json > chat_golden.json

TEMPLATES.json has for each name of a template here a list of [where it is from, the source of `chat_template`]. The sources
themselves are not kept here. Every source of a name must write every conversation alike.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "jobs" / "data"))

import drawn_chats
import render_chats

ROUNDS = 10


def golden(templates):
    """All entries; of a thinking family also those with reasoning."""
    entries = []
    for name, draw in drawn_chats.KINDS.items():
        rng = random.Random(f"chats of {name}")
        compiled = [render_chats.compiled(source) for _, source in templates[name]]
        for _ in range(ROUNDS):
            messages = draw(rng)
            values = {"messages": messages, "bos_token": "<bos>", "eos_token": "<eos>"}
            texts = {template.render(values, add_generation_prompt=False) for template in compiled}
            asking = {template.render(values, add_generation_prompt=True) for template in compiled}
            assert len(texts) == len(asking) == 1, (name, messages)
            entries.append({"template": name, "messages": messages, "text": texts.pop(), "prompt": asking.pop()})
    sources = {name: [f"{render_chats.fingerprint(source):016x}" for _, source in sources] for name, sources in templates.items()}
    return {"fingerprints": sources, "chats": entries}


if __name__ == "__main__":
    json.dump(golden(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))), sys.stdout, ensure_ascii=True, indent=0)
    print()
