"""Checkpoints in the order of logical experts, which fit any placement and any number of ranks.

A checkpoint is a directory: checkpoint.json with what it belongs to, and a .npy file for each tensor. A tensor of a
layer's experts is one file [experts, ...] into which every rank writes the rows of its primaries; all ranks must see
the same directory. It is written beside its name and renamed when it is complete and on the disk.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Mapping

import numpy as np
import torch

from balancer import ExpertTensor
from collectives import Ranks
from placement import Placement

FORMAT = 1
_FIELDS_FILE = "checkpoint.json"


def path_of(directory: str, step: int) -> Path:
    """Of the checkpoint after `step` steps."""
    return Path(directory) / f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The steps that were done when the checkpoint was written. errors: ValueError when it has none."""
    step = _read_fields(path).get("step")
    if not isinstance(step, int):
        raise ValueError(f"checkpoint {path}: field step is {step}, not a number of steps")
    return step


def save(path: Path, fields: Mapping[str, Any], dense: Mapping[str, torch.Tensor], experts: list[ExpertTensor],
         placement: Placement, ranks: Ranks) -> None:
    """Writes a checkpoint, in place of one of that name. Collective.

    fields: what a run must agree with to go on from here, and its step; JSON values. dense: equal on all ranks.
    experts: stacked tensors of the local slots. errors: OSError.
    """
    partial = path.with_name(path.name + ".partial")
    if ranks.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, tensor in dense.items():
            np.save(partial / f"{name}.npy", tensor.cpu().numpy())
            _sync(partial / f"{name}.npy")
        for each in experts:
            shape = (placement.num_experts, *each.tensor.shape[1:])
            np.lib.format.open_memmap(partial / f"{each.name}.npy", mode="w+", dtype=_dtype(each.tensor), shape=shape)
    ranks.barrier()
    for each in experts:
        _write_primaries(partial / f"{each.name}.npy", each, placement, ranks.rank)
    ranks.barrier()
    if ranks.rank == 0:
        written = {"format": FORMAT, **fields, "placement_version": placement.version,
                   "physical_to_logical_map": placement.physical_to_logical_map.tolist()}
        (partial / _FIELDS_FILE).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        _sync(partial / _FIELDS_FILE)
        _put_in_place(partial, path)
    ranks.barrier()


def load(path: Path, fields: Mapping[str, Any], dense: Mapping[str, torch.Tensor], experts: list[ExpertTensor],
         placement: Placement, rank: int) -> dict[str, Any]:
    """Reads a checkpoint into the tensors, in place; each replica of an expert gets its rows. Returns all its fields.

    errors: ValueError naming the checkpoint and the first field or tensor that is not as this run needs it; nothing was
    changed then.
    """
    found = _read_fields(path)
    for name, value in {"format": FORMAT, **fields}.items():
        if name not in found:
            raise ValueError(f"checkpoint {path}: it has no field {name}")
        if found[name] != value:
            raise ValueError(f"checkpoint {path}: {name} is {found[name]}, this run's is {value}")
    dense_files = {name: _open(path, name, tuple(tensor.shape), tensor) for name, tensor in dense.items()}
    expert_files = {each.name: _open(path, each.name, (placement.num_experts, *each.tensor.shape[1:]), each.tensor)
                    for each in experts}
    for name, tensor in dense.items():
        tensor.copy_(torch.from_numpy(np.array(dense_files[name])))
    for each in experts:
        for local_slot, slot in enumerate(placement.local_slots(rank)):
            expert = placement.physical_to_logical_map[each.layer, slot]
            if expert >= 0:
                each.tensor[local_slot].copy_(torch.from_numpy(np.array(expert_files[each.name][expert])))
    return found


def _put_in_place(partial: Path, path: Path) -> None:
    """The one before goes aside first and away last: a crash leaves it as PATH.old at worst."""
    old = path.with_name(path.name + ".old")
    _sync(partial)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(partial, path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _dtype(tensor: torch.Tensor) -> np.dtype:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def _write_primaries(file: Path, experts: ExpertTensor, placement: Placement, rank: int) -> None:
    rows = np.load(file, mmap_mode="r+")
    for local_slot, slot in enumerate(placement.local_slots(rank)):
        expert = int(placement.physical_to_logical_map[experts.layer, slot])
        if expert >= 0 and placement.replicas(experts.layer, expert)[0] == slot:
            rows[expert] = experts.tensor[local_slot].cpu().numpy()
    rows.flush()
    _sync(file)


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / _FIELDS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"checkpoint {path}: there is no {_FIELDS_FILE}, so it is none or not complete") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"checkpoint {path}: {_FIELDS_FILE} is no JSON: {error}") from None


def _open(path: Path, name: str, shape: tuple[int, ...], like: torch.Tensor) -> np.ndarray:
    try:
        rows = np.load(path / f"{name}.npy", mmap_mode="r")
    except FileNotFoundError:
        raise ValueError(f"checkpoint {path}: it has no tensor {name}") from None
    except (ValueError, EOFError) as error:
        raise ValueError(f"checkpoint {path}: tensor {name} cannot be read: {error}") from None
    if rows.shape != shape or rows.dtype != _dtype(like):
        raise ValueError(f"checkpoint {path}: tensor {name} is {rows.dtype} {list(rows.shape)}, "
                         f"this run's is {_dtype(like)} {list(shape)}")
    return rows
