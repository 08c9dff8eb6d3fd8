# SPDX-License-Identifier: Apache-2.0
"""The command line: python3 -m analysis COMMAND."""
from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from analysis.errors import UserError, nearest, one_line, visible
from analysis.first_steps import SKIP_HELP, SKIPPED_STEPS
from analysis.interpreter import missing_text, start_with_system_python, system_python_has_modules

REPORT_OF_ONE = "default RUN/report, of one run"


class Parser(argparse.ArgumentParser):
    """What is wrong is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"analysis: {one_line(message)}; see {self.prog} --help\n")


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def at_least_one(text: str) -> int:
    value = count(text)
    if value == 0:
        raise ValueError(text)
    return value


def above_zero(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise ValueError(text)
    return value


def size_mm(text: str) -> tuple[float, float]:
    """WIDTHxHEIGHT; a figure below 20 mm has no room for axes."""
    width, height = map(float, text.split("x"))
    if not (20.0 <= width <= 2000.0 and 20.0 <= height <= 2000.0):
        raise ValueError(text)
    return width, height


def width_mm(text: str) -> float:
    return size_mm(f"{text}x100")[0]


def figure_options() -> argparse.ArgumentParser:
    """Of all commands that draw; analysis.style.LOOK is what they set."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--no-title", action="store_true", help="figures without title and subtitle")
    options.add_argument("--size", type=size_mm, metavar="WIDTHxHEIGHT",
                         help="of every figure, mm, such as 85x60 for a column of a journal")
    options.add_argument("--width", type=width_mm, metavar="MM", help="of every figure, which keeps its shape; 85 and 170 are usual columns")
    options.add_argument("--font", default="", metavar="NAME", help="of every figure, such as 'DejaVu Serif'")
    options.add_argument("--font-size", type=above_zero, metavar="PT", help="of figures (default 10, with --width 7)")
    return options


def share(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise ValueError(text)
    return value


def add_report(commands: Any, figures: argparse.ArgumentParser) -> None:
    report = commands.add_parser("report", parents=[figures], help="one page on studies, or on how runs scale with ranks")
    report.add_argument("runs", nargs="+", metavar="STUDY|RUN",
                        help="folders of studies, a part each, and run directories, one part; or names in runs/")
    report.add_argument("--output", type=Path, metavar="DIR", help="default STUDY/report of one study, RUN/report of one run")
    report.add_argument("--base", type=at_least_one, metavar="N",
                        help="ranks that speed-ups refer to (default: the fewest)")
    report.add_argument("--skip", type=count, metavar="N",
                        help=f"{SKIP_HELP[:-1]}, or as the study says)")
    report.add_argument("--template", choices=("assignment",), default="",
                        help="a report to hand in: at most four pages over all studies, in the order of an assignment")
    report.add_argument("--appendix", action="store_true", help="of a template: all tables and figures after its pages")


def add_study(commands: Any, figures: argparse.ArgumentParser) -> None:
    study = commands.add_parser("study", parents=[figures], help="the tables and plots that a study's file describes")
    study.add_argument("study", metavar="STUDY", help="a study's folder, or its name in runs/")
    study.add_argument("--output", type=Path, metavar="DIR", help="default STUDY/report")


def add_accumulation(commands: Any) -> None:
    sums = commands.add_parser("accumulation", help="a sum of equal terms, rounded to a type at every addition")
    sums.add_argument("--value", type=float, default=0.01, help="a term (default 0.01)")
    sums.add_argument("--terms", type=at_least_one, default=1000, help="how many (default 1000)")
    for name in ("sum", "term"):
        sums.add_argument(f"--{name}", choices=("fp64", "fp32", "fp16", "bf16"), default="fp32",
                          help=f"type of the {name} (default fp32)")
    sums.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")


def add_check(commands: Any) -> None:
    check = commands.add_parser("check", help="exit code 1 if a share is above a limit")
    kinds = check.add_subparsers(dest="what", required=True, metavar="WHAT")
    overlap = kinds.add_parser("overlap", help="exposed share of the gradient reductions")
    idle = kinds.add_parser("idle", help="share of the step in which pipeline stages are idle")
    overlap.add_argument("--limit", type=share, default=0.2, help="0 to 1 (default 0.2)")
    idle.add_argument("--limit", type=share, required=True, help="0 to 1")
    for kind in (overlap, idle):
        kind.add_argument("run", metavar="RUN", help="a run directory, or a name in runs/")
        kind.add_argument("--skip", type=count, default=SKIPPED_STEPS, metavar="N", help=SKIP_HELP)


def add_traces(commands: Any, figures: argparse.ArgumentParser) -> None:
    trace = commands.add_parser("trace", parents=[figures], help="a traced step on all ranks, drawn in time")
    trace.add_argument("run", metavar="RUN", help="a run directory, or a name in runs/")
    trace.add_argument("--output", type=Path, metavar="DIR", help="default RUN/report")
    trace.add_argument("--step", type=at_least_one, metavar="N",
                       help="which traced step (default: the last)")
    arrivals = commands.add_parser("arrivals", help="which rank the others of its groups wait for")
    arrivals.add_argument("runs", nargs="+", metavar="RUN",
                          help="a run directory, or a name in runs/")
    arrivals.add_argument("--skip", type=count, default=SKIPPED_STEPS, metavar="N", help=SKIP_HELP)
    memory = commands.add_parser("memory", parents=[figures], help="memory in use through a step, by category")
    memory.add_argument("files", nargs="+", metavar="FILE",
                        help="from bench --memory-timeline, or a run with traced steps")
    memory.add_argument("--output", type=Path, required=True, metavar="DIR")


def add_quantization(commands: Any, figures: argparse.ArgumentParser) -> None:
    quantized = commands.add_parser("quantization", parents=[figures],
                                    help="quantization and adapters beside the model as it is")
    quantized.add_argument("runs", nargs="+", metavar="FILE|RUN",
                           help="from eval --json or bench --mode decode --json, or run directories")
    quantized.add_argument("--base", default="", metavar="NAME",
                           help="what others are compared with (default: the one without quantization and adapters)")
    quantized.add_argument("--output", type=Path, required=True, metavar="DIR")


def add_images(commands: Any) -> None:
    sheet = commands.add_parser("images", help="a sheet of images as a model sees them, or of its predictions")
    sheet.add_argument("--samples", type=Path, required=True, metavar="FILE.npy|FOLDER",
                       help="images, from bench --mode data --samples or pack-images")
    sheet.add_argument("--predictions", type=Path, metavar="FILE.csv",
                       help="from eval --predictions: right and wrong ones are marked")
    sheet.add_argument("--classes", type=Path, metavar="set.json", help="names of classes (default: those of FOLDER)")
    sheet.add_argument("--images", type=at_least_one, default=32, metavar="N", help="how many at most (default 32)")
    sheet.add_argument("--output", type=Path, required=True, metavar="SHEET.png")


def add_published(commands: Any) -> None:
    published = commands.add_parser("published", help="published measurements beside what hyperslab plan predicts")
    published.add_argument("--machine", type=Path, default=Path("inputs/machines/h200.json"), metavar="FILE",
                           help="machine file (default inputs/machines/h200.json)")
    published.add_argument("--binary", type=Path, default=Path("build/bin/hyperslab"), metavar="PATH",
                           help="hyperslab (default build/bin/hyperslab)")
    published.add_argument("--network", type=above_zero, default=45.0, metavar="GB/s",
                           help="of each GPU to other nodes (default 45, of 400 Gb/s)")
    published.add_argument("--rows", type=Path, nargs="+", default=[], metavar="TABLE.csv",
                           help="rows in other tables (default tests/data/published.csv, recorded_layouts.csv)")
    published.add_argument("--output", type=Path, metavar="DIR", help="also write published.csv, .md and the plot there")


def add_recorded_steps(commands: Any) -> None:
    recorded = commands.add_parser("predictions", help="recorded steps beside what hyperslab plan predicts")
    recorded.add_argument("--machine", type=Path, default=Path("inputs/machines/h200.json"), metavar="FILE",
                          help="machine file (default inputs/machines/h200.json)")
    recorded.add_argument("--binary", type=Path, default=Path("build/bin/hyperslab"), metavar="PATH",
                          help="hyperslab (default build/bin/hyperslab)")
    recorded.add_argument("--rows", type=Path, default=Path("tests/data/recorded_steps.csv"), metavar="TABLE.csv",
                          help="runs in another table (default tests/data/recorded_steps.csv)")


def add_by_layer(commands: Any, figures: argparse.ArgumentParser) -> None:
    for name, about in (("norms", "norms of activations, weights, gradients by layer"),
                        ("experts", "loads of experts by layer, over steps")):
        command = commands.add_parser(name, parents=[figures], help=about)
        command.add_argument("run", metavar="RUN", help="a run directory, or a name in runs/")
        command.add_argument("--output", type=Path, metavar="DIR", help="default RUN/report")


def add_isoflop(commands: Any, figures: argparse.ArgumentParser) -> None:
    fit = commands.add_parser("isoflop", parents=[figures], help="scaling laws from runs at equal compute: best size, tokens, loss")
    fit.add_argument("runs", nargs="+", metavar="STUDY|RUN|FILE.json",
                     help="a study's folder or run directories, or a list of objects with parameters, compute_budget, final_loss")
    fit.add_argument("--without", nargs="+", default=[], metavar="RUN", help="names of runs to leave out")
    fit.add_argument("--budget", type=above_zero, nargs="+", default=[], metavar="FLOPS", help="say the best size and tokens there")
    fit.add_argument("--target-loss", type=above_zero, nargs="+", default=[], metavar="NATS",
                     help="say the compute, size and tokens that reach it")
    fit.add_argument("--flops-per-second", type=above_zero, metavar="X", help="of one device, for hours of these answers")
    fit.add_argument("--plan", type=Path, metavar="FILE.json", help="the same from hyperslab plan DECK --machine FILE --json FILE")
    fit.add_argument("--draws", type=count, default=1000, metavar="N", help="of the intervals (default 1000; 0: none)")
    fit.add_argument("--output", type=Path, metavar="DIR", help="default STUDY/report, of one study")


def make_parser() -> argparse.ArgumentParser:
    # The installed script hands down its own name.
    parser = Parser(prog=os.environ.get("HYPERSLAB_ANALYSIS") or "python3 -m analysis",
                    description="Tables and plots from runs of hyperslab.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    figures = figure_options()
    many = argparse.ArgumentParser(add_help=False, parents=[figures])
    many.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a name in runs/")
    many.add_argument("--output", type=Path, metavar="DIR", help=REPORT_OF_ONE)
    commands.add_parser("learning", parents=[many],
                        help="loss, perplexity, accuracy against steps and time")
    commands.add_parser("sweep", parents=[many], help="final loss against the learning rate")
    time = commands.add_parser("time", parents=[many], help="where the time of a step went")
    time.add_argument("--skip", type=count, default=SKIPPED_STEPS, metavar="N", help=SKIP_HELP)
    add_report(commands, figures)
    add_study(commands, figures)
    add_check(commands)
    add_traces(commands, figures)
    add_by_layer(commands, figures)
    add_isoflop(commands, figures)
    peers = commands.add_parser("peers", help="speed as a multiple of another program's")
    peers.add_argument("table", type=Path, metavar="TABLE.csv",
                       help="measurements, as analysis/results/peers.csv")
    peers.add_argument("--output", type=Path, required=True, metavar="DIR")
    add_quantization(commands, figures)
    add_images(commands)
    add_published(commands)
    add_recorded_steps(commands)
    add_accumulation(commands)
    summary = commands.add_parser("summary", help="a few lines on one run")
    summary.add_argument("run", metavar="RUN", help="a run directory, or a name in runs/")
    entropy = commands.add_parser("entropy", help="unigram entropy of a text or of tokens, nats")
    entropy.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a text: per byte")
    entropy.add_argument("--tokens", type=Path, metavar="FILE", help="tokens: per token")
    entropy.add_argument("--dtype", choices=("uint8", "uint16", "uint32", "int32"),
                         help="of tokens without a header (default uint16)")
    return parser


def check_command(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Names the nearest command if there is none of this name."""
    commands = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if not words or words[0].startswith("-") or words[0] in commands:
        return
    parser.error(f"there is no command {words[0]!r}{nearest(words[0], commands)}; the commands are {', '.join(commands)}")


def output_of(arguments: argparse.Namespace) -> Path:
    """Where a command writes: of one run its folder `report` unless --output names another."""
    from analysis.runs import report_folder
    names = [arguments.run] if "run" in arguments else arguments.runs
    return arguments.output if arguments.output is not None else report_folder(names)


def execute(arguments: argparse.Namespace) -> tuple[str, int]:
    """Runs one command; each imports only what it needs. Returns what to print, and exit code."""
    if hasattr(arguments, "no_title"):
        from analysis.style import Look, set_look
        widths = (arguments.width, arguments.width) if arguments.width else None
        set_look(Look(not arguments.no_title, arguments.size, widths, font_size=arguments.font_size or (7.0 if widths else 10.0)),
                 arguments.font)
    if arguments.command == "check":
        from analysis.checks import check
        return check(arguments.what, arguments.run, arguments.limit, arguments.skip)
    return describe_isoflop(arguments) if arguments.command == "isoflop" else describe(arguments), 0


def describe_trace(arguments: argparse.Namespace) -> str:
    if arguments.command == "trace":
        from analysis.trace_plot import trace_steps
        return "\n".join(trace_steps(arguments.run, output_of(arguments), arguments.step))
    if arguments.command == "arrivals":
        from analysis.arrivals import arrivals
        return arrivals(arguments.runs, arguments.skip)
    from analysis.memory import memory
    return "\n".join(memory(arguments.files, arguments.output))


def describe_by_layer(arguments: argparse.Namespace) -> str:
    if arguments.command == "norms":
        from analysis.norms import norms
        return norms(arguments.run, output_of(arguments))
    from analysis.experts import experts
    return experts(arguments.run, output_of(arguments))


def describe_isoflop(arguments: argparse.Namespace) -> str:
    from analysis.isoflop.command import Asked, default_output, isoflop
    asked = Asked(arguments.budget, arguments.target_loss, arguments.plan, arguments.flops_per_second, arguments.without,
                  arguments.draws)
    return isoflop(arguments.runs, arguments.output or default_output(arguments.runs), asked)


def describe(arguments: argparse.Namespace) -> str:
    if arguments.command in ("trace", "arrivals", "memory"):
        return describe_trace(arguments)
    if arguments.command == "report":
        from analysis.report.command import Options, report
        return report(arguments.runs, arguments.output, Options(arguments.base, arguments.skip, arguments.template, arguments.appendix))
    if arguments.command == "study":
        from analysis.study.command import study
        return study(arguments.study, arguments.output)
    if arguments.command == "accumulation":
        from analysis.accumulation import accumulation
        return accumulation(arguments.value, arguments.terms, arguments.sum, arguments.term, arguments.json)
    if arguments.command == "entropy":
        from analysis.entropy import entropy
        return entropy(arguments.file, arguments.tokens, arguments.dtype)
    if arguments.command == "quantization":
        from analysis.quantization import quantization
        return "\n".join(quantization(arguments.runs, arguments.output, arguments.base))
    if arguments.command in ("norms", "experts"):
        return describe_by_layer(arguments)
    if arguments.command == "peers":
        from analysis.peers import compare_with_peers
        return compare_with_peers(arguments.table, arguments.output)
    if arguments.command == "images":
        from analysis.images import images
        return images(arguments.samples, arguments.predictions, arguments.classes, arguments.output, arguments.images)
    if arguments.command == "published":
        from analysis.published import published
        return published(arguments.machine, arguments.binary, arguments.output, arguments.network, arguments.rows)
    if arguments.command == "predictions":
        from analysis.recorded_steps import recorded_steps
        return recorded_steps(arguments.machine, arguments.binary, arguments.rows)
    if arguments.command == "summary":
        from analysis.learning import summary
        return summary(arguments.run)
    if arguments.command == "sweep":
        from analysis.sweep import sweep
        return sweep(arguments.runs, output_of(arguments))
    if arguments.command == "learning":
        from analysis.learning import learning
        return "\n".join(learning(arguments.runs, output_of(arguments)))
    from analysis.step_time import time_per_rank
    return "\n".join(time_per_rank(arguments.runs, output_of(arguments), arguments.skip))


def fail(message: str) -> int:
    print(f"analysis: {one_line(message)}", file=sys.stderr)
    return 2


def main(words: list[str] | None = None) -> int:
    parser = make_parser()
    check_command(parser, sys.argv[1:] if words is None else words)
    arguments = parser.parse_args(words)
    try:
        text, code = execute(arguments)
        print(visible(text))
    except UserError as error:
        return fail(str(error))
    except ModuleNotFoundError as error:
        if words is None and system_python_has_modules():
            start_with_system_python(["-m", "analysis", *sys.argv[1:]])
        return fail(missing_text(error.name))
    except BrokenPipeError:  # as of `| head`: who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return code


if __name__ == "__main__":
    sys.exit(main())
