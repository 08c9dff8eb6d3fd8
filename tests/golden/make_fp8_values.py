#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FP8 values by ml_dtypes, for tests/ops/fp8_test.cpp: make_fp8_values.py > fp8_values.txt

A line is the bits of a float, its e4m3 value and its e5m2 value, in hexadecimal. Values beyond a format's largest one are
cut to it before they are rounded, as our ops do. Needs numpy and ml_dtypes.
"""
import ml_dtypes
import numpy as np


def rounded(values: np.ndarray, kind: type, largest: float) -> np.ndarray:
    """(N) FP8 values of (N) f32 values."""
    return np.clip(values, np.float32(-largest), np.float32(largest)).astype(kind).view(np.uint8)


def values() -> np.ndarray:
    """(N) f32: every value of both formats, the middles between neighbours and what lies beside them, and others."""
    found = [np.array([0.0, -0.0, 1e-30, 448, 449, 464, 465, 57344, 61440, 1e9, 2**-10, 2**-17], np.float32)]
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        exact = np.arange(128, dtype=np.uint8).view(kind).astype(np.float32)
        exact = exact[np.isfinite(exact)]
        middles = (exact[1:] + exact[:-1]) / 2
        found += [exact, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))]
    draws = np.random.default_rng(1)
    found.append((draws.standard_normal(100) * np.exp2(draws.integers(-20, 18, 100))).astype(np.float32))
    return np.concatenate(found)


def main() -> None:
    """Writes the lines."""
    numbers = values()
    columns = zip(numbers.view(np.uint32), rounded(numbers, ml_dtypes.float8_e4m3fn, 448),
                  rounded(numbers, ml_dtypes.float8_e5m2, 57344), strict=True)
    for bits, e4m3, e5m2 in columns:
        print(f"{bits:08x} {e4m3:02x} {e5m2:02x}")


if __name__ == "__main__":
    main()
