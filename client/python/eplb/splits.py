"""The exact split of a batch: how many of an expert's tokens each of its slots takes, so that the fullest GPU has the fewest.

    split = client.split(layer, counts)               # under the current placement
    split = eplb.split(placement, counts, num_gpus=8)   # without a client and without a daemon

Equal counts give equal quotas on every rank and machine, so no rank waits for another. docs/splitting-a-batch.md explains it.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from eplb import _library, _rows
from eplb import _structs as structs
from eplb._arguments import integer, integers, numbers, real
from eplb._maps import Maps, known
from eplb._records import ArrayRecord
from eplb.errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Split(ArrayRecord):
    """The split of one layer of a batch. Arrays are int64, numpy or torch as the counts, on their device. There is no hash.

    quotas: [slots], tokens that each slot takes from all ranks. own: [slots], those from this rank (or `gpu`); None if the
        counts have no ranks. peak: load of the fullest GPU, tokens / speed. mean: over the usable GPUs. balancedness: mean /
        peak; None without tokens. equal_peak: `peak` with equal shares. tight_gpus: the proof: experts that only these GPUs
        hold have too many tokens for a lower peak. version: of the placement; 0 without a client.
    """

    layer: int
    quotas: Any = field(repr=False)
    own: Optional[Any] = field(repr=False)
    peak: float
    mean: float
    balancedness: Optional[float]
    equal_peak: float
    tight_gpus: Tuple[int, ...]
    version: int
    _host_own: Optional[np.ndarray] = field(repr=False, compare=False)  # memory that the library reads


@dataclass(frozen=True)
class SplitFigures:
    """Batches since client.prepare_split, and the newest split.

    batches: batches that route_from routed, on a GPU once the stream reached them. late, refused: those of them that drew their
        slots, because no split came by the deadline, or because split rejects the counts or a switch overtook them. drawn:
        choices that drew, on a GPU of all batches but the newest. Without late and refused batches it is 0 unless the gathered
        counts were not those of count_for. The rest as in Split.
    """

    batches: int
    late: int
    refused: int
    version: int
    peak: float
    mean: float
    balancedness: Optional[float]
    equal_peak: float
    drawn: int


def figures_of(filled: structs.SplitFigures) -> SplitFigures:
    return SplitFigures(batches=filled.batches, late=filled.late, refused=filled.refused, version=filled.version, peak=filled.peak,
                        mean=filled.mean, balancedness=filled.balancedness if filled.peak > 0 else None,
                        equal_peak=filled.equal_peak, drawn=filled.drawn)


class Splitter:
    """Splits batches under one placement, without a client. Threads: safe; calls run one after the other.

    placement: a Plan, client.placement, or integers [layers, slots], whose lowest slot is an expert's primary. num_gpus,
        num_nodes: needed if the placement does not have them. speeds: [num_gpus], relative; 0: no tokens and no expert. slack:
        0..1, part of the least peak by which a GPU may exceed it, so that fewer tokens leave the slots of equal shares.
    errors: InvalidArgument naming the argument. A layer is prepared at its first split.
    """

    def __init__(self, placement: Any, *, num_gpus: Optional[int] = None, num_nodes: Optional[int] = None,
                 speeds: Optional[Sequence[float]] = None, slack: float = 0.0) -> None:
        gpus = known("num_gpus", num_gpus, placement)
        maps = Maps(placement, gpus, known("num_nodes", num_nodes, placement, 1))
        options, kept = options_struct(speeds, slack)
        self.num_layers, self.num_slots, self.num_experts = maps.num_layers, maps.num_slots, maps.num_experts
        self.num_gpus = gpus
        self._handle = _SplitterHandle(maps, options)
        del kept  # the options point to it

    def split(self, layer: int, counts: Any, *, before: Any = None, mine: Any = None, gpu: Optional[int] = None) -> Split:
        """Returns the split as Client.split does. gpu: GPU whose own quotas are wanted, with counts [GPUs, experts]; None:
        none.
        """
        asked = None if gpu is None else integer("gpu", gpu)
        batch = BatchArrays(counts, before, mine, self.num_slots, self.num_gpus, asks_for_own=asked is not None)
        if asked is not None and not batch.struct.by_gpu:
            raise InvalidArgument(f"gpu: {asked} is given, but counts [experts] do not show whose tokens they are; "
                                  f"expected counts [GPUs, experts]")
        layer = integer("layer", layer)
        handle = self._handle
        _library.check(handle.library.eplb_splitter_split(handle.pointer, layer, ctypes.byref(batch.struct),
                                                          asked or 0, ctypes.byref(batch.result)))
        return batch.split(layer)


class _SplitterHandle:
    """An eplb_splitter, destroyed when no Splitter uses it any more; copies of a Splitter share it."""

    def __init__(self, maps: Maps, options: structs.SplitOptions) -> None:
        self.library = _library.load()
        plan, self.pointer = ctypes.c_void_p(), ctypes.c_void_p()
        _library.check(self.library.eplb_plan_from_maps(ctypes.byref(maps.struct), ctypes.byref(plan)))
        try:
            _library.check(self.library.eplb_splitter_create(plan, ctypes.byref(options), ctypes.byref(self.pointer)))
        finally:
            self.library.eplb_plan_destroy(plan)
        weakref.finalize(self, self.library.eplb_splitter_destroy, ctypes.c_void_p(self.pointer.value))

    def __deepcopy__(self, memo: Any) -> _SplitterHandle:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Splitter is memory of this process and cannot be pickled; pickle its placement, and make another")


def split(placement: Any, counts: Any, *, layer: int = 0, gpu: Optional[int] = None, num_gpus: Optional[int] = None,
          num_nodes: Optional[int] = None, speeds: Optional[Sequence[float]] = None, slack: float = 0.0) -> Split:
    """Splits one layer of one batch, without a client. A Splitter does the same for many batches, and prepares once.

    counts: integers [experts], or [GPUs, experts], of each source. gpu: whose own quotas are asked for, by [GPUs, experts].
    The rest as Splitter. errors: InvalidArgument naming what does not fit, before anything is computed.
    """
    splitter = Splitter(placement, num_gpus=num_gpus, num_nodes=num_nodes, speeds=speeds, slack=slack)
    return splitter.split(layer, counts, gpu=gpu)


class BatchArrays:
    """The arrays of one call and what points to them; `split` makes the answer of what the call filled in.

    asks_for_own: of counts [GPUs, experts]; own quotas by prefix are always asked for. errors: InvalidArgument for what are
    no integers, or not [experts] or [GPUs, experts]; the library checks the rest.
    """

    def __init__(self, counts: Any, before: Any, mine: Any, num_slots: int, num_gpus: int, asks_for_own: bool = True) -> None:
        self._like = counts
        given = integers("counts", counts, "[experts] or [GPUs, experts]")
        if given.ndim not in (1, 2) or given.size == 0:
            raise InvalidArgument(f"counts: shape {list(given.shape)}, expected [experts] or [GPUs, experts]")
        self._kept = [given]
        self.struct = structs.sized(structs.Batch, num_experts=given.shape[-1])
        if given.ndim == 1:
            self.struct.totals = given.ctypes.data
        else:
            self.struct.by_gpu, self.struct.num_gpus = given.ctypes.data, given.shape[0]
        for name, value in (("before", before), ("mine", mine)):
            if value is None:
                continue
            row = integers(name, value, "[experts]")
            if row.shape != given.shape[-1:]:
                raise InvalidArgument(f"{name}: shape {list(row.shape)}, expected [{given.shape[-1]}], as counts has experts")
            setattr(self.struct, name, row.ctypes.data)
            self._kept.append(row)
        self._quotas = np.empty(num_slots, np.int64)
        has_own = before is not None or (given.ndim == 2 and asks_for_own)
        self._own = np.empty(num_slots, np.int64) if has_own else None
        self._tight = np.empty(num_gpus, np.int32)
        self.result = structs.sized(structs.Split, quotas=self._quotas.ctypes.data, num_slots=num_slots,
                                    tight_gpus=self._tight.ctypes.data)
        if self._own is not None:
            self.result.own = self._own.ctypes.data

    def split(self, layer: int) -> Split:
        filled = self.result
        return Split(layer=layer, quotas=self._as_given(self._quotas),
                     own=None if self._own is None else self._as_given(self._own), peak=filled.peak, mean=filled.mean,
                     balancedness=filled.balancedness if filled.peak > 0 else None, equal_peak=filled.equal_peak,
                     tight_gpus=tuple(self._tight[:filled.num_tight_gpus].tolist()), version=filled.version,
                     _host_own=self._own)

    def _as_given(self, array: np.ndarray) -> Any:
        """A tensor on the device of the counts, where they are one."""
        if not _rows.is_torch(self._like):
            return array
        return sys.modules["torch"].from_numpy(array.copy()).to(self._like.device)


def options_struct(speeds: Optional[Sequence[float]], slack: float) -> Tuple[structs.SplitOptions, Any]:
    """returns: the struct, and what it points to."""
    struct = structs.sized(structs.SplitOptions, slack=real("slack", slack))
    if speeds is None:
        return struct, None
    array = np.ascontiguousarray(numbers("speeds", speeds, expected="numbers [GPUs]"), dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InvalidArgument(f"speeds: shape {list(array.shape)}, expected [GPUs]")
    struct.gpu_speeds, struct.num_gpus = array.ctypes.data, array.size
    return struct, array


def own_struct(split: Split) -> structs.Split:
    """Returns the part of a split that route_split reads. errors: InvalidArgument for one without own quotas."""
    if not isinstance(split, Split):
        raise InvalidArgument(f"split: {type(split).__name__}, expected what client.split returned")
    if split._host_own is None:
        raise InvalidArgument("split: it has no own quotas; give client.split counts [GPUs, experts], or before and mine")
    return structs.sized(structs.Split, own=split._host_own.ctypes.data, num_slots=split._host_own.size,
                         version=split.version)
