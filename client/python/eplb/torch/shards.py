"""The whole experts that a rank holds of a stack which is a DTensor, such as one of FSDP2 over expert parallelism."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

from torch import nn

from eplb._rows import is_dtensor, keeps_rows, local_of, refused


@dataclass(frozen=True)
class Shard:
    """Part `place` of `parts` equal parts of a stack [experts, ..]. ranks: all of torch's that hold a part."""

    place: int
    parts: int
    ranks: Tuple[int, ...]


def rows_of(tensor: Any) -> int:
    """Returns the first dimension of what this rank holds; 0 for a scalar."""
    local = local_of(tensor)
    return int(local.shape[0]) if local.dim() else 0


def expect_whole_experts(name: str, tensors: Sequence[Any]) -> None:
    """errors: InvalidArgument for a DTensor whose shard cuts experts."""
    for tensor in filter(is_dtensor, tensors):
        for placement in tensor.placements:
            if len(tensors) > 1 or not keeps_rows(placement):
                raise refused(name, f"is a DTensor of {list(tensor.shape)} placed as {placement}: only a stack [experts, ..] "
                                    f"that is sharded by its first dimension holds whole experts in each shard")


def shard_of(name: str, tensor: Any) -> Optional[Shard]:
    """Returns this rank's part of a stack; None for a plain tensor. errors: InvalidArgument for a shard that cuts experts, and
    for parts of different size or in another order than that of equal parts."""
    if not is_dtensor(tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    expect_whole_experts(name, [tensor])
    mesh, placements = tensor.device_mesh, tensor.placements
    parts = math.prod(mesh.size(number) for number, placement in enumerate(placements) if not placement.is_replicate())
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if tensor.shape[0] != parts * shape[0] or offset[0] % shape[0]:
        raise refused(name, f"is a DTensor of {list(tensor.shape)} placed as {placements} over {parts} ranks, and this one holds "
                            f"rows {offset[0]}..{offset[0] + shape[0] - 1}: shards must be equal; let the number of ranks "
                            f"divide the number of experts")
    return Shard(offset[0] // shape[0], parts, tuple(mesh.mesh.flatten().tolist()))


def fsdp_around(chunks: Sequence[nn.Module], experts: Optional[Sequence[nn.Module]] = None) -> List[nn.Module]:
    """Returns the modules of FSDP2 whose parameters may be these experts'; None: all of them."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    found = [module for chunk in chunks for module in chunk.modules() if kind is not None and isinstance(module, kind)]
    return found if experts is None else [module for module in found if any(
        each in set(module.modules()) or module in set(each.modules()) for each in experts)]


def reshard(modules: Sequence[nn.Module]) -> None:
    """Frees unsharded copies of parameters, so that modules show those that optimizers update. After an evaluation with
    reshard_after_forward=False a copy lives on, and would compute with the experts of an earlier placement."""
    for module in modules:
        module.reshard()  # type: ignore[operator]
