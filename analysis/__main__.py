# SPDX-License-Identifier: Apache-2.0
"""The command line: python3 -m analysis COMMAND."""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.errors import UserError


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m analysis",
                                     description="Tables and plots from runs of hyperslab.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    many = argparse.ArgumentParser(add_help=False)
    many.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a name in runs/")
    many.add_argument("--output", type=Path, required=True, metavar="DIR")
    commands.add_parser("learning", parents=[many],
                        help="loss, perplexity, accuracy against steps and time")
    time = commands.add_parser("time", parents=[many], help="where the time of a step went")
    time.add_argument("--skip", type=count, default=2, metavar="N",
                      help="steps left out at each start (default 2)")
    summary = commands.add_parser("summary", help="a few lines on one run")
    summary.add_argument("run", metavar="RUN", help="a run directory, or a name in runs/")
    entropy = commands.add_parser("entropy", help="unigram entropy of a text or of tokens, nats")
    entropy.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a text: per byte")
    entropy.add_argument("--tokens", type=Path, metavar="FILE.bin", help="raw tokens: per token")
    entropy.add_argument("--dtype", choices=("uint8", "uint16", "uint32", "int32"),
                         default="uint16", help="of the tokens (default uint16)")
    return parser


def execute(arguments: argparse.Namespace) -> str:
    """Runs one command; each imports only what it needs. Returns what to print."""
    if arguments.command == "entropy":
        from analysis.entropy import entropy
        return entropy(arguments.file, arguments.tokens, arguments.dtype)
    if arguments.command == "summary":
        from analysis.learning import summary
        return summary(arguments.run)
    if arguments.command == "learning":
        from analysis.learning import learning
        return "\n".join(map(str, learning(arguments.runs, arguments.output)))
    from analysis.step_time import time_per_rank
    return "\n".join(time_per_rank(arguments.runs, arguments.output, arguments.skip))


def fail(message: str) -> int:
    print(f"analysis: {message}", file=sys.stderr)
    return 2


def main(words: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(words)
    try:
        print(execute(arguments))
    except UserError as error:
        return fail(str(error))
    except ModuleNotFoundError as error:
        return fail(f"Python module {error.name} is missing; apt install python3-numpy "
                    "python3-h5py python3-matplotlib")
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
