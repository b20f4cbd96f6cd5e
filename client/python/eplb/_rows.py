"""A numpy array or torch tensor as rows of memory, one for each local slot."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Callable, Sequence, Tuple

import numpy as np

from eplb.errors import InvalidArgument

_PAGE = " (docs/registering-tensors.md)"


@dataclass(frozen=True)
class Rows:
    """Row i is the row_bytes bytes at base + i * row_stride. device: "cpu" or "cuda:N". tensor: whose memory it is."""

    tensor: Any
    base: int
    num_rows: int
    row_bytes: int
    row_stride: int
    device: str


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def address_of(tensor: Any) -> int:
    """Returns the address of the first element; 0 if its memory was freed."""
    return tensor.data_ptr() if is_torch(tensor) else tensor.__array_interface__["data"][0]


def dtype_of(array: Any) -> str:
    """Returns the name of an element type, such as float32, of a numpy array or a torch tensor."""
    return str(array.dtype).replace("torch.", "")


def described(array: Any) -> str:
    """Returns a text such as "float32 [4, 8]"."""
    return f"{dtype_of(array)} {list(array.shape)}"


def is_dtensor(tensor: Any) -> bool:
    """True for a DTensor, such as a parameter of FSDP2 or TP; told by its attributes, because older torch has none."""
    return is_torch(tensor) and all(hasattr(tensor, each) for each in ("to_local", "placements", "device_mesh"))


def local_of(tensor: Any) -> Any:
    """The memory of a DTensor on this rank, without its history; any other tensor itself."""
    return tensor.detach().to_local().detach() if is_dtensor(tensor) else tensor


def address_function(tensor: Any) -> Callable[[], int]:
    """Gives the address of a torch tensor's memory at each call; it keeps the tensor."""
    return (lambda: int(local_of(tensor).data_ptr())) if is_dtensor(tensor) else tensor.data_ptr


def rows_of(tensor: Any, name: str, num_local_slots: int) -> Rows:
    """errors: InvalidArgument naming the tensor, for what is no tensor of one row of plain bytes for each local slot."""
    if is_dtensor(tensor):
        _expect_whole_experts(tensor, name, num_local_slots)
        tensor = local_of(tensor)
    shape, strides, itemsize, device = _layout_of(tensor, name)
    if not shape or shape[0] != num_local_slots:
        raise refused(name, f"has shape {list(shape)}, its first dimension must be the {num_local_slots} local slots of "
                            f"this rank's GPU")
    row_bytes = itemsize * int(np.prod(shape[1:], dtype=np.int64))
    if not _is_one_piece(shape[1:], strides[1:], itemsize):
        raise refused(name, f"is a non-contiguous view: the bytes of a slot are not one piece (shape {list(shape)}, strides "
                            f"{list(strides)} bytes); register the tensor that it is a view of, or a copy as derived"
                            + _PAGE)
    if strides[0] < 0:
        raise refused(name, f"has its slots in falling order (stride {strides[0]} bytes)")
    row_stride = strides[0] if num_local_slots > 1 else row_bytes
    return Rows(tensor, address_of(tensor), num_local_slots, row_bytes, row_stride, device)


def refused(name: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"tensor \"{name}\": {why}")


def _expect_whole_experts(tensor: Any, name: str, num_local_slots: int) -> None:
    """errors: InvalidArgument for a DTensor whose piece on this rank is not one row of whole bytes for each local slot."""
    placements = ", ".join(str(each) for each in tensor.placements)
    wrong = [each for each in tensor.placements if not keeps_rows(each)]
    local = tuple(tensor.detach().to_local().shape)
    if not wrong and local[:1] == (num_local_slots,):
        return
    why = (f"{wrong[0]} cuts experts into pieces; only Replicate() and Shard(dim=0) of a tensor [experts, ..] leave them whole"
           if wrong else f"its piece on this rank is {list(local)} of {list(tensor.shape)}, expected the rows of the "
                         f"{num_local_slots} local slots of this rank's GPU")
    raise refused(name, f"DTensor: register .to_local() where it has whole experts in its rows; its placements are "
                        f"({placements}), and {why}")


def keeps_rows(placement: Any) -> bool:
    """True for a placement of a DTensor that leaves each row whole: Replicate, Shard(0), and FSDP2's _StridedShard(0)."""
    return type(placement).__name__ == "Replicate" or getattr(placement, "dim", None) == 0


def _layout_of(tensor: Any, name: str) -> Tuple[Tuple[int, ...], Tuple[int, ...], int, str]:
    """Shape, strides in bytes, bytes of an element, device."""
    if is_torch(tensor):
        return _torch_layout_of(tensor, name)
    if not isinstance(tensor, np.ndarray):
        raise refused(name, f"is a {type(tensor).__name__}, expected a numpy array or a torch tensor")
    if tensor.dtype.hasobject:
        raise refused(name, f"has dtype {tensor.dtype}: Python objects cannot be moved as bytes")
    if not tensor.flags.writeable:
        raise refused(name, "is read-only: a migration writes its rows")
    return tensor.shape, tensor.strides, tensor.itemsize, "cpu"


def _torch_layout_of(tensor: Any, name: str) -> Tuple[Tuple[int, ...], Tuple[int, ...], int, str]:
    expect_memory(tensor, name)
    size = tensor.element_size()
    return tuple(tensor.shape), tuple(stride * size for stride in tensor.stride()), size, str(tensor.device)


def expect_memory(tensor: Any, name: str) -> None:
    """errors: InvalidArgument for a tensor of torch that has no plain memory where experts can lie."""
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        what = "quantized" if tensor.is_quantized else str(tensor.layout)
        raise refused(name, f"is {what}: register the dense tensors that it is made of (values, scales, zero points)")
    if tensor.device.type not in ("cpu", "cuda"):
        raise refused(name, f"is on device {tensor.device}, expected cpu or cuda")
    if tensor.numel() and tensor.data_ptr() == 0:
        raise refused(name, "has no memory: it was freed")


def _is_one_piece(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """True if the elements fill their bytes, in any order of dimensions."""
    expected = itemsize
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
