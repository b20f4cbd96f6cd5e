"""Finds per-expert tensors of a torch module and its optimizer that nobody registered."""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Sequence, Tuple

from eplb.errors import FailedPrecondition

if TYPE_CHECKING:
    from eplb._registry import Registry
    from eplb.client import Client

# Tensors that a message names.
_MAX_NAMED = 20

# A number that is a part of a name, or ends one: of an element of a list, or of tensors that are listed by name alone.
_NUMBER = re.compile(r"(?<!\d)\d+(?=\.|$)")


@dataclass(frozen=True)
class Finding:
    """A tensor that looks like it belongs to experts. reason: a clause that follows its name."""

    name: str
    shape: Tuple[int, ...]
    reason: str


def find_unregistered(client: Client, module: Any, optimizer: Any = None,
                      ignore: Iterable[str] = ()) -> List[Finding]:
    """What of a module's parameters and buffers and of an optimizer's parameters and state looks like experts' and is not
    registered:

    - a first dimension of local slots, or of all slots where those are not the experts; or [layers, local slots, ..].
      A tensor [experts, ..] of a router is equal on all ranks and stays where it is; where a GPU has as many slots as
      there are experts it cannot be told from those, and is named in `ignore`;
    - a list of submodules, parameters or buffers, as many as local slots, of one shape: one expert each. Also one by name
      alone, as weight0, weight1, .. from 0 on;
    - state of a parameter whose memory is registered: it belongs to the experts that the parameter does;
    - a flat buffer, or state as long, that holds several experts' registered weights: no slot's bytes can be cut out.
    What an optimizer updates in the place of a module's parameters, such as fp32 master weights, is looked at by its first
    dimensions and as a flat buffer; there are no names by which a list could be told.
    Scalar state, such as a step counter that all experts share, is not looked at. Names of state are "optimizer.NAME.KEY".
    ignore: patterns as of fnmatch. cost: O(n log n) for n tensors; nothing is copied from a GPU.
    errors: FailedPrecondition after close, and where nothing was found on a rank of one local slot: there a tensor of an
    expert looks like any other, so that nothing found says nothing.
    """
    if client.closed:
        raise FailedPrecondition("check was called after close")
    walk = _Walk(client)
    walk.module(module)
    if optimizer is not None:
        walk.optimizer(optimizer)
    patterns = tuple(ignore)
    found = [each for each in walk.found if not any(fnmatch.fnmatch(each.name, pattern) for pattern in patterns)]
    if not found and client.placement.num_local_slots == 1:
        raise FailedPrecondition("check: this rank has one local slot, where a forgotten tensor of an expert looks like any "
                                 "other; nothing was found, but that cannot be relied on: check a run of fewer ranks, or call "
                                 "check_experts, which looks at what experts compute")
    return found


def describe(found: Sequence[Finding]) -> str:
    """One sentence that names them all, up to 20."""
    lines = [f"\"{each.name}\" {list(each.shape)}: {each.reason}" for each in found[:_MAX_NAMED]]
    more = [f"and {len(found) - _MAX_NAMED} more"] if len(found) > _MAX_NAMED else []
    what = "1 tensor looks" if len(found) == 1 else f"{len(found)} tensors look"
    return f"check: {what} like experts' and would stay behind when they move: " + "; ".join(lines + more)


class _Memory:
    """The bytes of the registered tensors, as sorted pieces."""

    def __init__(self, registry: Registry) -> None:
        rows = [entry.rows for entry in registry if entry.rows is not None]
        self._pieces = sorted({(each.base + i * each.row_stride, each.row_bytes)
                               for each in rows for i in range(each.num_rows)})
        self._starts = [start for start, _ in self._pieces]
        self.row_elements = sorted({(entry.layer, entry.name, entry.rows.tensor[0].nelement())
                                    for entry in registry if entry.role == "weight" and entry.rows is not None
                                    and hasattr(entry.rows.tensor, "nelement")})

    def touched(self, tensor: Any) -> Tuple[int, int]:
        """Bytes and rows of registered memory between the first and the last byte of a tensor."""
        if tensor.numel() == 0 or str(tensor.layout) != "torch.strided":
            return 0, 0
        begin = tensor.data_ptr()
        span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
        end = begin + span * tensor.element_size()
        num_bytes = num_rows = 0
        for i in range(max(0, bisect_right(self._starts, begin) - 1), len(self._pieces)):
            start, size = self._pieces[i]
            if start >= end:
                break
            common = min(end, start + size) - max(begin, start)
            if common > 0:
                num_bytes, num_rows = num_bytes + common, num_rows + 1
        return num_bytes, num_rows


class _Walk:
    def __init__(self, client: Client) -> None:
        placement = client.placement
        self._layers, self._local_slots = placement.num_layers, placement.num_local_slots
        self._slots, self._experts = placement.num_slots, placement.num_experts
        self._memory = _Memory(client.registered)
        self._flat_sizes = self._sizes_of_flat_buffers()
        self._names: Dict[int, str] = {}
        self.found: List[Finding] = []

    def module(self, module: Any) -> None:
        siblings: Dict[Tuple[str, Tuple[int, ...]], List[Tuple[int, Any]]] = {}
        for name, tensor in _tensors_of(module):
            self._names[id(tensor)] = name
            if self._is_covered(tensor):
                continue
            if not self._is_found(name, tensor):
                for match in _NUMBER.finditer(name):
                    family = name[:match.start()] + "*" + name[match.end():]
                    siblings.setdefault((family, tuple(tensor.shape)), []).append((int(match.group()), tensor))
        for (family, _), members in siblings.items():
            if len(members) == self._local_slots > 1 and _is_list(family, [number for number, _ in members]):
                self._add(family, members[0][1], f"{len(members)} of one shape, as many as local slots; stack them into one "
                                                 f"tensor [local slots, ..] and register that")

    def optimizer(self, optimizer: Any) -> None:
        for number, parameter in enumerate(_parameters_of(optimizer)):
            name = self._names.get(id(parameter))
            if name is None:
                name = f"param_groups parameter {number}"
                if not self._is_covered(parameter):
                    self._is_found(f"optimizer.{name}", parameter)
            _, rows = self._memory.touched(parameter)
            state = optimizer.state.get(parameter, {})
            for key, tensor in state.items():
                if hasattr(tensor, "data_ptr"):
                    self._state(f"optimizer.{name}.{key}", tensor, parameter, rows)

    def _is_found(self, name: str, tensor: Any) -> bool:
        """Notes a tensor that by itself looks like several experts'. REQUIRES: it is not covered."""
        if self._looks_stacked(tensor):
            self._add(name, tensor, f"its first dimensions are those of this rank's slots ({self._local_slots} local, "
                                    f"{self._slots} in all)")
        elif self._is_flat(tensor):
            self._add(name, tensor, "a flat buffer that holds several experts' weights; no slot's bytes can be cut out of it")
        else:
            return False
        return True

    def _state(self, name: str, tensor: Any, parameter: Any, num_rows: int) -> None:
        if tensor.numel() < 2 or self._is_covered(tensor):
            return
        if tensor.dim() == 1 and num_rows > 1 and parameter.dim() == 1 and not self._looks_stacked(tensor):
            self._add(name, tensor, f"a flat optimizer buffer across the experts of {num_rows} registered rows; it cannot "
                                    f"move with one of them: let the optimizer cut at expert borders")
        elif self._is_flat(tensor):
            self._add(name, tensor, "a flat optimizer buffer across experts, as long as all registered weights of a layer; it "
                                    "cannot move with one of them: let the optimizer cut at expert borders")
        elif num_rows > 0:
            self._add(name, tensor, "optimizer state of a registered weight")
        elif self._looks_stacked(tensor):
            self._add(name, tensor, f"its first dimensions are those of this rank's slots ({self._local_slots} local, "
                                    f"{self._slots} in all)")

    def _is_covered(self, tensor: Any) -> bool:
        """Every byte of it moves with an expert."""
        num_bytes, _ = self._memory.touched(tensor)
        return num_bytes > 0 and num_bytes >= tensor.numel() * tensor.element_size()

    def _looks_stacked(self, tensor: Any) -> bool:
        shape = tuple(tensor.shape)
        # A first dimension of 1 says nothing.
        of_slots = {self._local_slots} - {1}
        if self._slots != self._experts:
            of_slots.add(self._slots)
        if shape[:1] and shape[0] in of_slots:
            return True
        return len(shape) > 1 and shape[0] == self._layers and shape[1] in of_slots

    def _is_flat(self, tensor: Any) -> bool:
        if tensor.dim() != 1 or tensor.numel() < 2:
            return False
        num_bytes, num_rows = self._memory.touched(tensor)
        return num_rows > 1 and num_bytes > 0 or tensor.numel() in self._flat_sizes

    def _sizes_of_flat_buffers(self) -> "set[int]":
        """Elements of all local slots: of each tensor, of all tensors of a layer, and of all layers."""
        by_layer: Dict[int, int] = {}
        sizes = set()
        for layer, _, elements in self._memory.row_elements:
            by_layer[layer] = by_layer.get(layer, 0) + elements
            sizes.add(elements * self._local_slots)
        sizes |= {total * self._local_slots for total in by_layer.values()}
        sizes.add(sum(by_layer.values()) * self._local_slots)
        return {size for size in sizes if size > self._local_slots > 1}

    def _add(self, name: str, tensor: Any, reason: str) -> None:
        self.found.append(Finding(name, tuple(tensor.shape), reason))


def _is_list(family: str, numbers: List[int]) -> bool:
    """Elements of a list may be those of this rank alone; numbers that only end a word are one if they count from 0, which
    w1 and w3 or fc1 and fc2 do not."""
    before = family[:family.index("*")]
    return not before or before.endswith(".") or sorted(numbers) == list(range(len(numbers)))


def _tensors_of(module: Any) -> Iterator[Tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]
