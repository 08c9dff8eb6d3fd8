#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FP8 values and scales of 1 x 128 and 128 x 128 values by ml_dtypes, for tests/ops/fp8_groups_test.cpp:
make_fp8_groups.py > fp8_groups.txt

A line is the rows and columns of a matrix, "group" or "block", "straight" or "transposed", and hashes (FNV-1a, 64 bits) of the
bytes of its e4m3 values and of its f32 scales, laid out as include/hyperslab/ops/fp8.hpp says. Needs numpy and ml_dtypes.
"""
import ml_dtypes
import numpy as np

LARGEST = np.float32(448)
SMALLEST = np.float32(2.0**-100)  # lesser magnitudes are scaled like this one
GROUP = 128
ROWS = (1, 127, 128, 129, 300)
COLUMNS = (16, 112, 128, 144, 304)


def padded(count: int, unit: int) -> int:
    """count, rounded up."""
    return -(-count // unit) * unit


def values(rows: int, columns: int) -> np.ndarray:
    """(rows, columns) f32: of many magnitudes, with stretches of zeros. tests/ops/fp8_groups_test.cpp makes the same."""
    offset = np.arange(rows * columns, dtype=np.uint64)
    bits = (offset * 2654435761 + 12345) % 2**32 // 256
    exponents = (offset // 37 * 40503 // 16) % 13
    found = np.ldexp((bits.astype(np.int64) - 2**23).astype(np.float32), exponents.astype(np.int32) - 30)
    found[offset // 300 % 5 == 2] = 0
    return found.reshape(rows, columns)


def scaled(x: np.ndarray, height: int) -> tuple[np.ndarray, np.ndarray]:
    """(M, K) e4m3 values and (M / height, K / 128) scales of x, height x 128 of which share one."""
    rows, columns = x.shape
    whole = np.zeros((padded(rows, height), padded(columns, GROUP)), np.float32)
    whole[:rows, :columns] = x
    parts = whole.reshape(whole.shape[0] // height, height, whole.shape[1] // GROUP, GROUP)
    amax = np.maximum(np.abs(parts).max(axis=(1, 3), keepdims=True), SMALLEST)
    rounded = np.clip(parts * (LARGEST / amax), -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    return rounded.reshape(whole.shape)[:rows, :columns].view(np.uint8), (amax / LARGEST)[:, 0, :, 0]


def fnv1a(data: bytes) -> int:
    """The 64-bit hash."""
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return found


def hashes(x: np.ndarray, scaling: str) -> tuple[int, int]:
    """Of the FP8 values and of the scales of (M, K) values."""
    rounded, scales = scaled(x, GROUP if scaling == "block" else 1)
    if scaling == "group":
        stored = scales.T
    else:
        stored = np.zeros((scales.shape[0], padded(scales.shape[1], 4)), np.float32)
        stored[:, :scales.shape[1]] = scales
    return fnv1a(np.ascontiguousarray(rounded).tobytes()), fnv1a(np.ascontiguousarray(stored).astype("<f4").tobytes())


def main() -> None:
    """Writes the lines."""
    for rows in ROWS:
        for columns in COLUMNS:
            x = np.zeros((padded(rows, 16), columns), np.float32)
            x[:rows] = values(rows, columns)
            for scaling in ("group", "block"):
                for way, matrix in (("straight", x), ("transposed", x.T)):
                    rounded, scales = hashes(matrix, scaling)
                    print(f"{rows} {columns} {scaling} {way} {rounded:016x} {scales:016x}")


if __name__ == "__main__":
    main()
