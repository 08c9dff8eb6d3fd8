# SPDX-License-Identifier: Apache-2.0
"""Encoding and training speed beside the packages tokenizers and tiktoken, on one machine.

python3 -m analysis.compare.tokenizers --text FILE --vocab DIR [--binary FILE] [--size N] [--repeats N]

DIR holds vocab.json and merges.txt of GPT-2 (or gpt2_vocab.json and gpt2_merges.txt). Every run is a process of its
own, runs of all take turns, and the best of each counts. Of the packages only encode_batch or train is timed, of
hyperslab the whole command with reading and writing files; memory is the whole process of each.
"""

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

END = "<|endoftext|>"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PART_CHARACTERS = 1 << 16


def vocabulary_files(folder):
    """Paths of vocab.json and merges.txt."""
    for prefix in ("", "gpt2_"):
        vocab = pathlib.Path(folder) / f"{prefix}vocab.json"
        if vocab.exists():
            return str(vocab), str(vocab.with_name(f"{prefix}merges.txt"))
    sys.exit(f"{folder}: expected vocab.json and merges.txt, found neither; give another --vocab")


def parts_of(path):
    """Documents in parts that all threads can share, cut at line breaks."""
    parts = []
    for document in pathlib.Path(path).read_text(encoding="utf-8").split(END):
        while len(document) > PART_CHARACTERS:
            cut = document.find("\n", PART_CHARACTERS) + 1
            if cut == 0:
                break
            parts.append(document[:cut])
            document = document[cut:]
        parts.append(document)
    return parts


def encode_tokenizers(arguments, _threads):
    """Seconds of the package tokenizers; RAYON_NUM_THREADS says how many threads."""
    package = importlib.import_module("tokenizers")
    tokenizer = package.Tokenizer(package.models.BPE.from_file(*vocabulary_files(arguments.vocab)))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = parts_of(arguments.text)
    start = time.monotonic()
    tokenizer.encode_batch_fast(parts, add_special_tokens=False)
    return time.monotonic() - start


def encode_tiktoken(arguments, threads):
    """Seconds of the package tiktoken, its encoding made from the local files."""
    package = importlib.import_module("tiktoken")
    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in order}
    table |= {chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in order)}
    vocab = json.loads(pathlib.Path(vocabulary_files(arguments.vocab)[0]).read_text(encoding="utf-8"))
    ranks = {bytes(table[c] for c in token): i for token, i in vocab.items() if token != END}
    encoding = package.Encoding("gpt2_local", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={END: vocab[END]})
    parts = parts_of(arguments.text)
    start = time.monotonic()
    encoding.encode_ordinary_batch(parts, num_threads=threads)
    return time.monotonic() - start


def train_tokenizers(arguments, _threads):
    """Seconds of the trainer of the package tokenizers."""
    package = importlib.import_module("tokenizers")
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = package.trainers.BpeTrainer(vocab_size=arguments.size, special_tokens=[END], show_progress=False,
                                          initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet())
    start = time.monotonic()
    tokenizer.train([arguments.text], trainer)
    return time.monotonic() - start


WORKERS = {"encode tokenizers": encode_tokenizers, "encode tiktoken": encode_tiktoken,
           "train tokenizers": train_tokenizers}


def measured(command, threads, folder):
    """Wall and CPU seconds, peak MiB and output of a process."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads),
                                "TOKENIZERS_PARALLELISM": "true", "TMPDIR": folder}  # apart from other MPI programs
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"'{' '.join(map(str, command))}' ended with {process.returncode}")
        output.seek(0)
        return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output.read().decode()


def commands(arguments, folder):
    """name -> command of one run."""
    ours = [arguments.binary, "tokenize", "--input", arguments.text]
    out = {"encode hyperslab": [*ours, "--vocab", arguments.vocab, "--output", f"{folder}/ids.bin"],
           "train hyperslab": [*ours, "--train-vocab", str(arguments.size), "--output-vocab", f"{folder}/vocab"]}
    for name in WORKERS:
        out[name] = [sys.executable, "-m", "analysis.compare.tokenizers", "--worker", name, "--text", arguments.text,
                     "--vocab", arguments.vocab, "--size", str(arguments.size)]
    return out


def compare(arguments):
    """Runs everything in turns and prints the table and the ratios."""
    best = {}
    cores = len(os.sched_getaffinity(0))
    counts = [1 << i for i in range(cores.bit_length()) if 1 << i <= cores]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.repeats):
            for threads in counts:
                for name, command in commands(arguments, folder).items():
                    extra = ["--threads", str(threads)] if name in WORKERS else []
                    wall, cpu, memory, output = measured(command + extra, threads, folder)
                    wall = float(output) if name in WORKERS else wall
                    old = best.get(name)
                    if old is None or wall < old[0]:
                        best[name] = (wall, threads, cpu, memory)
    megabytes = os.path.getsize(arguments.text) / 1e6
    print(f"{arguments.text}: {megabytes:.1f} MB; best of {arguments.repeats} runs with each of {counts} threads")
    print(f"{'':20}{'threads':>8}{'seconds':>9}{'MB/s':>8}{'CPU s':>8}{'MiB':>8}")
    for name, (wall, threads, cpu, memory) in sorted(best.items()):
        print(f"{name:20}{threads:8}{wall:9.2f}{megabytes / wall:8.1f}{cpu:8.2f}{memory:8.0f}")
    for name in sorted(WORKERS):
        task, package = name.split()
        ratio = best[name][0] / best[f"{task} hyperslab"][0]
        print(f"{task}: hyperslab is {ratio:.1f} times as fast as {package}")


def main():
    """Compares, or as a worker prints the seconds of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--binary", default="build/bin/hyperslab")
    parser.add_argument("--size", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(WORKERS[arguments.worker](arguments, arguments.threads))
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
