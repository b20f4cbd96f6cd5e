"""Checkpoints of the experts in logical order, which fit any placement and any number of ranks.

    checkpoint.save("step-000100", client, fields={"step": 100}, dense={"router": weight})
    fields = checkpoint.load("step-000100", client, fields={"model": "tiny"}, dense={"router": weight})

A checkpoint is a directory that all ranks see: checkpoint.json, and a .npy file for each tensor, [experts, ..], into which
every rank writes the rows of its primaries. It is written as NAME.partial and renamed when it is complete and on the disk. A
crash during the renaming leaves the replaced one as NAME.old. Derived tensors are left out. Threads: the training thread,
between two steps, also while client.carry has moved the rows.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import quote

import numpy as np

from eplb import _rows
from eplb._handle import AllGather
from eplb._registry import Registered
from eplb.client import Client
from eplb.errors import Error, FailedPrecondition, InvalidArgument

FORMAT = "eplb.checkpoint.v1"
_FIELDS_FILE = "checkpoint.json"
PathLike = Union[str, "os.PathLike[str]"]


def save(path: PathLike, client: Client, *, fields: Optional[Mapping[str, Any]] = None,
         dense: Optional[Mapping[str, Any]] = None, sharded_state: bool = False,
         all_gather: Optional[AllGather] = None) -> None:
    """Writes a checkpoint, in place of one of that name. Collective. In a forked child it does nothing.

    fields: JSON values to store, such as the step. dense: tensors equal on all ranks; rank 0 writes them. sharded_state: EP
    groups hold different pieces of each expert's state; each writes its own, and load needs as many groups. all_gather:
    default: the client's. errors: FailedPrecondition on every rank if any rank fails, also if something that is no checkpoint
    has that name.
    """
    if client.is_forked_copy:
        return
    whole = _Checkpoint("save", path, client, dense, all_gather)
    whole.on_all_ranks(lambda: whole.begin_save(fields or {}, sharded_state))
    whole.meet()
    whole.on_all_ranks(whole.make_directory if whole.rank == 0 else _nothing)
    whole.on_all_ranks(whole.create_files if whole.gpu == 0 else _nothing)
    whole.on_all_ranks(whole.write_rows)
    whole.on_all_ranks(whole.finish if whole.rank == 0 else _nothing)


def load(path: PathLike, client: Client, *, fields: Optional[Mapping[str, Any]] = None,
         dense: Optional[Mapping[str, Any]] = None, all_gather: Optional[AllGather] = None) -> Dict[str, Any]:
    """Reads a checkpoint into the registered tensors, in place: each replica of an expert gets its rows. Collective.

    fields: values that the checkpoint must have. returns: all its fields; none in a forked child. errors: FailedPrecondition on
    every rank, naming the checkpoint and the first field or tensor that differs from this run; then nothing was changed.
    """
    if client.is_forked_copy:
        return {}
    whole = _Checkpoint("load", path, client, dense, all_gather)
    whole.on_all_ranks(lambda: whole.begin_load(fields or {}))
    whole.meet()
    whole.on_all_ranks(whole.compare)
    whole.on_all_ranks(whole.read_rows)
    return dict(whole.found["fields"])


def read_fields(path: PathLike) -> Dict[str, Any]:
    """Returns checkpoint.json. errors: FailedPrecondition if it is missing or of another format."""
    file = Path(path) / _FIELDS_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        old = _beside(Path(path), ".old")
        raise FailedPrecondition(f"checkpoint {path}: there is no {_FIELDS_FILE}: it is none, or not complete" + (
            f"; {old} is the one before, which was being replaced" if (old / _FIELDS_FILE).is_file() else "")) from None
    except (OSError, ValueError) as error:
        raise FailedPrecondition(f"checkpoint {path}: {_FIELDS_FILE} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FailedPrecondition(f"checkpoint {path}: {_FIELDS_FILE} is not of format {FORMAT}")
    if not isinstance(found.get("fields"), dict) or not isinstance(found.get("tensors"), dict):
        raise FailedPrecondition(f"checkpoint {path}: {_FIELDS_FILE} has no fields or no tensors")
    return found


class _Checkpoint:
    """One save or load, as one rank sees it."""

    def __init__(self, call: str, path: PathLike, client: Client, dense: Optional[Mapping[str, Any]],
                 all_gather: Optional[AllGather]) -> None:
        if client.closed:
            raise FailedPrecondition(f"{call} was called after close")
        self.path, self.dense = Path(path), dict(dense or {})
        self.in_force, self.placement = client.placement, client.row_placement
        self.partial = _beside(self.path, ".partial")
        self.sharded_state, self.fields, self.found = False, {}, {}
        self.rank, self.world_size = client.options.rank or 0, client.options.world_size or 1
        pipeline_stages = client.options.pipeline_parallel_size or 1
        self.tensor_parallel = client.options.expert_tensor_parallel or 1
        # The order of placement/rank_grid.h; EP groups are those of this rank's pipeline stage.
        block = self.world_size // pipeline_stages
        self.pipeline_stage, in_block = divmod(self.rank, block)
        copy, in_copy = divmod(in_block, self.tensor_parallel * self.placement.num_gpus)
        self.gpu, self.piece = divmod(in_copy, self.tensor_parallel)
        self.ep_group = copy * self.tensor_parallel + self.piece
        self.num_ep_groups = block // self.placement.num_gpus
        self.tensors: Dict[str, Dict[str, Any]] = {}  # tensors of all pipeline stages, once they met
        self.experts: List[Tuple[Registered, Any]] = [(entry, entry.rows.tensor) for entry in client.registered
                                                      if entry.rows is not None]
        if all_gather is None and client.all_gather is None:
            raise InvalidArgument("all_gather: missing: this client met the others through the daemon, which carries nothing "
                                  "after the start")
        self._all_gather: Any = all_gather if all_gather is not None else client.all_gather

    def begin_save(self, fields: Mapping[str, Any], sharded_state: bool) -> None:
        self._check_dense()
        self.fields, self.sharded_state = _as_json(fields), sharded_state

    def begin_load(self, fields: Mapping[str, Any]) -> None:
        self._check_dense()
        self.found, self.fields = read_fields(self.path), _as_json(fields)
        self.sharded_state = bool(self.found.get("sharded_state"))

    def _check_dense(self) -> None:
        for name, tensor in self.dense.items():
            if not (_rows.is_torch(tensor) or isinstance(tensor, np.ndarray)):
                raise InvalidArgument(f"dense tensor \"{name}\" is of type {type(tensor).__name__}, expected a torch tensor or "
                                      "a numpy array")
            if name in {entry.name for entry, _ in self.experts}:
                raise InvalidArgument(f"tensor \"{name}\" is dense, and registered as experts'")

    def meet(self) -> None:
        """Learns what tensors there are on all pipeline stages. errors: FailedPrecondition for a name that two have."""
        mine = {entry.name: {"dtype": _rows.dtype_of(tensor), "role": entry.role, "layer": entry.layer}
                for entry, tensor in self.experts}
        is_first = self.ep_group == 0 and self.gpu == 0
        for answer in self._all_gather(json.dumps(mine if is_first else {}).encode()):
            for name, what in json.loads(bytes(answer)).items():
                if name in self.tensors:
                    raise FailedPrecondition(f"tensor \"{name}\" is registered by two pipeline stages, for layers "
                                             f"{self.tensors[name]['layer']} and {what['layer']}: a checkpoint needs another "
                                             f"name for each")
                self.tensors[name] = what

    def on_all_ranks(self, part: Callable[[], None]) -> None:
        """Does this rank's part, and waits for all ranks. errors: the same on every rank, naming the first that failed."""
        error = ""
        try:
            part()
        except (Error, OSError) as failure:
            error = str(failure)
        except Exception as failure:  # whatever it is: the others wait for an answer
            error = f"{type(failure).__name__}: {failure}"
        for rank, answer in enumerate(self._all_gather(error.encode())):
            if answer:
                text = bytes(answer).decode("utf-8", "replace")
                raise FailedPrecondition(text if self.world_size == 1 else f"rank {rank}: {text}")

    def make_directory(self) -> None:
        expect_replaceable(self.path, _FIELDS_FILE)
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)
        for name, tensor in self.dense.items():
            np.save(self.partial / _file_of(name), _to_numpy(tensor))
            sync(self.partial / _file_of(name))

    def create_files(self) -> None:
        """Those that this EP group writes, on its first rank."""
        for entry, tensor in self._written():
            row = _to_numpy(tensor[:1])
            shape = (self.placement.num_experts, *row.shape[1:])
            np.lib.format.open_memmap(self.partial / self._file(entry), mode="w+", dtype=row.dtype, shape=shape)

    def write_rows(self) -> None:
        for entry, tensor in self._written():
            rows = np.load(self.partial / self._file(entry), mmap_mode="r+")
            primaries = self.placement.logical_to_physical_map[entry.layer, :, 0]
            for slot, expert in self._local_experts(entry.layer):
                if primaries[expert] == self.placement.first_local_slot + slot:
                    rows[expert:expert + 1] = _to_numpy(tensor[slot:slot + 1])
            rows.flush()
            del rows
            sync(self.partial / self._file(entry))
        sync(self.partial)  # the names of its files

    def finish(self) -> None:
        tensors: Dict[str, Dict[str, Any]] = {name: {"dtype": _rows.dtype_of(tensor), "role": "dense"}
                                              for name, tensor in self.dense.items()}
        tensors.update(self.tensors)
        written = {"format": FORMAT, "fields": self.fields, "num_layers": self.placement.num_layers,
                   "num_experts": self.placement.num_experts, "sharded_state": self.sharded_state,
                   "num_ep_groups": self.num_ep_groups, "expert_tensor_parallel": self.tensor_parallel, "tensors": tensors,
                   "placement_version": self.in_force.version, "placement_digest": self.in_force.digest,
                   "physical_to_logical_map": self.in_force.physical_to_logical_map.tolist()}
        (self.partial / _FIELDS_FILE).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
        sync(self.partial / _FIELDS_FILE)
        put_in_place(self.partial, self.path)

    def compare(self) -> None:
        """errors: FailedPrecondition naming the first field or tensor that is not as this run needs it."""
        found = self.found
        for name, value in self.fields.items():
            if name not in found["fields"]:
                raise self._refused(f"it has no field {name}")
            if found["fields"][name] != value:
                raise self._refused(f"field {name} is {found['fields'][name]!r}, this run's is {value!r}")
        found = {"expert_tensor_parallel": 1, **found}
        needed = {"num_layers": self.placement.num_layers, "num_experts": self.placement.num_experts,
                  "expert_tensor_parallel": self.tensor_parallel}
        if self.sharded_state:
            needed["num_ep_groups"] = self.num_ep_groups
        for name, number in needed.items():
            if found.get(name) != number:
                raise self._refused(f"{name} is {found.get(name)}, this run's is {number}")
        mine = {**{name: "dense" for name in self.dense}, **{name: what["role"] for name, what in self.tensors.items()}}
        for name in found["tensors"]:
            if name not in mine:
                raise self._refused(f"it has a tensor {name}, this run has none of that name")
        for name, role in mine.items():
            if name not in found["tensors"]:
                raise self._refused(f"it has no tensor {name}")
            if found["tensors"][name].get("role") != role:
                raise self._refused(f"tensor {name} is of role {found['tensors'][name].get('role')}, this run's is {role}")
        for name, tensor in self.dense.items():
            self._open(name, _file_of(name), found, tensor, tuple(tensor.shape))
        for entry, tensor in self.experts:
            self._open(entry.name, self._file(entry), found, tensor, (self.placement.num_experts, *tensor.shape[1:]))

    def read_rows(self) -> None:
        """REQUIRES: compare found nothing."""
        for name, tensor in self.dense.items():
            _set(tensor, np.load(self.path / _file_of(name), mmap_mode="r"))
        for entry, tensor in self.experts:
            rows = np.load(self.path / self._file(entry), mmap_mode="r")
            for slot, expert in self._local_experts(entry.layer):
                _set(tensor[slot:slot + 1], rows[expert:expert + 1])

    def _written(self) -> Iterator[Tuple[Registered, Any]]:
        """Yields the tensors that this rank's EP group writes: its own pieces, and shared ones if it is the first group."""
        is_first = self.ep_group < self.tensor_parallel
        return ((entry, tensor) for entry, tensor in self.experts if is_first or self._is_sharded(entry))

    def _is_sharded(self, entry: Registered) -> bool:
        return self.sharded_state and entry.role == "state"

    def _file(self, entry: Registered) -> str:
        if self._is_sharded(entry):
            return _file_of(entry.name, f".ep_group{self.ep_group}")
        return _file_of(entry.name, f".piece{self.piece}" if self.tensor_parallel > 1 else "")

    def _local_experts(self, layer: int) -> List[Tuple[int, int]]:
        """(local slot, expert) of the slots that are in use."""
        return [(slot, expert) for slot, expert in enumerate(self.placement.local_experts(layer).tolist()) if expert >= 0]

    def _open(self, name: str, file: str, found: Mapping[str, Any], like: Any, shape: Tuple[int, ...]) -> None:
        try:
            rows = np.load(self.path / file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._refused(f"tensor {name} cannot be read: {error}") from None
        dtype = found["tensors"][name].get("dtype")
        if rows.shape != shape or dtype != _rows.dtype_of(like):
            raise self._refused(f"tensor {name} is {dtype} {list(rows.shape)}, this run's is {_rows.dtype_of(like)} {list(shape)}")
        if rows.dtype != _numpy_dtype_of(like):
            raise self._refused(f"tensor {name}: its file has {rows.dtype}, {_FIELDS_FILE} has {dtype}")

    def _refused(self, why: str) -> FailedPrecondition:
        return FailedPrecondition(f"checkpoint {self.path}: {why}")


def expect_replaceable(path: Path, fields_file: str) -> None:
    """errors: FailedPrecondition for a path where something else lies than a checkpoint, which has fields_file, or an empty
    directory."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FailedPrecondition(f"checkpoint {path}: something else than a directory has that name; it is left as it is")
    if path.is_dir() and not (path / fields_file).is_file() and any(path.iterdir()):
        raise FailedPrecondition(f"checkpoint {path}: a directory of that name has no {fields_file}, so it is no checkpoint; "
                                 "it is left as it is")


def put_in_place(partial: Path, path: Path) -> None:
    """Renames a complete checkpoint whose files are on the disk; the one before is away only afterwards. A computer that
    loses its power has one of the two. errors: OSError."""
    old = _beside(path, ".old")
    sync(partial)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(partial, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk. errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path, suffix: str) -> Path:
    if path.name in ("", ".."):
        raise InvalidArgument(f"path: {path}, expected one that ends in a name")
    return path.with_name(path.name + suffix)


def _as_json(fields: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns fields as read back from a file. errors: InvalidArgument naming the field that JSON does not have."""
    found = {}
    for name, value in fields.items():
        try:
            found[str(name)] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"field {name}: {error}") from None
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _nothing() -> None:
    pass


def _file_of(name: str, part: str = "") -> str:
    return quote(name, safe="") + part + ".npy"


def _numpy_dtype_of(tensor: Any) -> np.dtype:
    """Returns the type of the elements that _to_numpy gives."""
    return np.dtype(tensor.dtype) if not _rows.is_torch(tensor) else _to_numpy(tensor.new_empty(0, device="cpu")).dtype


def _to_numpy(tensor: Any) -> np.ndarray:
    """Its elements; those of a type that numpy does not have as integers of the same bits."""
    if not _rows.is_torch(tensor):
        return np.asarray(tensor)
    plain = tensor.detach().cpu().contiguous()
    try:
        return plain.numpy()
    except TypeError:
        return plain.view(_integers_like(plain)).numpy()


def _set(tensor: Any, values: np.ndarray) -> None:
    if not _rows.is_torch(tensor):
        tensor[...] = values
        return
    import torch

    source = torch.from_numpy(np.array(values))
    if source.dtype != tensor.dtype:
        source = source.view(tensor.dtype)
    with torch.no_grad():
        tensor.copy_(source)


def _integers_like(tensor: Any) -> Any:
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
