# SPDX-License-Identifier: Apache-2.0
"""What a point measured, by the names of COLUMNS; what it did not measure is absent."""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np

from analysis.crowding import OUTPUT, crowd_of
from analysis.deck import read_deck
from analysis.divergence import has_diverged
from analysis.errors import UserError
from analysis.json_files import number_of, read_json
from analysis.runs import Metrics, Run, best_value, final_loss, last_value, mean_of_last, read_metrics
from analysis.scaling import COMPUTE, Case, read_cases
from analysis.study.bench_files import DECODE, EVALUATED, STORED, SUMMED, bench_modes, read_bench
from analysis.study.prediction import Prediction, printed_bytes, read_prediction
from analysis.study.record import AGAIN, BENCH, Record, point_folder
from analysis.study.settings import BENCH_MODES, MODE
from analysis.subject import parameter_count
from analysis.timings import BUSY, CONTEXT, EXPERT, RankSteps, read_layouts

Values = dict[str, float]


def ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan


def of_step(case: Case) -> Values:
    """Of a median step."""
    communication, compute = case.communication_seconds, case.seconds(COMPUTE)
    return {
        "step_seconds": case.step_seconds, "tokens_per_second": case.tokens_per_second,
        "tokens_per_second_per_rank": case.tokens_per_second / case.ranks, "mfu": case.mfu,
        "images_per_second": case.images_per_second,
        "memory_peak_bytes": case.peak_bytes, "compute_seconds": compute,
        "communication_seconds": communication, "exposed_seconds": case.exposed_seconds,
        "compute_by_communication": ratio(compute, communication),
        "context_seconds": case.parts["context"], "expert_seconds": case.parts["expert"],
        "optimizer_seconds": case.parts["optimizer"], "wait_seconds": case.parts["wait"],
        "idle_seconds": case.parts["idle"], "data_seconds": case.parts["data"],
        "checkpoint_seconds": case.checkpoint_mean_seconds,
    }


def total(ranks: list[RankSteps], name: str) -> float:
    """Over all steps, mean over ranks."""
    return float(np.mean([rank.columns[name].sum() for rank in ranks])) if name in ranks[0].columns else 0.0


def of_run(run: Run) -> Values:
    """Sums over all steps of the run, its first ones too: an epoch as a user waits for it."""
    ranks = read_layouts(run, 0)[0][-1].ranks
    busy = total(ranks, BUSY if BUSY in ranks[0].columns else "reduce_seconds")
    others = sum(total(ranks, name) for name in ("tensor_comm_seconds", CONTEXT, EXPERT, "pipeline_comm_seconds"))
    compute = total(ranks, "forward_seconds") + total(ranks, "backward_seconds")
    return {
        "run_seconds": float(np.max([rank.columns["step_seconds"] for rank in ranks], axis=0).sum()),
        "run_compute_seconds": compute, "run_communication_seconds": busy + others,
        "run_compute_by_communication": ratio(compute, busy + others),
        "run_exposed_seconds": total(ranks, "reduce_exposed_seconds") + others,
    }


def of_losses(metrics: Metrics) -> Values:
    """The validation's perplexity and accuracies, else the training's last."""
    validation = metrics.column("validation_loss")
    prefix = "" if np.isnan(validation).all() else "validation_"
    return {
        "training_loss": mean_of_last(metrics.column("loss")), "validation_loss": last_value(validation),
        "best_validation_loss": best_value(validation), "final_loss": final_loss(metrics),
        "perplexity": last_value(metrics.perplexity(prefix)),
        "token_accuracy": last_value(metrics.column(f"{prefix}token_accuracy")),
        "top1": last_value(metrics.column(f"{prefix}top1")), "top5": last_value(metrics.column(f"{prefix}top5")),
        "best_top1": -best_value(-metrics.column(f"{prefix}top1")),
        "load_max": mean_of_last(metrics.column("load_max")),
        "tokens": last_value(metrics.column("tokens")), "steps": float(metrics.steps[-1]),
        "wall_seconds": last_value(metrics.column("wall_seconds")),
    }


def train_values(folder: Path, skip: int) -> tuple[Values, list[str]]:
    """Values of a training run, and notes on what is missing."""
    run = Run(folder, folder.name)
    values: Values = {}
    notes: list[str] = []
    if (folder / "deck.yaml").is_file():
        values["parameters"] = float(parameter_count(read_deck(run)) or math.nan)
    try:
        metrics = read_metrics(run)
        values |= of_losses(metrics) | {"diverged": float(has_diverged(metrics))}
        cases, _ = read_cases(run, skip)
        values |= of_step(cases[-1]) | of_run(run)
    except UserError as error:
        notes.append(f"{folder.name}: {error}")
    return values, notes


def component_values(components: dict[str, Any]) -> Values:
    """Of `--components`: attention beside feed-forward."""
    if not {"attention", "ffn"} <= set(components):
        return {}
    attention, ffn = components["attention"], components["ffn"]
    values = {"attention_seconds": number_of(attention["seconds"]), "ffn_seconds": number_of(ffn["seconds"])}
    for name, key in (("attention_by_ffn_seconds", "seconds"), ("attention_by_ffn_flops", "flops")):
        values[name] = ratio(number_of(attention[key]), number_of(ffn[key]))
    return values


def read_benches(folder: Path, records: Sequence[Record]) -> list[dict[str, Any]]:
    """What bench wrote, of all points that are of it and ended."""
    paths = [point_folder(folder, record.name) / BENCH for record in records if record.settings["command"] == "bench"]
    return [read_bench(path) for path in paths if path.is_file()]


def storage_values(content: dict[str, Any]) -> Values:
    """Of `eval` and of `bench --mode decode`: rate, quality, and what the model takes."""
    return {name: number_of(content[name]) for name in STORED if name in content}


def eval_values(path: Path) -> Values:
    """Of one checkpoint; nothing if it was not measured."""
    if not path.is_file():
        return {}
    content = read_json(path, EVALUATED, AGAIN)
    loss = number_of(content["loss"])
    return storage_values(content) | {"final_loss": loss, "validation_loss": loss}


def images_per_second(content: dict[str, Any], each: dict[str, Any]) -> float:
    """Of a mode of `bench` with a vision transformer; NaN for text."""
    if not content["model"].startswith("vit:"):
        return math.nan
    return ratio(float(content["global_batch"]), number_of(each["median_seconds"]))


def bench_values(path: Path) -> Iterator[tuple[str, Values]]:
    content = read_bench(path)
    parameters = float(content["parameters"])
    if content["mode"] == DECODE:
        yield DECODE, storage_values(content) | {"parameters": parameters}
        return
    for mode, each in bench_modes(content).items():
        rate = number_of(each["tokens_per_second"])
        yield mode, {
            "step_seconds": number_of(each["median_seconds"]), "step_mean_seconds": number_of(each["mean_seconds"]),
            "step_deviation_seconds": number_of(each["standard_deviation_seconds"]),
            "first_step_seconds": number_of(each["step_seconds"][0]), "steps": float(len(each["step_seconds"])),
            "tokens_per_second": rate, "tokens_per_second_per_rank": ratio(rate, float(content["ranks"])),
            "images_per_second": images_per_second(content, each),
            "mfu": math.nan if crowd_of(path.parent) and content["device"] == "cpu" else number_of(each["mfu"]),
            "model_flops": number_of(each["model_flops"]), "memory_peak_bytes": number_of(each["memory_peak_bytes"]),
            "parameters": parameters,
        } | component_values(each.get("components") or {})


def accumulated(path: Path) -> Values:
    if not path.is_file():
        return {}
    content = read_json(path, SUMMED, AGAIN)
    total, exact = number_of(content["sum"]), number_of(content["exact"])
    return {"accumulated_sum": total, "accumulated_error": total / exact - 1.0 if exact else math.nan}


def error_of(predicted: float, measured: float) -> float:
    return predicted / measured - 1.0 if measured > 0 else math.nan


def with_prediction(values: Values, predicted: Prediction, command: str) -> Values:
    memory = predicted.memory_of(command)
    return values | {
        "memory_predicted_bytes": memory, "step_predicted_seconds": predicted.step_seconds,
        "memory_prediction_error": error_of(memory, values.get("memory_peak_bytes", math.nan)),
        "step_prediction_error": error_of(predicted.step_seconds, values.get("step_seconds", math.nan))}


def measured_values(folder: Path, record: Record, skip: int) -> tuple[dict[str, Values], list[str]]:
    """Values by mode of `bench`, by an empty name otherwise; and notes."""
    place = point_folder(folder, record.name)
    ranks = {"ranks": float(record.settings["ranks"])}
    command = record.settings["command"]
    if command == "plan":
        return {"": ranks | with_prediction({}, Prediction(printed_bytes(place / OUTPUT)), command)}, []
    if command == "accumulation":
        return {"": accumulated(place / BENCH)}, []
    if command == "eval":
        return {"": ranks | eval_values(place / BENCH)}, []
    predicted = read_prediction(place)
    if command == "bench":
        if not (place / BENCH).is_file():
            modes = BENCH_MODES if record.settings.get(MODE) == "all" else ("",)
            return {mode: ranks | with_prediction({}, predicted, command) for mode in modes}, []
        # A plan is of a whole step.
        return {mode: ranks | (with_prediction(values, predicted, command) if mode == "step" else values)
                for mode, values in bench_values(place / BENCH)}, []
    values, notes = train_values(place, skip) if (place / "metrics.jsonl").is_file() else ({}, [])
    return {"": ranks | with_prediction(values, predicted, command)}, notes
