# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: starting the program, a tiny text and deck, reading its files."""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

_PROGRAM = {"binary": "hyperslab", "mpiexec": "mpirun"}

DECK = """\
run: {name: tiny, directory: run, seed: 7, device: cpu}
model: {family: llama, layers: 2, width: 32, heads: 2, vocabulary: 257, context: 32}
data: {train: [text.bin], validation: [text.bin], vocabulary: bytes}
parallel: {data: 1}
optimizer: {lr: 1.0e-2}
schedule: {name: cosine, warmup_steps: 2, final_fraction: 0.1}
train: {steps: 20, global_batch: 12, validate_every: 10, validate_batches: 5}
checkpoint: {every: 10}
"""

# Experts in the second of two layers.
EXPERTS_DECK = """\
run: {name: base, seed: 7}
model: {family: llama, layers: 2, width: 64, heads: 4, ffn_width: 128, vocabulary: 257, context: 16}
experts: {count: 4, active: 2, width: 64, shared: 1, first_dense: 1}
data: {train: [synthetic], validation: [synthetic], vocabulary: bytes}
train: {steps: 6, global_batch: 8, validate_batches: 2}
optimizer: {lr: 0.003}
"""

# (run.directory, other overrides) of a run that goes on until it is stopped
ENDLESS = ("train.steps=1000000", "train.validate_every=0", "data.validation=[]",
           "checkpoint.every=0")

# A run that only trains, with the same bits every time.
PLAIN = ("train.validate_every=0", "data.validation=[]", "run.deterministic=true")

_H5_TO_JSON = """
import json, sys, h5py
plain = lambda v: v.decode() if isinstance(v, bytes) else v.tolist() if hasattr(v, "tolist") else v
found = {"": {"attributes": {k: plain(v) for k, v in h5py.File(sys.argv[1]).attrs.items()}}}
def visit(name, node):
    found[name] = {"attributes": {k: plain(v) for k, v in node.attrs.items()}}
    if isinstance(node, h5py.Dataset) and node.dtype.kind in "iuf":
        found[name]["values"] = node[()].tolist()
h5py.File(sys.argv[1]).visititems(visit)
print(json.dumps(found))
"""


@dataclasses.dataclass
class Result:
    """How a start of the program ended."""

    code: int
    raw: bytes
    err: str
    seconds: float

    @property
    def out(self):
        """Standard output as text."""
        return self.raw.decode("utf-8")

    @property
    def messages(self):
        """Lines in which the program says why it ends."""
        return [line for line in self.err.splitlines() if line.startswith("hyperslab: ")]


# Open MPI waits so long before it kills the other ranks of a job that failed; they have ended by then.
QUICK_END = {"OMPI_MCA_odls_base_sigkill_timeout": "0"}


def command(*arguments, ranks=0):
    """The command line; ranks 0: without mpirun."""
    start = [_PROGRAM["mpiexec"], "-np", str(ranks)] if ranks else []
    return [*start, _PROGRAM["binary"], *map(str, arguments)]


def overrides(*settings):
    """`--set` for every key=value."""
    return [word for setting in settings for word in ("--set", setting)]


def text():
    """English enough to be learned: 5.5 kB."""
    animals = ["cat", "dog", "cow", "hen"]
    colours = ["red", "blue", "green", "old", "new", "wet"]
    pairs = [(colour, animal) for colour in colours for animal in animals * 8]
    return "".join(f"The {c} {a} sat on line {i}.\n" for i, (c, a) in enumerate(pairs))


def write_vocabulary(folder, size=257, merges=None):
    """A vocabulary of the bytes, merges (of two bytes that follow each other unless given), and <|endoftext|>."""
    letters = [chr(code) for code in range(33, 127)]
    others = [chr(code) for code in (*range(161, 173), *range(174, 324))]
    pairs = merges or [(a, b) for a in letters for b in letters][:size - 257]
    names = [*letters, *others, *(a + b for a, b in pairs), "<|endoftext|>"]
    pathlib.Path(folder).mkdir()
    (pathlib.Path(folder) / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (pathlib.Path(folder) / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in pairs))


def character_tokenizer():
    """A tokenizer.json in Llama 2's form: letters, a few words, and bytes for line breaks and a dog."""
    mark = "\u2581"
    words = ["The", "cat", "dog", "red", "sat", "on", "line"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in (0x0A, 0xF0, 0x9F, 0x90, 0x95)), mark,
              *(chr(code) for code in range(33, 127))]
    merges = []
    for word in words:
        for i in range(len(word)):
            pair = (word[:i], word[i]) if i else (mark, word[0])
            pair = (mark + pair[0], pair[1]) if i else pair
            if pair not in merges:
                merges.append(pair)
                tokens.append("".join(pair))
    vocab = {token: i for i, token in enumerate(tokens)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    to_space = {"type": "Replace", "pattern": {"String": mark}, "content": " "}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **special} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": mark}, {"type": "Replace", "pattern": {"String": " "}, "content": mark}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            to_space, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(pair) for pair in merges]}}


def write_tokens(path, ids):
    """A token file with llm.c's header, uint16."""
    header = struct.pack("<256i", 20240520, 1, len(ids), *([0] * 253))
    pathlib.Path(path).write_bytes(header + struct.pack(f"<{len(ids)}H", *ids))


def metrics(run):
    """The lines of metrics.jsonl."""
    lines = (pathlib.Path(run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def column(run, key):
    """One column of metrics.jsonl."""
    return [line[key] for line in metrics(run)]


def manifest(step_folder):
    """manifest.json of a checkpoint."""
    return json.loads((pathlib.Path(step_folder) / "manifest.json").read_text(encoding="utf-8"))


def crc32c(data):
    """CRC-32C (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def reseal_manifest(step_folder, **changes):
    """Changes values of manifest.json and gives it the checksum that it has then."""
    value = {**manifest(step_folder), "wall_seconds": 1.5, **changes}
    del value["crc32c"]
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    value["crc32c"] = crc32c(text.encode())
    (pathlib.Path(step_folder) / "manifest.json").write_text(json.dumps(value), encoding="utf-8")


DTYPE_BYTES = {"f32": 4, "f16": 2, "u8": 1}


def _insert(tensor, shape, piece, data, size):
    """Puts the rows of a piece into the whole tensor; an element has `size` bytes."""
    width = shape[-1] if len(shape) == 2 else 1
    first = piece["offset"] + [0] * (2 - len(shape))
    rows, columns = (piece["count"] + [1])[:2]
    for row in range(rows):
        begin = size * ((first[0] + row) * width + first[1])
        tensor[begin:begin + size * columns] = data[size * row * columns:size * (row + 1) * columns]


def tensors(step_folder):
    """Name -> bytes of every tensor, whatever layout wrote the checkpoint."""
    folder = pathlib.Path(step_folder)
    files = {file.name: file.read_bytes() for file in folder.glob("rank_*.h5")}
    found = {}
    for name, entry in manifest(folder)["tensors"].items():
        size = DTYPE_BYTES[entry["dtype"]]
        count = 1
        for dim in entry["global_shape"]:
            count *= dim
        found[name] = bytearray(size * count)
        for piece in entry["pieces"]:
            data = files[piece["file"]][piece["file_offset"]:]
            _insert(found[name], entry["global_shape"], piece, data, size)
    return found


def pieces(step_folder, file):
    """(offset, bytes) of every piece of a tensor in a file."""
    found = []
    for entry in manifest(step_folder)["tensors"].values():
        for piece in entry["pieces"]:
            count = DTYPE_BYTES[entry["dtype"]]
            for dim in piece["count"]:
                count *= dim
            if piece["file"] == file:
                found.append((piece["file_offset"], count))
    return sorted(found)


def flip_byte(step_folder, tensor):
    """Damages one byte of a tensor."""
    piece = manifest(step_folder)["tensors"][tensor]["pieces"][0]
    path = pathlib.Path(step_folder) / piece["file"]
    data = bytearray(path.read_bytes())
    data[piece["file_offset"] + 5] ^= 1
    path.write_bytes(data)


def cut(path, count):
    """Cuts bytes off the end of a file."""
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(data[:-count])


def snapshot(folder):
    """Path -> content of every file and folder below."""
    root = pathlib.Path(folder)
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
            for path in sorted(root.rglob("*"))}


def python_of_reports():
    """A Python that can run studies and draw reports; None if there is none."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import h5py, matplotlib, yaml, jinja2"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def python_with_h5py():
    """None if no interpreter has it."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import h5py"], capture_output=True, check=False).returncode == 0:
            return python
    return None


def h5(path):
    """Path -> {attributes, values} of an HDF5 file, None without h5py."""
    python = python_with_h5py()
    if python is None:
        return None
    found = subprocess.run([python, "-c", _H5_TO_JSON, str(path)], capture_output=True, check=True)
    return json.loads(found.stdout)


def can_mount():
    """Whether a file system can be mounted in a namespace of one's own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Case(unittest.TestCase):
    """A test case with a folder of its own that holds text.txt, text.bin and deck.yaml."""

    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="hyperslab_e2e_")
        cls.folder = pathlib.Path(cls._folder.name)
        (cls.folder / "text.txt").write_text(text(), encoding="utf-8")
        (cls.folder / "deck.yaml").write_text(DECK, encoding="utf-8")
        write_tokens(cls.folder / "text.bin", [*text().encode(), 256])

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    @classmethod
    def start(cls, *arguments, ranks=0, **options):
        """Starts the program and goes on; the caller waits."""
        return subprocess.Popen(command(*arguments, ranks=ranks), cwd=cls.folder,
                                **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})

    @classmethod
    def run_program(cls, *arguments, ranks=0, timeout=180, typed=None):
        """Runs the program to its end; `typed`: bytes of its standard input."""
        begin = time.monotonic()
        given = {} if typed is None else {"stdin": subprocess.PIPE}
        process = cls.start(*arguments, ranks=ranks, env={**os.environ, **QUICK_END}, **given)
        try:
            out, err = process.communicate(typed, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Result(process.returncode, out, err.decode("utf-8", "replace"), time.monotonic() - begin)

    @classmethod
    def train(cls, run, *settings, ranks=1, options=(), code=0):
        """Trains the tiny deck into the run directory `run`, with an expected exit code."""
        layout = (f"run.directory={run}", f"parallel.data={ranks}")
        result = cls.run_program("train", "deck.yaml", *overrides(*layout, *settings), *options,
                                 ranks=0 if ranks == 1 else ranks)
        if result.code != code:
            raise AssertionError(f"exit code {result.code}, expected {code}:\n{result.err}")
        return result

    def copy_of(self, run, name):
        """A copy of a run directory, to be damaged."""
        shutil.copytree(self.folder / run, self.folder / name)
        return self.folder / name

    def assert_refused(self, result, code, *words):
        """The exit code, one message with these words, no fault of the program, in 10 s."""
        self.assertEqual(result.code, code, result.err)
        self.assertEqual(len(result.messages), 1, result.err)
        for word in words:
            self.assertIn(word, result.err)
        self.assertNotIn("fault of the program", result.err)
        self.assertNotIn("terminate called", result.err)
        self.assertLess(result.seconds, 10)

    def assert_close(self, found, expected, relative):
        """Two curves agree at every step."""
        self.assertEqual(len(found), len(expected))
        for step, (a, b) in enumerate(zip(found, expected), 1):
            self.assertLessEqual(abs(a - b), relative * abs(b), f"value {step}: {a}, expected {b}")


def wait_until(condition, seconds):
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def children(parent):
    """Process ids of the ranks that mpirun started, in the order of the ranks."""
    listing = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
    return sorted(map(int, listing.split()))


def alive(process):
    """Whether a process runs (one that ended but is not waited for does not)."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] != "Z"


def main():
    """Runs the tests of the calling script with --binary and --mpiexec."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--mpiexec", default="mpirun")
    known, rest = parser.parse_known_args()
    _PROGRAM["binary"] = str(pathlib.Path(known.binary).resolve())
    _PROGRAM["mpiexec"] = known.mpiexec
    for key, value in {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_NUM_THREADS": "1"}.items():
        os.environ.setdefault(key, value)
    # In a folder that two scripts share, an mpirun that ends removes what another is about to use.
    with tempfile.TemporaryDirectory(prefix="hyperslab_sessions_", ignore_cleanup_errors=True) as sessions:
        os.environ.setdefault("OMPI_MCA_orte_tmpdir_base", sessions)
        unittest.main(argv=[sys.argv[0], *rest], module="__main__")
