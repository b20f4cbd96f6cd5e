"""Finds per-expert tensors of a torch module and its optimizer that are not registered."""

from __future__ import annotations

import fnmatch
import itertools
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple, Union

from eplb import _rows
from eplb.errors import FailedPrecondition

if TYPE_CHECKING:
    from eplb._registry import Registry
    from eplb.client import Client

# Tensors that a message names.
_MAX_NAMED = 20
# Groups of an optimizer of which each may have masters of registered parameters, or none.
_MAX_GROUPS = 8

# A number that is a part of a name, or ends one: of an element of a list, or of tensors that are listed by name alone.
_NUMBER = re.compile(r"(?<!\d)\d+(?=\.|$)")
# One that is all of a part: of an element of a list of modules.
_ELEMENT = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
_OF_OPTIMIZER = "optimizer."
_AN_ELEMENT = re.compile(r"\d+(\.|$)")
_ROUTER = re.compile(r"rout|gate|gating|(^|\.)wg\.", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """A tensor that looks like it belongs to experts. reason: a clause that follows its name."""

    name: str
    shape: Tuple[int, ...]
    reason: str

    @property
    def ignore(self) -> str:
        """The pattern that silences it, and what has its name in other layers."""
        return _ELEMENT.sub("*", self.name)


def find_unregistered(client: Client, module: Any, optimizer: Any = None,
                      ignore: Union[str, Iterable[str]] = ()) -> List[Finding]:
    """Returns the parameters, buffers and optimizer state that look like experts' and are not registered. These look like it:

    - a first dimension of local slots, or of all slots if those are not the experts; or [layers, local slots, ..]. A tensor of one
      dimension counts in modules that hold registered rows or are named after experts. A router's
      tensor [experts, ..] stays in place; if a GPU has as many slots as there are experts, `ignore` must name it. A DTensor
      counts by its piece on this rank;
    - a list of submodules, parameters or buffers, as many as local slots, of one shape, also one by name alone (weight0, ..).
      Its name has "expert" in it, or each element has a row of a registered tensor, or a router or registered rows are beside
      it;
    - state of a parameter whose memory is registered; - a flat buffer, or state as long, that holds several experts'
    registered weights: it cannot be cut by slot. An fp32 master that an optimizer updates in a parameter's place is matched by
    shape or size and order. Scalar state is ignored. Names of state are "optimizer.NAME.KEY". ignore: patterns as of fnmatch;
    Finding.ignore is one that silences a finding. cost: O(n log n) for n tensors. errors: FailedPrecondition after close, and
    if nothing was found on a rank of one local slot, where nothing can be told.
    """
    if client.closed:
        raise FailedPrecondition("check was called after close")
    walk = _Walk(client)
    walk.module(module)
    if optimizer is not None:
        walk.optimizer(optimizer)
    patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    found = [each for each in walk.found if not any(fnmatch.fnmatch(each.name, pattern) for pattern in patterns)]
    if not found and client.placement.num_local_slots == 1:
        raise FailedPrecondition("check: this rank has one local slot, where a forgotten tensor of an expert looks like any "
                                 "other; nothing was found, but that cannot be relied on: check a run of fewer ranks, or call "
                                 "check_experts, which looks at what experts compute")
    return found


def any_number(name: str) -> str:
    """Returns the pattern of a tensor's name, and of those that differ from it in numbers."""
    return _NUMBER.sub("*", name)


def describe(found: Sequence[Finding]) -> str:
    """One sentence that names them all, up to 20, and the patterns that silence those."""
    lines = [f"\"{each.name}\" {list(each.shape)}: {each.reason}" for each in found[:_MAX_NAMED]]
    patterns = ", ".join(f"\"{pattern}\"" for pattern in dict.fromkeys(each.ignore for each in found[:_MAX_NAMED]))
    lines.append(f"ignore=[{patterns}] silences them where they are no experts'")
    more = [f"and {len(found) - _MAX_NAMED} more"] if len(found) > _MAX_NAMED else []
    what = "1 tensor looks" if len(found) == 1 else f"{len(found)} tensors look"
    return f"check: {what} like experts' and would stay behind when they move: " + "; ".join(lines + more)


class _Memory:
    """The bytes of the registered tensors, as sorted pieces."""

    def __init__(self, registry: Registry) -> None:
        rows = [entry.rows for entry in registry if entry.rows is not None]
        owners = {(each.base + i * each.row_stride, each.row_bytes): number
                  for number, each in enumerate(rows) for i in range(each.num_rows)}
        self._pieces = sorted(owners)
        self._owners = [owners[piece] for piece in self._pieces]
        self._starts = [start for start, _ in self._pieces]
        self.row_elements = sorted({(entry.layer, entry.name, entry.rows.tensor[0].nelement())
                                    for entry in registry if entry.role == "weight" and entry.rows is not None
                                    and hasattr(entry.rows.tensor, "nelement")})

    def touched(self, tensor: Any) -> Tuple[int, int]:
        """Bytes and rows of registered memory between the first and the last byte of a tensor."""
        common = [size for _, size in self._common(tensor)]
        return sum(common), len(common)

    def rows_of(self, tensor: Any) -> List[int]:
        """For each row that it touches, the number of the registered tensor whose row it is."""
        return [self._owners[i] for i, _ in self._common(tensor)]

    def _common(self, tensor: Any) -> Iterator[Tuple[int, int]]:
        """The pieces that a tensor touches, and in how many bytes."""
        tensor = _rows.local_of(tensor)
        if tensor.numel() == 0 or str(tensor.layout) != "torch.strided":
            return
        begin = tensor.data_ptr()
        span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
        end = begin + span * tensor.element_size()
        for i in range(max(0, bisect_right(self._starts, begin) - 1), len(self._pieces)):
            start, size = self._pieces[i]
            if start >= end:
                break
            common = min(end, start + size) - max(begin, start)
            if common > 0:
                yield i, common


class _Lists:
    """Which lists of a module are experts', and not its layers, heads or blocks."""

    def __init__(self, tensors: Sequence[Tuple[str, Any]], memory: _Memory, num_experts: int) -> None:
        self._tensors = tensors
        self._rows = {name: memory.rows_of(tensor) for name, tensor in tensors}
        self._routers = {name for name, tensor in tensors
                         if _ROUTER.search(".".join(name.split(".")[-2:])) and 1 <= tensor.dim() <= 2
                         and num_experts > 1 and num_experts in tensor.shape}
        self._known: Dict[Tuple[str, bool], bool] = {}

    def are_experts(self, family: str) -> bool:
        """family: a name with * for the number of an element."""
        prefix, suffix = family.split("*", 1)
        key = (prefix, suffix == "")
        if key not in self._known:
            self._known[key] = self._look(prefix, of_modules=suffix != "")
        return self._known[key]

    def _look(self, prefix: str, of_modules: bool) -> bool:
        named = "expert" in prefix.lower()
        if of_modules:
            rows = self._rows_by_element(prefix)
            if any(len(each) > len(set(each)) for each in rows.values()):
                return False  # all slots of a layer are in one element
            if not named and any(name in self._routers for name in self._inside(prefix)):
                return False
            if named or all(rows.values()):
                return True
        return named or any(self._rows[name] or name in self._routers for name in self._beside(prefix, of_modules))

    def _inside(self, prefix: str) -> Iterator[str]:
        """Names of tensors in the elements of a list."""
        return (name for name, _ in self._tensors if name.startswith(prefix) and _AN_ELEMENT.match(name, len(prefix)))

    def _rows_by_element(self, prefix: str) -> Dict[str, List[int]]:
        rows: Dict[str, List[int]] = {}
        for name in self._inside(prefix):
            rows.setdefault(name[len(prefix):].split(".")[0], []).extend(self._rows[name])
        return rows

    def _beside(self, prefix: str, of_modules: bool) -> Iterator[str]:
        """Yields the names of tensors in the layer of a list but outside of the list. If the list is in no layer, they are
        those of the module that has it, but not those in its other lists of modules.
        """
        inside = set(self._inside(prefix))
        container = prefix.rpartition(".")[0]
        layers = list(_ELEMENT.finditer(container))
        if layers:
            scope, deep = container[:layers[-1].end()] + ".", True
        else:
            outer = container.rpartition(".")[0] if of_modules or "." in container else ""
            scope, deep = outer + "." if outer else "", not of_modules
        return (name for name, _ in self._tensors if name.startswith(scope) and name not in inside
                and (deep or not _ELEMENT.search(name[len(scope):])))


class _Walk:
    def __init__(self, client: Client) -> None:
        placement = client.placement
        self._layers, self._local_slots = placement.num_layers, placement.num_local_slots
        self._slots, self._experts = placement.num_slots, placement.num_experts
        self._memory = _Memory(client.registered)
        self._around: Set[str] = set()  # names of the modules that have registered rows, each ending in "."
        self._flat_sizes, self._flat_totals = self._sizes_of_flat_buffers()
        self._names: Dict[int, str] = {}
        self._parameters: List[Any] = []
        self.found: List[Finding] = []

    def module(self, module: Any) -> None:
        siblings: Dict[Tuple[str, Tuple[int, ...]], List[Tuple[int, Any]]] = {}
        self._parameters = list(module.parameters())
        tensors = list(_tensors_of(module))
        for name, tensor in tensors:
            self._names[id(tensor)] = name
            if self._is_covered(tensor):
                self._around.update(name[:end + 1] for end, letter in enumerate(name) if letter == ".")
        for name, tensor in tensors:
            if self._is_covered(tensor):
                continue
            if not self._is_found(name, tensor, self._flat_totals):
                for match in _NUMBER.finditer(name):
                    family = name[:match.start()] + "*" + name[match.end():]
                    siblings.setdefault((family, tuple(tensor.shape)), []).append((int(match.group()), tensor))
        lists = _Lists(tensors, self._memory, self._experts)
        for (family, _), members in siblings.items():
            if len(members) == self._local_slots > 1 and _is_list(family, [number for number, _ in members]) \
                    and lists.are_experts(family):
                self._add(family, members[0][1], f"{len(members)} of one shape, as many as local slots; stack them into one "
                                                 f"tensor [local slots, ..] and register that")

    def optimizer(self, optimizer: Any) -> None:
        updated = list(_parameters_of(optimizer))
        masters = self._masters(optimizer.param_groups)
        for number, parameter in enumerate(updated):
            master_of = masters.get(id(parameter))
            name = self._names.get(id(parameter if master_of is None else master_of))
            _, rows = self._memory.touched(parameter if master_of is None else master_of)
            sizes = self._flat_totals
            if name is None:
                name, sizes = f"param_groups parameter {number}", self._flat_sizes
                if not self._is_covered(parameter):
                    self._is_found(f"optimizer.{name}", parameter, sizes)
            elif master_of is not None and not self._is_covered(parameter):
                self._master(f"optimizer.{name}", parameter, rows)
            for key, tensor in optimizer.state.get(parameter, {}).items():
                if hasattr(tensor, "data_ptr"):
                    self._state(f"optimizer.{name}.{key}", tensor, parameter, rows, sizes)

    def _masters(self, groups: Sequence[Mapping[str, Any]]) -> Dict[int, Any]:
        """By id: of what the optimizer updates and no module has, the parameter that it stands for, as far as shapes, or
        sizes where they are flat, leave no doubt."""
        group_of = {id(each): number for number, group in enumerate(groups) for each in group["params"]}
        masters = [each for group in groups for each in group["params"]
                   if id(each) not in self._names and self._memory.touched(each)[1] == 0]
        parameters = [each for each in self._parameters if id(each) not in group_of and each.requires_grad]
        found: Dict[int, Any] = {}
        for key in (lambda each: tuple(each.shape), lambda each: each.numel()):
            meant = _classes(parameters, key)
            for of_key, alike in _classes([each for each in masters if id(each) not in found], key).items():
                found.update(self._matched(alike, meant.get(of_key, []), group_of))
        return found

    def _matched(self, masters: Sequence[Any], parameters: Sequence[Any], group_of: Mapping[int, int]) -> Dict[int, Any]:
        """Those of one shape. Masters are in the order of the parameters, group by group; a group has those of registered
        parameters or those of others. Empty where it may be this way or that."""
        by_group = list(_classes(masters, lambda each: group_of[id(each)]).values())
        registered = [each for each in parameters if self._memory.touched(each)[1] > 0]
        others = [each for each in parameters if self._memory.touched(each)[1] == 0]
        if len(by_group) == 1 and len(masters) == len(parameters):
            return {id(master): parameter for master, parameter in zip(masters, parameters)}
        ways: List[Dict[int, Any]] = []
        for choice in itertools.product((registered, others), repeat=min(len(by_group), _MAX_GROUPS)):
            mine = {id(kind): [master for group, kind_of in zip(by_group, choice) if kind_of is kind for master in group]
                    for kind in (registered, others)}
            if all(len(mine[id(kind)]) in (0, len(kind)) for kind in (registered, others)):
                ways.append({id(master): parameter for kind in (registered, others)
                             for master, parameter in zip(mine[id(kind)], kind)})
        return ways[0] if len(ways) == 1 and len(by_group) <= _MAX_GROUPS else {}

    def _master(self, name: str, tensor: Any, num_rows: int) -> None:
        if num_rows > 0:
            self._add(name, tensor, "what the optimizer updates in the place of a registered weight")
        elif self._looks_stacked(name, tensor):
            self._add(name, tensor, self._stacked())

    def _is_found(self, name: str, tensor: Any, flat_sizes: Set[int]) -> bool:
        """Notes a tensor that by itself looks like several experts'. REQUIRES: it is not covered."""
        if self._looks_stacked(name, tensor):
            self._add(name, tensor, self._stacked())
        elif self._is_flat(tensor, flat_sizes):
            self._add(name, tensor, "a flat buffer that holds several experts' weights; no slot's bytes can be cut out of it")
        else:
            return False
        return True

    def _stacked(self) -> str:
        return f"its first dimensions are those of this rank's slots ({self._local_slots} local, {self._slots} in all)"

    def _state(self, name: str, tensor: Any, parameter: Any, num_rows: int, flat_sizes: Set[int]) -> None:
        if tensor.numel() < 2 or self._is_covered(tensor):
            return
        of_parameter = name.rpartition(".")[0]
        if tensor.dim() == 1 and num_rows > 1 and parameter.dim() == 1 and self._memory.touched(parameter)[1] > 1 \
                and not self._looks_stacked(of_parameter, tensor):
            self._add(name, tensor, f"a flat optimizer buffer across the experts of {num_rows} registered rows; it cannot "
                                    f"move with one of them: let the optimizer cut at expert borders")
        elif self._is_flat(tensor, flat_sizes):
            self._add(name, tensor, "a flat optimizer buffer across experts, as long as all registered weights of a layer; it "
                                    "cannot move with one of them: let the optimizer cut at expert borders")
        elif num_rows > 0:
            self._add(name, tensor, "optimizer state of a registered weight")
        elif self._looks_stacked(of_parameter, tensor):
            self._add(name, tensor, self._stacked())

    def _is_covered(self, tensor: Any) -> bool:
        """Every byte of it moves with an expert."""
        num_bytes, _ = self._memory.touched(tensor)
        tensor = _rows.local_of(tensor)
        return num_bytes > 0 and num_bytes >= tensor.numel() * tensor.element_size()

    def _looks_stacked(self, name: str, tensor: Any) -> bool:
        shape = tuple(tensor.shape)
        if len(shape) == 1 and self._is_elsewhere(name):
            return False  # such as the frequencies of a rotary embedding, which may be as many as local slots
        if _rows.is_dtensor(tensor):  # whose shape is that on all ranks together
            local = tuple(_rows.local_of(tensor).shape)
            return len(shape) > 2 and shape[0] in (self._experts, self._slots) and local[0] == self._local_slots > 1
        # A first dimension of 1 says nothing.
        of_slots = {self._local_slots} - {1}
        if self._slots != self._experts:
            of_slots.add(self._slots)
        if shape[:1] and shape[0] in of_slots:
            return True
        return len(shape) > 1 and shape[0] == self._layers and shape[1] in of_slots

    def _is_elsewhere(self, name: str) -> bool:
        """True for a tensor of a named module that neither holds registered rows nor is named after experts, if some do."""
        owner = name[len(_OF_OPTIMIZER) if name.startswith(_OF_OPTIMIZER) else 0:name.rfind(".") + 1]
        return bool(owner and self._around) and owner not in self._around and "expert" not in owner.lower()

    def _is_flat(self, tensor: Any, sizes: Set[int]) -> bool:
        if tensor.dim() != 1 or tensor.numel() < 2:
            return False
        num_bytes, num_rows = self._memory.touched(tensor)
        return num_rows > 1 and num_bytes > 0 or tensor.numel() in sizes

    def _sizes_of_flat_buffers(self) -> Tuple[Set[int], Set[int]]:
        """Elements of all local slots: of each tensor, of all tensors of a layer, and of all layers; and the same without
        single tensors, as long as which a dense bias may be."""
        by_layer: Dict[int, List[int]] = {}
        for layer, _, elements in self._memory.row_elements:
            by_layer.setdefault(layer, []).append(elements)
        whole = sum(sum(each) for each in by_layer.values())
        totals = {sum(each) for each in by_layer.values() if len(each) > 1}
        if totals:
            totals.add(whole)
        singles = {elements for each in by_layer.values() for elements in each} | {whole}
        return self._over_slots(singles | totals), self._over_slots(totals)

    def _over_slots(self, sizes: Set[int]) -> Set[int]:
        return {size * self._local_slots for size in sizes if size > 1 and self._local_slots > 1}

    def _add(self, name: str, tensor: Any, reason: str) -> None:
        self.found.append(Finding(name, tuple(tensor.shape), reason))


def _is_list(family: str, numbers: List[int]) -> bool:
    """Elements of a list may be those of this rank alone; numbers that only end a word are one if they count from 0, which
    w1 and w3 or fc1 and fc2 do not."""
    before = family[:family.index("*")]
    return not before or before.endswith(".") or sorted(numbers) == list(range(len(numbers)))


def _classes(tensors: Iterable[Any], key: Callable[[Any], Any]) -> Dict[Any, List[Any]]:
    """In the order of the first of each."""
    found: Dict[Any, List[Any]] = {}
    for each in tensors:
        found.setdefault(key(each), []).append(each)
    return found


def _tensors_of(module: Any) -> Iterator[Tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]
