"""Sharded tensors with the fields of megatron.core.dist_checkpointing's, and a directory of them; written for tests."""

import pathlib
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

import torch


@dataclass
class ShardedTensor:
    """A part of a global tensor. global_offset: of its first element, the prepended axes first."""

    key: str
    data: Optional[torch.Tensor] = field(repr=False)
    dtype: torch.dtype
    local_shape: "tuple[int, ...]"
    global_shape: "tuple[int, ...]"
    global_offset: "tuple[int, ...]"
    axis_fragmentations: "tuple[int, ...]"
    replica_id: int = 0
    prepend_axis_num: int = 0


@dataclass
class ShardedTensorFactory:
    """Parts that are made of a tensor when it is saved, and put together again when it was loaded."""

    key: str
    data: torch.Tensor
    build_fn: Callable[[str, torch.Tensor, int, Any], "list[ShardedTensor]"]
    merge_fn: Callable[["list[torch.Tensor]"], torch.Tensor]
    replica_id: int = 0

    def build(self) -> "list[ShardedTensor]":
        return self.build_fn(self.key, self.data, self.replica_id, None)


def sharded(key: str, data: torch.Tensor, sharded_offsets: Any, expert: int, num_experts: int, prepended: bool = True,
            copy: int = 0) -> ShardedTensor:
    """One expert's tensor, below an axis of experts; or, not prepended, experts from `expert` on along the first axis."""
    axes = len(sharded_offsets) + prepended
    before = tuple(offset for _, offset, _ in sharded_offsets) + ((expert,) if prepended else ())
    sizes = tuple(size for _, _, size in sharded_offsets) + ((num_experts,) if prepended else ())
    inner = tuple(data.shape) if prepended else (num_experts, *data.shape[1:])
    first = 0 if prepended else expert
    return ShardedTensor(key, data, data.dtype, tuple(data.shape), (*sizes, *inner),
                         (*before, first, *[0] * (data.dim() - 1)), (1,) * (axes + data.dim()), copy, axes)


def halved(key: str, data: torch.Tensor, sharded_offsets: Any, expert: int, num_experts: int,
           copy: int = 0) -> ShardedTensorFactory:
    """Shards of gated units, as in Megatron: two shards, whose expert was fixed when the factory was made."""
    def build(key: str, tensor: torch.Tensor, replica_id: int, flattened_range: Any) -> "list[ShardedTensor]":
        return [sharded(f"{key}.{part}", half, sharded_offsets, expert, num_experts, copy=replica_id)
                for part, half in zip("wv", tensor.chunk(2))]

    return ShardedTensorFactory(key, data, build, torch.cat, copy)


def optimizer_entry(model_entry: Any, data: torch.Tensor, prefix: str) -> Any:
    """The optimizer's tensor of a parameter, sharded as the parameter is. prefix: of its key."""
    if isinstance(model_entry, ShardedTensorFactory):
        return replace(model_entry, key=f"{prefix}.{model_entry.key}", data=data)
    return replace(model_entry, key=f"{prefix}.{model_entry.key}", data=data.view(model_entry.local_shape), dtype=data.dtype)


def save(entries: "dict[str, Any]", directory: pathlib.Path) -> None:
    for shard in _shards(entries.values()):
        if shard.replica_id == 0:
            torch.save(shard.data.clone(), directory / _file(shard))


def load(entries: "dict[str, Any]", directory: pathlib.Path) -> "dict[str, torch.Tensor]":
    """Returns the request of each entry, by its name."""
    found = {}
    for name, entry in entries.items():
        parts = [torch.load(directory / _file(shard)) for shard in _shards([entry])]
        found[name] = entry.merge_fn(parts) if isinstance(entry, ShardedTensorFactory) else parts[0]
    return found


def _shards(entries: Any) -> "list[ShardedTensor]":
    return [shard for entry in entries
            for shard in (entry.build() if isinstance(entry, ShardedTensorFactory) else [entry])]


def _file(shard: ShardedTensor) -> str:
    return f"{shard.key}-{'.'.join(map(str, shard.global_offset))}"
