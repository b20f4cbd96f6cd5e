"""Checkpoints of Megatron-Core under any placement: sharded keys by logical expert."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

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


# Layouts of DistributedOptimizer.sharded_state_dict whose shards are those of the model's parameters, which LogicalKeys names.
# The others are of buckets, in the order of slots.
_BY_PARAMETER = ("fully_sharded_model_space", "fully_reshardable")


class LogicalState:
    """Lets an optimizer write and read what is by logical expert, and refuses what is by slot while experts are not in their
    own.

    It stands in for the methods on the one instance. What Megatron makes of the model's shards is by logical expert, as those
    are. is_static: () -> whether every expert is in its own slot.
    """

    def __init__(self, leaf: Any, is_static: Callable[[], bool]) -> None:
        self._name, self._is_static = type(leaf).__name__, is_static
        self._inside, self._loading = False, False
        in_buckets = hasattr(leaf, "shard_fp32_from_float16_groups")
        if hasattr(leaf, "sharded_state_dict"):
            self._stand_in(leaf, "sharded_state_dict", self._expect_by_parameter if in_buckets else None)
        # With buckets the first two have no tensors of parameters but those that sharded_state_dict gave.
        writes = () if in_buckets else ("state_dict",)
        reads = () if in_buckets else ("load_state_dict",)
        for method in (*writes, "save_parameter_state", "get_parameter_state_dp_zero"):
            self._stand_in(leaf, method, lambda *_: self._expect_static("would write the state of experts by slot"))
        for method in (*reads, "load_parameter_state", "load_parameter_state_from_dp_zero"):
            self._stand_in(leaf, method, lambda *_: self._expect_static("would give the state of one slot's expert to another's",
                                                                        self._loading))

    def permit_load(self, loading: bool) -> None:
        """loading: whether load_state_dict gets, from now on, what sharded_state_dict named."""
        self._loading = loading

    def _stand_in(self, leaf: Any, method: str, expect: Optional[Callable[[Any], None]]) -> None:
        original = getattr(leaf, method, None)
        if original is None:
            return

        def call(*arguments: Any, **named: Any) -> Any:
            if not self._inside and expect is not None:
                try:
                    expect(inspect.signature(original).bind(*arguments, **named).arguments)
                except eplb.FailedPrecondition as error:
                    raise eplb.FailedPrecondition(f"{self._name}.{method} {error}") from None
            outside, self._inside = not self._inside, True
            try:
                return original(*arguments, **named)
            finally:
                self._inside = not outside

        setattr(leaf, method, call)

    def _expect_by_parameter(self, arguments: Mapping[str, Any]) -> None:
        metadata = arguments.get("metadata") or {}
        layout = arguments.get("sharding_type") or metadata.get("distrib_optim_sharding_type", _BY_PARAMETER[0])
        if layout not in _BY_PARAMETER and not self._is_static():
            raise eplb.FailedPrecondition(
                f"of layout {layout} would write and read buckets in the order of slots, for experts have moved: use "
                f"--dist-ckpt-optim-fully-reshardable (before Megatron-Core 0.15 --ckpt-fully-parallel-save), or `with "
                f"balancer.static_order():`")

    def _expect_static(self, what: str, permitted: bool = False) -> None:
        if not permitted and not self._is_static():
            raise eplb.FailedPrecondition(f"{what}, for experts have moved: use --ckpt-format torch_dist, or `with "
                                          f"balancer.static_order():`")
