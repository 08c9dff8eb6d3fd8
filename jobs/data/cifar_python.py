#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 or CIFAR-100 from its Python version (pickles) to its binary version, which pack-images takes.

cifar_python.py FOLDER OUTPUT
FOLDER holds data_batch_1 ... and test_batch, or train and test, as they are unpacked. Pickles can run any program, so
nothing is loaded from them but numbers, texts, lists and NumPy's arrays.
"""

import argparse
import io
import pathlib
import pickle
import sys

import numpy

IMAGE_BYTES = 3072

# What an array of bytes is pickled with, by the names that NumPy 1 and 2 and Python 2 give it.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): numpy.array([0]).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): numpy.array([0]).__reduce__()[0],
    ("numpy", "ndarray"): numpy.ndarray,
    ("numpy", "dtype"): numpy.dtype,
    ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
}


class Restricted(pickle.Unpickler):
    """Refuses every name but those of arrays."""

    def find_class(self, module, name):
        """The function or class of this name, if it is one of arrays."""
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        raise pickle.UnpicklingError(f"expected numbers and arrays, found {module}.{name}")


def records(path):
    """The records of one file in the binary version: labels and planes of each image."""
    batch = Restricted(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    data = numpy.asarray(batch[b"data"], dtype=numpy.uint8)
    columns = [b"coarse_labels", b"fine_labels"] if b"fine_labels" in batch else [b"labels"]
    labels = [numpy.asarray(batch[name], dtype=numpy.int64) for name in columns]
    most = 10 if len(labels) == 1 else 100
    if data.ndim != 2 or data.shape[1] != IMAGE_BYTES or any(len(column) != len(data) for column in labels):
        raise ValueError(f"expected images of {IMAGE_BYTES} bytes with labels, found shape {data.shape}")
    if any(column.min(initial=0) < 0 or column.max(initial=0) >= most for column in labels):
        raise ValueError(f"expected labels below {most}, found others")
    return numpy.concatenate([column.astype(numpy.uint8)[:, None] for column in labels] + [data], axis=1).tobytes()


def main():
    """Converts every file that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch", "train", "test"]
    paths = [arguments.folder / name for name in names if (arguments.folder / name).is_file()]
    if not paths:
        sys.exit(f"cifar_python.py: {arguments.folder}: expected data_batch_1 ... or train and test, found none")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for path in paths:
        try:
            content = records(path)
        except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
            sys.exit(f"cifar_python.py: {path}: {error!r}; download the data set again")
        (arguments.output / f"{path.name}.bin").write_bytes(content)
        print(f"{arguments.output / path.name}.bin: {len(content)} bytes")


if __name__ == "__main__":
    main()
