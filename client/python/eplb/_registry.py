"""The registered tensors of a rank, watched for memory that is freed or replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from eplb import _lists, _rows
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
        # Torch tensors, whose storage can be replaced: current address, address at registration, name.
        self._watched: List[Tuple[Callable[[], int], int, str]] = []

    def __iter__(self) -> Iterator[Registered]:
        return iter(self.entries)

    @property
    def device(self) -> str:
        """Device of all tensors; "cpu" if there are none."""
        return next((entry.rows.device for entry in self.entries if entry.rows is not None), "cpu")

    def add(self, tensor: Any, name: str, layer: int, role: str) -> None:
        """tensor: [local slots, ..], or a list of one of torch for each local slot, which become rows of one memory.

        errors: InvalidArgument naming the tensor; nothing was changed then."""
        if role not in ("weight", "state"):
            raise _rows.refused(name, f"has role {role!r}, expected \"weight\" or \"state\"; a derived one is "
                                      f"registered by register_derived")
        layer = _layer(name, layer)
        self._expect_new(name, layer)
        if isinstance(tensor, (list, tuple)):
            _lists.expect_alike(tensor, name, self._num_local_slots)
            self._expect_device(name, str(tensor[0].device))
            watched = [(each, f"{name}[{i}]") for i, each in enumerate(tensor)]
            tensor = _lists.stacked(tensor, name, layer, role)
        else:
            watched = [(tensor, name)] if _rows.is_torch(tensor) else []
        rows = _rows.rows_of(tensor, name, self._num_local_slots)
        self._expect_device(name, rows.device)
        self._append(Registered(name, layer, role, rows))
        for each, each_name in watched:
            address = _rows.address_function(each)
            self._watched.append((address, address(), each_name))

    def add_derived(self, name: str, layer: int, rebuild: Rebuild) -> None:
        if not callable(rebuild):
            raise _rows.refused(name, f"has rebuild {rebuild!r}, expected a callable")
        self._append(Registered(name, _layer(name, layer), "derived", None, rebuild))

    def check_memory(self) -> None:
        """errors: InvalidArgument naming a tensor that does not lie where it was registered."""
        for address, base, name in self._watched:
            now = address()
            if now != base:
                what = "was freed" if now == 0 else f"lies at {now:#x} now"
                raise _rows.refused(name, f"{what}, it was registered at {base:#x}: what gives a registered tensor "
                                          f"other memory (.data =, .to(), resize_) leaves its experts behind; copy into it "
                                          f"instead")

    def to_structs(self, handle: Handle) -> Any:
        array = (structs.Tensor * len(self.entries))()
        for struct, entry in zip(array, self.entries):
            _fill(struct, entry, handle)
        return array

    def clear(self) -> None:
        self.entries, self._watched = [], []

    def _expect_device(self, name: str, device: str) -> None:
        if any(entry.rows is not None for entry in self.entries) and device != self.device:
            first = next(entry.name for entry in self.entries if entry.rows is not None)
            raise _rows.refused(name, f"is on {device}, tensor \"{first}\" is on {self.device}; a rank's experts lie on one "
                                      f"device")

    def _expect_new(self, name: Any, layer: int) -> None:
        if not isinstance(name, str) or not name or "\0" in name:
            raise InvalidArgument(f"tensor name {name!r}: expected text")
        if name in self._names:
            raise _rows.refused(name, f"registered twice, for layer {self._names[name]} and {layer}")

    def _append(self, entry: Registered) -> None:
        self._expect_new(entry.name, entry.layer)
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
