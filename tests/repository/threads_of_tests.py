#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of two threads let them spin for a short time: CTest has what hyperslab_add_test asks for.

threads_of_tests.py CTEST BUILD_FOLDER
"""

import json
import subprocess
import sys


def values(test, name):
    return next((each["value"] for each in test.get("properties", []) if each["name"] == name), [])


def main():
    ctest, build = sys.argv[1:]
    shown = subprocess.run([ctest, "--show-only=json-v1"], cwd=build, check=True, capture_output=True, text=True).stdout
    threaded = [test for test in json.loads(shown)["tests"] if "OMP_NUM_THREADS=2" in values(test, "ENVIRONMENT")]
    long = [test["name"] for test in threaded
            if not any(each.startswith("GOMP_SPINCOUNT=") for each in values(test, "ENVIRONMENT_MODIFICATION"))]
    for name in long[:10]:
        print(f"{name}: GOMP_SPINCOUNT is not set")
    print(f"{len(long)} of {len(threaded)} tests of two threads spin for milliseconds")
    return 1 if long or not threaded else 0


if __name__ == "__main__":
    sys.exit(main())
