# SPDX-License-Identifier: Apache-2.0
"""Rates of hyperslab and of a peer on one machine: measuring ours, repeating, one line of JSON."""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

from analysis.errors import UserError, one_line, visible
from analysis.json_files import read_json


def bench(arguments: argparse.Namespace, *options: str) -> dict[str, Any]:
    """What `hyperslab bench` wrote of the deck."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        words = [*arguments.binary.split(), "bench", str(arguments.deck), *options, "--json", str(path),
                 *(word for setting in arguments.set for word in ("--set", setting))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UserError(f"`{' '.join(words)}` ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return dict(read_json(path, dict, "was it written by this version?"))


def line_of(ours: float, theirs: float, peer: str, more: dict[str, Any]) -> str:
    """Images per second of both, and how many times as fast ours is."""
    return json.dumps({"peer": peer, "hyperslab_images_per_second": round(ours, 1),
                       "peer_images_per_second": round(theirs, 1), "ratio": round(ours / theirs, 4), **more})


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python3 -m analysis.compare.{name}", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck", type=Path, metavar="DECK")
    parser.add_argument("--binary", default="build/bin/hyperslab", metavar="COMMAND")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a key of the deck")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser


def run(name: str, compare: Callable[[argparse.Namespace], str], arguments: argparse.Namespace) -> int:
    try:
        print(visible(compare(arguments)))
    except (UserError, OSError) as error:
        print(f"compare.{name}: {one_line(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"compare.{name}: Python module {error.name} is missing", file=sys.stderr)
        return 2
    return 0
