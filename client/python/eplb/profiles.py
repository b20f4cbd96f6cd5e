"""Profiles: loads of several workloads in one file, which eplb.vllm and eplb.sglang plan for beside the load that they measure.

    eplb.profiles.write("profiles.json", [Profile("chat", load), Profile("code", other, weight=2)])
    python -m eplb.profiles profiles.json chat=chat.jsonl code=code.pt      # files that eplbctl join reads; windows are summed

The file is an object of JSON: {"format": "eplb.profiles.v1", "profiles": [{"name": "chat", "weight": 1, "load": [[..], ..]}]}.
A load is [layers, experts], tokens or shares of them; only its proportions within a layer count. A weight is 1 unless given.
"measured_weight" beside "profiles" is the weight of the measured load: the sum of the profiles' weights, at most 1e9, unless
given; with 0 the placement serves the profiles alone.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

import numpy as np

from eplb._arguments import numbers, real
from eplb._programs import path_of
from eplb.errors import InvalidArgument

_FORMAT = "eplb.profiles.v1"
MAX_PROFILES = 63  # with the measured load 64 scenarios
_MAX_WEIGHT = 1e9  # the least is 1 / _MAX_WEIGHT, as for each scenario of a plan


@dataclass(frozen=True, eq=False)
class Profile:
    """A workload. load: [layers, experts], at least 0. weight: 1e-9..1e9."""

    name: str
    load: Any
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Profiles:
    """Contents of a file. source: its path, for messages. loads: float64 [profiles, layers, experts]. weights: [profiles].
    measured_weight: 0, or 1e-9..1e9."""

    source: str
    names: Tuple[str, ...]
    loads: np.ndarray
    weights: np.ndarray
    measured_weight: float


def write(path: Any, profiles: Iterable[Profile], measured_weight: Optional[float] = None) -> None:
    """Writes a file. errors: InvalidArgument for profiles that read would refuse; OSError."""
    rows = [{"name": each.name, "weight": each.weight, "load": numbers(f"profile '{each.name}'", each.load, "iuf").tolist()}
            for each in profiles]
    content: Dict[str, Any] = {"format": _FORMAT, "profiles": rows}
    if measured_weight is not None:
        content["measured_weight"] = measured_weight
    _parse(str(path), content)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)


def read(path: Any) -> Profiles:
    """errors: InvalidArgument with one line that names the file and the profile."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path}: is no JSON: {error}") from None
    return _parse(str(path), content)


def load_of(path: Any) -> np.ndarray:
    """Returns the sum of all windows of a load file, in any format that `eplbctl join` reads. errors: InvalidArgument;
    FileNotFoundError without eplbctl."""
    with tempfile.TemporaryDirectory() as folder:
        joined = Path(folder, "load.jsonl")
        done = subprocess.run([path_of("eplbctl"), "join", path, joined], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise InvalidArgument(done.stderr.strip())
        sys.stderr.write(done.stderr)  # notes on the file
        windows = [np.array(json.loads(line)["load"], np.float64) for line in joined.read_text(encoding="utf-8").splitlines()]
        return np.sum(windows, axis=0)


def _parse(source: str, content: Any) -> Profiles:
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InvalidArgument(f'{source}: expected an object with "format": "{_FORMAT}"')
    _expect_keys(source, content, ("format", "profiles", "measured_weight"))
    rows = content.get("profiles")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_PROFILES:
        raise InvalidArgument(f'{source}: "profiles" is no list of 1 to {MAX_PROFILES} profiles')
    found: Dict[str, Tuple[np.ndarray, float]] = {}
    for index, row in enumerate(rows):
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str) or name in found:
            raise InvalidArgument(f"{source}: profile {index} has no name of its own")
        where = f"{source}: profile '{name}'"
        _expect_keys(where, row, ("name", "weight", "load"))
        found[name] = _load(where, row.get("load")), _weight(f"{where}: weight", row.get("weight", 1))
        first = next(iter(found.values()))[0]
        if found[name][0].shape != first.shape:
            raise InvalidArgument(f"{where}: load has shape {list(found[name][0].shape)}, that of the first has {list(first.shape)}")
    weights = np.array([weight for _, weight in found.values()])
    default = min(float(weights.sum()), _MAX_WEIGHT)
    measured = _weight(f"{source}: measured_weight", content.get("measured_weight", default), or_zero=True)
    return Profiles(source, tuple(found), np.stack([load for load, _ in found.values()]), weights, measured)


def _expect_keys(where: str, given: Dict[str, Any], known: Tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise InvalidArgument(f"{where}: unknown key '{key}', expected {', '.join(known)}")


def _load(where: str, given: Any) -> np.ndarray:
    load = numbers(f"{where}: load", given, "iuf", "numbers [layers, experts]").astype(np.float64)
    if load.ndim != 2 or not load.size:
        raise InvalidArgument(f"{where}: load has shape {list(load.shape)}, expected [layers, experts]")
    with np.errstate(all="ignore"):
        finite = np.isfinite(load.sum(axis=1)).all()
    if not (load >= 0).all() or not finite or not load.any():
        raise InvalidArgument(f"{where}: load: expected tokens of at least 0, some above 0, and a finite sum in each layer")
    return load


def _weight(where: str, given: Any, or_zero: bool = False) -> float:
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    weight = real(where, given) if number else math.nan
    if not 1 / _MAX_WEIGHT <= weight <= _MAX_WEIGHT and not (or_zero and weight == 0):
        raise InvalidArgument(f"{where}: {given!r}, expected a number, {'0 or ' if or_zero else ''}1e-9..1e9")
    return weight


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="eplb.profiles", description="Write a file of profiles, each of weight 1, from load files.")
    parser.add_argument("out", metavar="OUT", help="write this file")
    parser.add_argument("loads", metavar="NAME=FILE", nargs="+", help="name and load file of a workload")
    given = parser.parse_args(arguments)
    try:
        pairs = [each.partition("=") for each in given.loads]
        for name, equals, path in pairs:
            if not (name and equals and path):
                raise InvalidArgument(f"{name}: expected NAME=FILE")
        write(given.out, [Profile(name, load_of(path)) for name, _, path in pairs])
    except (InvalidArgument, OSError) as error:
        print(f"eplb.profiles: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidArgument) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
