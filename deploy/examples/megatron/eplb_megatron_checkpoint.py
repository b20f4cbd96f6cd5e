"""Checkpoints of Megatron-Core under any placement: sharded keys by logical expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, Sequence

import numpy as np

import eplb
from eplb_megatron_layers import MoeLayer


class LogicalKeys:
    """Makes sharded_state_dict of a layer's experts name each expert by its logical number, for saving and for loading.

    experts_of_slots: () -> [slots], the expert in each slot now. It stands in for the method on the one instance.
    A state dict that is not sharded has no place for the number: it is refused unless every expert is in its own slot.
    load_state_dict cannot see what it is given: it takes what was sharded within permit_load, once.
    """

    def __init__(self, layer: MoeLayer, experts_of_slots: Callable[[], np.ndarray]) -> None:
        self._layer, self._experts_of_slots = layer, experts_of_slots
        self._inside, self._loading, self._asked = False, False, False
        module = layer.module.experts
        module._register_state_dict_hook(self._expect_sharded_save)
        module._register_load_state_dict_pre_hook(self._expect_sharded_load)
        self._original = getattr(module, "sharded_state_dict", None)
        if self._original is not None:
            module.sharded_state_dict = self._sharded_state_dict

    def permit_load(self, loading: bool) -> None:
        """loading: whether what sharded_state_dict names from now on is to be loaded."""
        self._loading, self._asked = loading, False

    def _sharded_state_dict(self, prefix: str = "", sharded_offsets: Sequence[Any] = (), *rest: Any, **named: Any) -> Any:
        self._inside = True
        try:
            found = self._original(prefix, sharded_offsets, *rest, **named)  # type: ignore[misc]
        finally:
            self._inside = False
        self._asked = self._loading
        if self._is_static():
            return found
        return self._renamed(found, len(sharded_offsets))

    def _renamed(self, value: Any, axis: int) -> Any:
        """axis: of the experts, in front of the tensor's own."""
        if isinstance(value, dict):
            return {key: self._renamed(each, axis) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._renamed(each, axis) for each in value)
        if hasattr(value, "build_fn"):  # a factory: what it builds is renamed, for model and optimizer alike
            build = value.build_fn
            return replace(value, build_fn=lambda *arguments: self._renamed(build(*arguments), axis))
        if hasattr(value, "global_offset"):
            return self._renamed_shard(value, axis)
        return value

    def _renamed_shard(self, shard: Any, axis: int) -> Any:
        """shard: a ShardedTensor or ShardedObject of one slot. errors: FailedPrecondition for one of several."""
        num_experts, offset = self._layer.num_experts, tuple(shard.global_offset)
        one_expert = axis < getattr(shard, "prepend_axis_num", axis + 1) and axis < len(offset) \
            and shard.global_shape[axis] == num_experts
        if not one_expert:
            raise eplb.FailedPrecondition(
                f"{self._layer.name}.experts: \"{shard.key}\" is a shard of several experts, which are not side by side "
                f"under this placement: save and load within `with balancer.static_order():`")
        expert = int(self._experts_of_slots()[offset[axis]])
        return replace(shard, global_offset=(*offset[:axis], expert, *offset[axis + 1:]))

    def _expect_sharded_save(self, module: Any, state: Dict[str, Any], prefix: str, metadata: Any) -> None:
        if not self._inside and not self._is_static():
            raise self._refused("state_dict would write experts by slot", "use --ckpt-format torch_dist")

    def _expect_sharded_load(self, state: Dict[str, Any], prefix: str, *_: Any) -> None:
        asked, self._asked = self._asked, False
        if not asked and not self._is_static():
            raise self._refused("load_state_dict would put the expert of one slot into another's",
                                "load a sharded one within `with balancer.sharded_load():`")

    def _is_static(self) -> bool:
        experts = self._experts_of_slots()
        return bool((experts == np.arange(len(experts))).all())

    def _refused(self, what: str, instead: str) -> eplb.FailedPrecondition:
        return eplb.FailedPrecondition(f"{self._layer.name}.experts: {what}, for experts have moved: {instead}, or `with "
                                       f"balancer.static_order():`")
