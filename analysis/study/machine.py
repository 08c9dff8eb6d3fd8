# SPDX-License-Identifier: Apache-2.0
"""On what a point ran: host, processor, GPUs, and the versions of compiler and libraries."""
from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

def output_of(*words: str) -> str:
    """What a program prints; empty if there is none or it fails."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def libraries_of(versions: str) -> dict[str, str]:
    """Name and version of each, from what `--version` prints below its first line."""
    found = {name: version.strip() for name, version in re.findall(r"(?m)^  (\S+)\s+(.*)$", versions)}
    return {name: version for name, version in found.items() if not version.startswith("off ")}


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
    versions = output_of(str(binary), "--version")
    return {
        "host": platform.node(), "system": platform.platform(), "processor": processor(),
        "cores": len(os.sched_getaffinity(0)), "gpus": gpus(),
        "program": versions.partition("\n")[0].strip(), "libraries": libraries_of(versions),
    }
