"""What a rank has registered: collected one by one, handed over together, and watched for memory that goes away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Tuple

from eplb import _rows
from eplb import _structs as structs
from eplb._arguments import integer
from eplb._handle import Handle, Rebuild
from eplb.errors import InvalidArgument


@dataclass(frozen=True)
class Registered:
    """A tensor of one layer; rows and tensor are None for a derived one, which has `rebuild`."""

    name: str
    layer: int
    role: str
    rows: Optional[_rows.Rows]
    rebuild: Optional[Rebuild] = None


class Registry:
    """Keeps the tensors alive until clear(): a migration writes their memory. Threads: the training thread."""

    def __init__(self, num_local_slots: int) -> None:
        self.entries: List[Registered] = []
        self._names: Dict[str, int] = {}
        self._num_local_slots = num_local_slots
        self._watched: List[Tuple[Any, int, str]] = []  # torch tensors, whose storage can be exchanged

    def __iter__(self) -> Iterator[Registered]:
        return iter(self.entries)

    @property
    def device(self) -> str:
        """Of all tensors; "cpu" when there are none."""
        return next((entry.rows.device for entry in self.entries if entry.rows is not None), "cpu")

    def add(self, tensor: Any, name: str, layer: int, role: str) -> None:
        """errors: InvalidArgument naming the tensor."""
        if role not in ("weight", "state"):
            raise _rows.refused(name, f"has role {role!r}, expected \"weight\" or \"state\"; a derived one is "
                                      f"registered by register_derived")
        rows = _rows.rows_of(tensor, name, self._num_local_slots)
        if any(entry.rows is not None for entry in self.entries) and rows.device != self.device:
            first = next(entry.name for entry in self.entries if entry.rows is not None)
            raise _rows.refused(name, f"is on {rows.device}, tensor \"{first}\" is on {self.device}; a rank's experts "
                                      f"lie on one device")
        self._append(Registered(name, _layer(name, layer), role, rows))
        if _rows.is_torch(tensor):
            self._watched.append((tensor, rows.base, name))

    def add_derived(self, name: str, layer: int, rebuild: Rebuild) -> None:
        if not callable(rebuild):
            raise _rows.refused(name, f"has rebuild {rebuild!r}, expected a callable")
        self._append(Registered(name, _layer(name, layer), "derived", None, rebuild))

    def check_memory(self) -> None:
        """errors: InvalidArgument naming a tensor that does not lie where it was registered."""
        for tensor, base, name in self._watched:
            if tensor.data_ptr() != base:
                now = tensor.data_ptr()
                what = "was freed" if now == 0 else f"lies at {now:#x} now"
                raise _rows.refused(name, f"{what}, it was registered at {base:#x}: whoever all-gathers the memory of a "
                                          f"registered tensor (by .data =, .to(), resize_) leaves the experts behind; "
                                          f"copy into it instead")

    def to_structs(self, handle: Handle) -> Any:
        array = (structs.Tensor * len(self.entries))()
        for struct, entry in zip(array, self.entries):
            _fill(struct, entry, handle)
        return array

    def clear(self) -> None:
        self.entries, self._watched = [], []

    def _append(self, entry: Registered) -> None:
        if not isinstance(entry.name, str) or not entry.name or "\0" in entry.name:
            raise InvalidArgument(f"tensor name {entry.name!r}: expected text")
        if entry.name in self._names:
            raise _rows.refused(entry.name, f"registered twice, for layer {self._names[entry.name]} and {entry.layer}")
        self._names[entry.name] = entry.layer
        self.entries.append(entry)


def _layer(name: str, layer: Any) -> int:
    return integer(f"tensor \"{name}\": layer", layer)


def _fill(struct: structs.Tensor, entry: Registered, handle: Handle) -> None:
    struct.struct_size = structs.sized(structs.Tensor).struct_size
    struct.name, struct.layer, struct.role = entry.name.encode(), entry.layer, structs.ROLES[entry.role]
    if entry.rebuild is not None:
        struct.rebuild = handle.rebuild_callback(entry.rebuild)
    if entry.rows is not None:
        struct.base, struct.num_rows = entry.rows.base, entry.rows.num_rows
        struct.row_bytes, struct.row_stride = entry.rows.row_bytes, entry.rows.row_stride
