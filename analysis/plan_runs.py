# SPDX-License-Identifier: Apache-2.0
"""Asks `hyperslab plan` how long a step of a published row takes on a machine."""
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from analysis.errors import UserError
from analysis.json_files import parse_json, read_json
from analysis.published_rows import ZERO, Row
from analysis.tables import counted

DECK = """\
run: {{name: published}}
model: {{family: {family}, layers: {layers}, width: {width}, heads: {heads}, kv_heads: {kv_heads},
        ffn_width: {ffn_width}, vocabulary: {vocabulary}, context: {context}, tie_embeddings: {tied}}}
data: {{train: [synthetic]}}
parallel: {{data: {data}, tensor: {tensor}, pipeline: {pipeline}, schedule: {schedule},
           virtual_stages: {virtual_stages}, sequence: {sequence}, zero: {zero}}}
precision: {{compute: {precision}}}
memory: {{recompute: {recompute}}}
optimizer: {{lr: 1.0e-4, clip_norm: 1.0}}
schedule: {{name: constant}}
train: {{steps: 10, global_batch: {global_batch}, microbatch: {microbatch}}}
"""


class Gpu(NamedTuple):
    """What NVIDIA's data sheets state: dense bf16, memory, and NVLink in both directions, a second."""

    tflops: float
    terabytes: float
    link_gigabytes: float


GPUS = {"H200": Gpu(989, 4.8, 900), "H100": Gpu(989, 3.35, 900), "A100": Gpu(312, 2.039, 600)}


@dataclass(frozen=True)
class Machine:
    """A machine file, and what of it changes for several nodes."""

    path: Path
    content: dict[str, Any]
    network_bytes_per_second: float  # of each GPU


@dataclass(frozen=True)
class Prediction:
    """What `plan` said of a row, before any factor."""

    row: Row
    step_seconds: float
    memory_bytes: float


def read_machine(path: Path, network: float) -> Machine:
    """`network` in GB/s, of each GPU to other nodes."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the machine file {path}: {error.strerror}; name one with --machine, or write it "
                        "with hyperslab bench DECK --machine FILE") from error
    except ValueError as error:
        raise UserError(f"{path} is no machine file: {error}; write one with hyperslab bench DECK --machine FILE") from error
    if not isinstance(content, dict) or content.get("format") != "hyperslab machine":
        raise UserError(f"{path} is no machine file: its format is not \"hyperslab machine\"; write one with hyperslab "
                        "bench DECK --machine FILE")
    return Machine(path, content, 1e9 * network)


def require_binary(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(f"there is no program {path}; build it with jobs/build.sh, or name it with --binary")
    return path.resolve()


def deck_text(row: Row) -> str:
    """The row as a deck of hyperslab."""
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in vars(row).items()}
    return DECK.format(**values, zero=ZERO[row.sharding] if row.data > 1 else 0)


def as_gpu(content: dict[str, Any], gpu: str) -> dict[str, Any]:
    """A machine file as it would be of another GPU: ops that memory bounds take longer by the ratio of bandwidths, others by
    that of peaks, collectives by that of links."""
    measured = next((each for name, each in GPUS.items() if name in content.get("name", "")), None)
    wanted = GPUS.get(gpu)
    if measured is None or wanted is None or measured == wanted:
        return content
    slower = Gpu(*(a / b for a, b in zip(measured, wanted)))
    ops = {}
    for precision, rows in content["ops"].items():
        peak = content["peak_flops"][precision]
        ops[precision] = [[*row[:4], row[4] * (slower.tflops if row[2] / peak > row[3] / (1e12 * measured.terabytes) else
                                               slower.terabytes), *row[5:]] for row in rows]
    rates = {key: {name: value / slower.tflops for name, value in content[key].items()}
             for key in ("peak_flops", "sustained_flops") if key in content}
    return {**content, **rates, "ops": ops,
            "collectives": [[*row[:4], row[4] * slower.link_gigabytes] for row in content["collectives"]]}


def machine_text(machine: Machine, gpu: str, gpus_per_node: int) -> str:
    """The machine file for nodes of so many GPUs of a kind."""
    try:
        content = as_gpu(machine.content, gpu)
    except (AttributeError, IndexError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"{machine.path} is no machine file: what it says of an op or a collective is damaged; write one with "
                        "hyperslab bench DECK --machine FILE") from error
    return json.dumps({**content, "ranks_per_node": gpus_per_node,
                       "network_bytes_per_second": machine.network_bytes_per_second})


def last_words(text: str) -> str:
    """What the program says at its end, as one line."""
    lines = [line for line in text.splitlines() if line.strip()]
    said = [line.removeprefix("hyperslab: ") for line in lines if line.startswith("hyperslab: ")]
    return " ".join((said or lines or ["nothing"])[-1].split())


def predict(binary: Path, machine: Machine, row: Row) -> Prediction:
    """One row, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="hyperslab_published_") as name:
        folder = Path(name)
        (folder / "deck.yaml").write_text(deck_text(row), encoding="utf-8")
        (folder / "machine.json").write_text(machine_text(machine, row.gpu, row.gpus_per_node), encoding="utf-8")
        command = [str(binary), "plan", "deck.yaml", "--device", "cuda", "--ranks", str(row.gpus),
                   "--machine", "machine.json", "--json", "plan.json"]
        ended = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               errors="replace", check=False)
        if ended.returncode != 0:
            raise UserError(f"row {row.number} ({row.source}, {row.model} on {counted(row.gpus, 'GPU')}): hyperslab plan ended with "
                            f"code {ended.returncode} and said: {last_words(ended.stderr)}")
        try:
            reported = read_json(folder / "plan.json", {"step_seconds": float, "memory_bytes": float}, "")
        except UserError as error:
            raise UserError(f"row {row.number}: {binary} predicts no step_seconds; it must be a hyperslab whose plan has "
                            "--machine and --json") from error
        return Prediction(row, float(reported["step_seconds"]), float(reported["memory_bytes"]))


def predict_all(binary: Path, machine: Machine, rows: Sequence[Row]) -> list[Prediction]:
    """In the order of the rows; as many at a time as there are cores. After an error no further row begins."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            return list(pool.map(lambda row: predict(binary, machine, row), rows))
        except UserError:
            pool.shutdown(cancel_futures=True)
            raise
