"""Finds and starts the programs that a wheel or an installation brings beside this package: eplbctl, eplbd and eplb-trainer."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn, Optional

PACKAGE = Path(__file__).resolve().parent


def prefix() -> Optional[Path]:
    """Returns PREFIX of a package in PREFIX/lib/python3/dist-packages, None elsewhere."""
    return PACKAGE.parents[3] if PACKAGE.parts[-4:] == ("lib", "python3", "dist-packages", "eplb") else None


def path_of(program: str) -> Path:
    """Returns the program of this wheel or installation, otherwise the one on PATH. errors: FileNotFoundError."""
    installed = prefix()
    own = installed / "bin" if installed else PACKAGE / "bin"
    for folder in (own, *os.get_exec_path()):
        path = Path(folder, program)
        if path.is_file() and _is_compiled(path):
            return path
    raise FileNotFoundError(f"neither {own} nor PATH has {program}; a wheel brings it, a source tree builds it (deploy/wheel.sh)")


def _is_compiled(path: Path) -> bool:
    """False for pip's scripts, which begin the search anew."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def eplbctl(*command: str) -> NoReturn:
    """Becomes eplbctl with the arguments of this process, after those of `command`."""
    _become("eplbctl", *command)


def eplbd() -> NoReturn:
    _become("eplbd")


def _become(program: str, *first: str) -> NoReturn:
    # Python ignores these two, and a program inherits what is ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        path = path_of(program)
        os.execv(path, [str(path), *first, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{program}: {error}")
