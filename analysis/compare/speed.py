# SPDX-License-Identifier: Apache-2.0
"""Training speed of one row of the table of speeds: hyperslab and its peer on the same devices, one after the other.

python3 -m analysis.compare.speed ROW [--binary build/bin/hyperslab] [--launcher "mpirun -np {ranks}"] [--steps 20]
python3 -m analysis.compare.speed --list
python3 -m analysis.compare.speed --check [--output analysis/results/speed.jsonl]

A line {"row", "ratio", "ours", "peer", "hardware", "versions", "commit", "date", ...} is added to --output; rates are in
tokens per second of the median step. The peer is PyTorch (torch.compile, scaled dot product attention, fused AdamW), or
hyperslab itself in bf16. --check ends with 1 if the newest ratio of a row on some hardware is more than 4 % below the best
before of the same peer. Rows in CUDA graphs wait for the host, and hosts differ: of these it ends with 0 if our own rate is
within 4 % of the best before with a peer of the same versions.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from analysis.compare.rates import bench
from analysis.errors import UserError, one_line
from analysis.json_files import misfit, parse_json

MOST_LOSS = 0.04  # of the best ratio on record
# Variables by which OpenBLAS (ours), MKL, oneDNN and PyTorch take kernels for another processor than the one here.
KERNEL_VARIABLES = ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
LAYERS = ("model.layers=8", "model.vocabulary=32000")
EIGHT_LAYERS = (*LAYERS, "train.global_batch=2", "train.microbatch=2")
FP8 = (*EIGHT_LAYERS, "precision.gemm=fp8_tensor")
# As autocast rounds the gradients of products; PyTorch then keeps and sums them in fp32. Our own bf16 beside has it too.
BF16_GRADIENTS = "precision.gradients=bf16"
FP8_ONE_SAMPLE = (*LAYERS, "train.global_batch=1", "train.microbatch=1", "precision.gemm=fp8_tensor", BF16_GRADIENTS)
PARAM_GATHER = ("parallel.zero=1", "precision.fp8_param_gather=true")  # weights are rounded beside the next forward pass


@dataclass(frozen=True)
class Row:
    """Work that both do."""

    deck: str
    settings: tuple[str, ...] = ()
    ranks: int = 1
    mode: str = "default"  # of torch.compile
    peer: tuple[str, ...] = ()  # words for torch_speed; BF16: no PyTorch
    device: str = "cuda"
    steps: int = 20


BF16 = ("own bf16",)  # the peer is hyperslab with precision.gemm: compute
PEERS = {BF16: "hyperslab in bf16", ("--shards",): "PyTorch FSDP2, parameters kept",
         ("--fp8",): "PyTorch, blocks compiled one by one"}  # others: PyTorch


def batch(samples: int, microbatch: int = 0) -> tuple[str, ...]:
    return f"train.global_batch={samples}", f"train.microbatch={microbatch or samples}"


ROWS = {
    "gpt2-124m-b64": Row("gpt2-124m", batch(64)),
    "gpt2-350m-b32": Row("gpt2-350m", batch(32)),
    "gpt2-1558m-b16": Row("gpt2-1558m", batch(16), steps=9),
    "gpt2-1558m-b16-bf16-gradients": Row("gpt2-1558m", (*batch(16), BF16_GRADIENTS), steps=9),
    "gpt2-124m-b4": Row("gpt2-124m", batch(4), mode="reduce-overhead", steps=60),
    "small": Row("small", (*batch(4), "precision.compute=bf16"), mode="reduce-overhead", steps=100),
    "small-bf16-gradients": Row("small", (*batch(4), "precision.compute=bf16", BF16_GRADIENTS), mode="reduce-overhead", steps=100),
    "llama-1b-data2": Row("llama-1b", (*batch(8, 4), "parallel.data=2", "parallel.zero=1"), 2, peer=("--shards",)),
    "llama-1b-data2-bf16-gradients": Row("llama-1b", (*batch(8, 4), "parallel.data=2", "parallel.zero=1", BF16_GRADIENTS), 2,
                                         peer=("--shards",)),
    "llama-8b-data4": Row("llama-8b", (*batch(8, 2), "parallel.data=4", "parallel.zero=1"), 4, peer=("--shards",), steps=6),
    "gpt2-124m-65k-data2": Row("gpt2-124m", (*batch(64, 32), "parallel.data=2"), 2),
    "gpt2-124m-65k-data2-bf16-gradients": Row("gpt2-124m", (*batch(64, 32), "parallel.data=2", BF16_GRADIENTS), 2),
    "llama-8b-8-layers": Row("llama-8b", EIGHT_LAYERS, steps=9),
    "llama-8b-fp8": Row("llama-8b", FP8, peer=("--fp8",), steps=9),
    "llama-8b-fp8-bf16-gradients": Row("llama-8b", (*FP8, BF16_GRADIENTS), peer=("--fp8",), steps=9),
    "llama-8b-fp8-param-gather": Row("llama-8b", (*FP8, BF16_GRADIENTS, *PARAM_GATHER), peer=("--fp8",), steps=9),
    "llama-8b-fp8-vs-bf16-bf16-gradients": Row("llama-8b", (*FP8, BF16_GRADIENTS), peer=BF16, steps=9),
    "llama-8b-fp8-vs-bf16": Row("llama-8b", FP8, peer=BF16, steps=9),
    "llama-8b-fp8-row-vs-bf16": Row("llama-8b", (*EIGHT_LAYERS, "precision.gemm=fp8_row"), peer=BF16, steps=9),
    "llama-8b-fp8-block-vs-bf16": Row("llama-8b", (*EIGHT_LAYERS, "precision.gemm=fp8_block"), peer=BF16, steps=9),
    "llama-8b-fp8-b1": Row("llama-8b", FP8_ONE_SAMPLE, peer=("--fp8",)),
    "llama-8b-fp8-b1-param-gather": Row("llama-8b", (*FP8_ONE_SAMPLE, *PARAM_GATHER), peer=("--fp8",)),
    "llama-8b-fp8-b1-vs-bf16": Row("llama-8b", FP8_ONE_SAMPLE, peer=BF16),
    "tiny-17m-cpu": Row("tiny-17m", batch(8), mode="off", device="cpu", steps=9),
    "tiny-17m-cpu-bf16": Row("tiny-17m", (*batch(8), "precision.compute=bf16"), mode="off", device="cpu", steps=9),
}


def settings_of(row: Row) -> list[str]:
    return [*row.settings, f"run.device={row.device}", "data.train=[synthetic]", "data.validation=[]",
            "data.vocabulary=null", "train.validate_every=0", "data.dtype=uint32"]


def command_of(arguments: argparse.Namespace, row: Row) -> str:
    """hyperslab under the launcher if there are several ranks."""
    launcher = arguments.launcher.replace("{ranks}", str(row.ranks)) if row.ranks > 1 else ""
    return f"{launcher} {arguments.binary}".strip()


def ours_of(arguments: argparse.Namespace, row: Row, more: tuple[str, ...] = ()) -> dict[str, Any]:
    asked = argparse.Namespace(binary=command_of(arguments, row), deck=arguments.decks / f"{row.deck}.yaml",
                               set=[*settings_of(row), *more])
    return bench(asked, "--warmup", "5", "--steps", str(arguments.steps or row.steps))


def torch_of(arguments: argparse.Namespace, row: Row) -> dict[str, Any]:
    """What torch_speed finds for the resolved deck, in processes of its own."""
    words = [*shlex.split(arguments.binary), "train", str(arguments.decks / f"{row.deck}.yaml"), "--print-deck"]
    for setting in settings_of(row):
        words += ["--set", setting]
    deck = output_of(words)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deck.yaml"
        path.write_text(deck, encoding="utf-8")
        start = [sys.executable, "-m"]
        if row.ranks > 1:
            start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(row.ranks), "-m"]
        lines = output_of([*start, "analysis.compare.torch_speed", str(path), "--mode", row.mode, "--device", row.device,
                           "--steps", str(arguments.steps or row.steps), *row.peer]).strip().splitlines()
    return dict(json.loads(lines[-1]))


def output_of(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "No module named 'torch'" in done.stderr:
        raise UserError(f"{words[0]} has no PyTorch, beside which this row is measured; take a python3 that has it")
    if done.returncode != 0:
        raise UserError(f"`{' '.join(words)}` ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def processor(info: str) -> str:
    """Model and widest vectors of a /proc/cpuinfo; a virtual machine's model alone says little."""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in info.splitlines())}
    flags = fields.get("flags", "").split()
    vectors = [name for flag, name in (("avx512_bf16", "AVX512_BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    return ", ".join([fields.get("model name", platform.machine()), *vectors[:1]])


def hardware(row: Row, device: str) -> str:
    if row.device != "cpu":
        return f"{row.ranks} x {device}"
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    # With other kernels it is as another processor: half as fast, say.
    forced = [f"{name}={os.environ[name]}" for name in KERNEL_VARIABLES if os.environ.get(name)]
    return ", ".join([f"{os.cpu_count()} cores", processor(text), *forced])


def measured(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """The line of a row."""
    row = ROWS[name]
    found = ours_of(arguments, row)
    ours = float(found["tokens_per_second"])
    versions = {"python": platform.python_version()}
    beside_itself = row.peer == BF16
    other = ours_of(arguments, row, ("precision.gemm=compute",)) if beside_itself else torch_of(arguments, row)
    peer = float(other["tokens_per_second"])
    if not beside_itself:
        versions["torch"] = other["torch"]
    return {"row": name, "ratio": round(ours / peer, 4), "ours": round(ours, 1), "peer": round(peer, 1),
            "peer_is": PEERS.get(row.peer, "PyTorch"), "unit": "tokens/s",
            "hardware": hardware(row, found["device"]), "versions": versions, "commit": found["commit"],
            "memory_peak_bytes": found["memory_peak_bytes"], "peer_memory_peak_bytes": other["memory_peak_bytes"],
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d")}


LINE = {"row": str, "hardware": str, "ratio": float, "peer_is?": str, "ours?": float, "versions?": {str: str}}


@dataclass(frozen=True)
class Line:
    """A recorded ratio; `ours` is 0 where a line does not say it."""

    row: str
    hardware: str
    peer_is: str
    ratio: float
    ours: float
    versions: dict[str, str]


def read_lines(path: Path) -> list[Line]:
    if not path.exists():
        raise UserError(f"{path}: no such file; measure a row first")
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            line = parse_json(text)
            problem = misfit(line, LINE)
        except ValueError as error:
            problem = str(error)
        if problem:
            raise UserError(f"{path}:{number}: expected an object with row, ratio and hardware ({problem})")
        lines.append(Line(line["row"], line["hardware"], line.get("peer_is", "PyTorch"), float(line["ratio"]),
                          float(line.get("ours", 0)), line.get("versions", {})))
    return lines


def only_the_peer_changed(newest: Line, before: list[Line]) -> bool:
    """Whether a row that waits for the host is as fast as ever, beside a peer of the same versions."""
    row = ROWS.get(newest.row)
    ours = [line.ours for line in before if line.versions == newest.versions]
    return row is not None and row.mode == "reduce-overhead" and bool(ours) and newest.ours >= (1 - MOST_LOSS) * max(ours) > 0


def falls(lines: list[Line]) -> tuple[list[str], list[str]]:
    """A sentence for every row whose newest ratio is too far below the best before: those that are losses, and the others."""
    records: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        records[line.row, line.hardware, line.peer_is].append(line)
    losses, others = [], []
    for (row, hardware, _), (*before, newest) in records.items():
        best = max((line.ratio for line in before), default=newest.ratio)
        if newest.ratio >= (1 - MOST_LOSS) * best:
            continue
        sentence = f"{row} on {hardware}: {newest.ratio:.3f} after {best:.3f}, {1 - newest.ratio / best:.1%} less"
        if only_the_peer_changed(newest, before):
            others.append(f"{sentence}, as the peer ran faster; ours did not lose")
        else:
            losses.append(sentence)
    return losses, others


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        for name, row in ROWS.items():
            print(f"{name:36} {row.ranks} {row.device}  {row.deck}.yaml {' '.join(row.settings)}")
        return 0
    if arguments.check:
        losses, others = falls(read_lines(arguments.output))
        for sentence in losses + others:
            print(one_line(sentence))
        return 1 if losses else 0
    if arguments.row not in ROWS:
        raise UserError(f"no row {arguments.row}; --list prints them")
    line = json.dumps(measured(arguments, arguments.row))
    with arguments.output.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(line)
    return 0


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m analysis.compare.speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", metavar="ROW", help="measured and added to --output")
    parser.add_argument("--list", action="store_true", help="prints the rows")
    parser.add_argument("--check", action="store_true", help="prints the rows of --output whose ratio fell by more than 4 %%, and whether ours lost; exit code 1 if it did")
    parser.add_argument("--binary", default="build/bin/hyperslab", metavar="COMMAND", help="default: %(default)s")
    parser.add_argument("--launcher", default="mpirun -np {ranks}", metavar="COMMAND", help="for several ranks")
    parser.add_argument("--decks", type=Path, default=Path("inputs"), metavar="FOLDER", help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("analysis/results/speed.jsonl"), metavar="FILE",
                        help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=0, help="measured steps (default: the row's)")
    arguments = parser.parse_args(words)
    try:
        if not (arguments.row or arguments.list or arguments.check):
            raise UserError("name a row; --list prints them")
        return run(arguments)
    except (UserError, OSError) as error:
        print(f"compare.speed: {one_line(str(error))}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
