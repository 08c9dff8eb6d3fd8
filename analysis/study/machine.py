# SPDX-License-Identifier: Apache-2.0
"""On what a point ran: host, processor, GPUs, and the libraries that the program loads."""
from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

# Libraries that decide what a run computes and sends, by the start of their file's name.
LIBRARIES = ("libmpi.", "libhdf5", "libopenblas", "libcudart", "libcublasLt", "libcudnn.", "libnccl", "libyaml-cpp",
             "libgomp", "libc.so")


def output_of(*words: str) -> str:
    """What a program prints; empty if there is none or it fails."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def libraries_of(binary: Path) -> dict[str, str]:
    """Name of each library and the file that it stands for, whose end is its version."""
    found: dict[str, str] = {}
    for line in output_of("ldd", str(binary)).splitlines():
        match = re.match(r"\s*(\S+) => (/\S+)", line)
        if match and match[1].startswith(LIBRARIES):
            found[match[1].split(".so")[0]] = Path(match[2]).resolve().name
    return dict(sorted(found.items()))


def processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.*\S)", text, re.MULTILINE)
    return match[1] if match else platform.machine()


def gpus() -> list[str]:
    """Name, memory and driver of each."""
    text = output_of("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return [line.strip() for line in text.splitlines() if line.strip()]


@lru_cache(maxsize=None)
def describe_machine(binary: Path) -> dict[str, Any]:
    """Asked once: nvidia-smi alone takes a second."""
    return {
        "host": platform.node(), "system": platform.platform(), "processor": processor(),
        "cores": len(os.sched_getaffinity(0)), "gpus": gpus(),
        "program": output_of(str(binary), "--version").partition("\n")[0].strip(), "libraries": libraries_of(binary),
    }
