# SPDX-License-Identifier: Apache-2.0
"""Which Python runs this package: one that comes first in PATH may lack what the system's has."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import NoReturn, Sequence

SYSTEM_PYTHON = "/usr/bin/python3"
MODULES = ("numpy", "h5py", "matplotlib", "yaml", "jinja2")
CHECK = ("import sys; from importlib.util import find_spec; "
         "sys.exit(sys.version_info < (3, 9) or not all(map(find_spec, sys.argv[1:])))")


def system_python_has_modules() -> bool:
    """False also where this program runs by it."""
    if os.path.realpath(sys.executable) == os.path.realpath(SYSTEM_PYTHON) or not os.access(SYSTEM_PYTHON, os.X_OK):
        return False
    return subprocess.run([SYSTEM_PYTHON, "-c", CHECK, *MODULES], check=False, stderr=subprocess.DEVNULL).returncode == 0


def start_with_system_python(words: Sequence[str]) -> NoReturn:
    """Never returns; `words` follow the interpreter."""
    os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *words])


def missing_text(module: str | None) -> str:
    return (f"Python module {module} is missing in {sys.executable}; apt install python3-numpy python3-h5py "
            "python3-matplotlib python3-yaml python3-jinja2, or pip install numpy h5py matplotlib pyyaml jinja2")
