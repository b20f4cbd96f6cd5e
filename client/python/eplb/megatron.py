"""EPLB in Megatron-Core, in three lines:

    attached = eplb.megatron.attach(model, optimizer, endpoint=.., job=..)     # after setup_model_and_optimizer
    attached.step_boundary()                                                   # after each train_step, also a skipped one
    attached.detach()                                                          # at the end

Choices are turned where a layer's token dispatcher gets them: the router, its losses, its bias and Megatron's router trace see
logical experts. docs/frameworks.md says what is supported. Nothing of Megatron is imported before attach.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import nn

import eplb.torch
from eplb.errors import InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.frameworks import Framework
from eplb.torch.routing import SlotColumns
from eplb.torch.scattered import Part

_MEGATRON = Framework("megatron-core", "0.19.2")

# Options of TransformerConfig whose results depend on where experts are, or that hide the load: what they do.
_REFUSED_OPTIONS = {
    "moe_expert_capacity_factor": "the router drops before its output, so that no load can be read off it",
    "moe_pad_expert_input_to_capacity": "it pads to moe_expert_capacity_factor",
    "moe_token_dropping": "EPLB is for dropless training",
    "moe_expert_rank_capacity_factor": "what a rank drops then depends on which experts it has",
    "moe_paged_stash": "tokens above a rank's budget are computed otherwise",
    "fp4": "gradients are rounded by chance, drawn in the order of slots",
    "moe_single_grouped_weight": "the experts of a rank are then one GroupedTensor",
    "moe_single_grouped_bias": "the biases of a rank are then one GroupedTensor"}
_GROUPS = {"ep_group": "expert_model", "edp_group": "expert_data", "etp_group": "expert_tensor", "pp_group": "pipeline_model"}
_PROBE_TOKENS = 16  # fp8 kernels want a multiple of 16
_MOMENT_TYPES = ("exp_avg_dtype", "exp_avg_sq_dtype", "main_params_dtype")


def attach(model: Union[nn.Module, Sequence[nn.Module]], optimizer: Any = None, *, boundary: str = "call",
           check_batch: Any = False, **options: Any) -> Attached:
    """Attaches EPLB to a training of Megatron-Core. Collective over the job; after setup_model_and_optimizer has built and loaded
    everything, and before CUDA graphs are captured.

    model: a module, or the list of this rank's chunks. optimizer: Megatron's, or None for no training. boundary: "call": the
    training loop calls step_boundary. "optimizer": each optimizer.step() ends with the boundary. check_batch: as of
    eplb.torch.attach; False, because Megatron's own groups give the order of experts. options: of eplb.torch.attach and
    eplb.Client.connect; with ep_group, edp_group, etp_group or pp_group if these are not those of parallel_state. errors: as
    eplb.torch.attach; InvalidArgument naming a layer's option or an optimizer that cannot move by expert, or a part of Megatron
    that is not there.
    """
    state = _MEGATRON.imported("megatron.core", "parallel_state")
    groups = {name: options.pop(name) if name in options else _MEGATRON.part(state, f"get_{of}_parallel_group")()
              for name, of in _GROUPS.items()}
    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    leaves, layers = _leaves_of(optimizer), _MoeLayers()
    return eplb.torch.attach(
        chunks, [leaf.optimizer for leaf in leaves], experts=layers, router=lambda moe: moe.router,
        seam=lambda layer, columns: _Dispatch(layers.around[layer.experts], columns),
        masters=_Masters(leaves, dist.get_world_size(groups["edp_group"])),
        refresh=_refresh_of(chunks, groups["edp_group"]), boundary=optimizer if boundary == "optimizer" else boundary,
        check_batch=check_batch, **groups, **options)


def probe_of(attached: Attached) -> Callable[[int, int], torch.Tensor]:
    """Returns the `probe` of attached.check_experts for experts that are no modules of their own, as those of TEGroupedMLP."""
    layers = {layer.index: layer for layer in attached.layers}

    @torch.no_grad()
    def probe(index: int, slot: int) -> torch.Tensor:
        layer = layers[index]
        parameter, config = next(layer.parameters()), layer.experts.config
        width = getattr(config, "moe_latent_size", None) or config.hidden_size
        hidden = torch.randn(_PROBE_TOKENS, width, generator=torch.Generator().manual_seed(index))
        tokens, probs = torch.zeros(layer.num_local_slots, dtype=torch.int64), torch.ones(_PROBE_TOKENS, device=parameter.device)
        tokens[slot] = _PROBE_TOKENS
        return layer.experts(hidden.to(parameter.device, parameter.dtype), tokens, probs)[0]  # type: ignore[no-any-return]

    return probe


class _MoeLayers:
    """True for the modules of experts in MoE layers. around: the MoE layer of each."""

    def __init__(self) -> None:
        self.around: Dict[nn.Module, nn.Module] = {}

    def __call__(self, module: nn.Module) -> bool:
        if all(getattr(module, part, None) is not None for part in ("router", "experts", "token_dispatcher")):
            _check_configuration(module)
            self.around[module.experts] = module
        return module in self.around


class _Dispatch:
    """Stands in for `dispatch_preprocess` of a layer's token dispatcher, and gives it slots for experts."""

    def __init__(self, moe: Any, columns: SlotColumns) -> None:
        self._dispatcher, self._columns = moe.token_dispatcher, columns
        self._preprocess = _MEGATRON.part(self._dispatcher, "dispatch_preprocess")
        self._dispatcher.dispatch_preprocess = self

    def __call__(self, hidden: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor) -> Any:
        columns = self._columns
        return self._preprocess(hidden, columns.count_and_turn(routing_map, 1), columns.in_slot_order(probs))

    def remove(self) -> None:
        if self._dispatcher.__dict__.get("dispatch_preprocess") is self:  # otherwise another wrapper is around it
            del self._dispatcher.dispatch_preprocess


class _Masters:
    """Returns the tensor that Megatron's optimizers update in the place of a parameter of experts.

    DistributedOptimizer divides its state over the expert-data ranks, wherever experts begin and end. expert_data_size: with one
    such rank each shard is a whole parameter.
    """

    def __init__(self, leaves: Sequence[Any], expert_data_size: int) -> None:
        self._is_whole = expert_data_size == 1
        self._found: Dict[int, Union[torch.Tensor, Part]] = {}
        self._elsewhere: Dict[int, Part] = {}  # by buffer: kinds of state of parameters that other ranks update
        for leaf in leaves:
            self._add(leaf)

    def __call__(self, parameter: torch.Tensor) -> Union[torch.Tensor, Part, None]:
        if id(parameter) in self._found or not parameter.requires_grad:
            return self._found.get(id(parameter))
        return self._elsewhere.get(_buffer_of(parameter))

    def _add(self, leaf: Any) -> None:
        if not _is_distributed(leaf):
            for models, mains in zip(getattr(leaf, "float16_groups", ()), getattr(leaf, "fp32_from_float16_groups", ())):
                self._found.update((id(model), main) for model, main in zip(models, mains))
            return
        for model, updated in _shards_of(leaf):
            elements = leaf._get_model_param_range_map(model)["param"]
            part = Part(updated, 0, elements.start, elements.end - elements.start)
            self._found[id(model)] = updated if self._is_whole else part
            self._elsewhere[_buffer_of(model)] = Part(updated)


def _buffer_of(parameter: torch.Tensor) -> int:
    """Returns the address of the DDP buffer that a parameter is in, of which each expert-data rank updates a part; 0 for fp8."""
    return parameter.untyped_storage().data_ptr() if type(parameter) is nn.Parameter else 0


def _leaves_of(optimizer: Any) -> List[Any]:
    """Returns the optimizers that a ChainedOptimizer chains, or the one. errors: InvalidArgument for what cannot move by expert."""
    if optimizer is None:
        return []
    _expect_known(optimizer)
    if hasattr(optimizer, "chained_optimizers"):
        return [leaf for each in optimizer.chained_optimizers for leaf in _leaves_of(each)]
    if _MEGATRON.part(optimizer, "optimizer") is None:  # a stage without trained parameters
        return []
    _expect_known(optimizer.optimizer)
    if _is_distributed(optimizer):
        for name in ("model_float16_groups", "shard_fp32_from_float16_groups", "_get_model_param_range_map"):
            _MEGATRON.part(optimizer, name)
    return [optimizer]


def _expect_known(optimizer: Any) -> None:
    names = [kind.__name__ for kind in type(optimizer).__mro__]
    config, ddp_config = getattr(optimizer, "config", None), getattr(optimizer, "ddp_config", None)
    why = ""
    if "HybridDeviceOptimizer" in names:
        why = "holds state in host memory while weights are on a GPU: train without --optimizer-cpu-offload"
    elif "LayerWiseDistributedOptimizer" in names:
        why = "holds whole experts on some expert-data ranks alone: use --use-distributed-optimizer"
    elif getattr(ddp_config, "use_megatron_fsdp", False):
        why = "updates parameters that Megatron-FSDP shards: train without --use-megatron-fsdp"
    elif getattr(config, "use_precision_aware_optimizer", False):
        for name in _MOMENT_TYPES:
            if getattr(config, name, torch.float32) not in (torch.float32, torch.bfloat16):
                why = f"holds scales beside its state, because {name} is {getattr(config, name)}: use fp32 or bf16"
    if why:
        raise InvalidArgument(f"optimizer: {names[0]} {why} (docs/frameworks.md)")


def _is_distributed(leaf: Any) -> bool:
    return any(kind.__name__ == "DistributedOptimizer" for kind in type(leaf).__mro__)


def _shards_of(leaf: Any) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """Yields each parameter of which a DistributedOptimizer updates elements on this rank, and what is updated: fp32 masters, or a
    part of the parameter's own memory."""
    for models, shards, mains in zip(leaf.model_float16_groups, leaf.shard_float16_groups, leaf.shard_fp32_from_float16_groups):
        yield from ((model, shard if main is None else main) for model, shard, main in zip(models, shards, mains))
    for models, shards in zip(leaf.model_fp32_groups, leaf.shard_fp32_groups):
        yield from zip(models, shards)


def _refresh_of(chunks: Sequence[nn.Module], edp_group: Any) -> Optional[Callable[[], None]]:
    """Returns what gathers the experts' newest weights over the expert-data ranks, where --overlap-param-gather leaves that to the
    next forward; None if each step does it."""
    late = [group for chunk in chunks for module in chunk.modules()
            for group in getattr(module, "expert_parallel_bucket_groups", ()) if module.ddp_config.overlap_param_gather]
    if not late or dist.get_world_size(edp_group) == 1:
        return None

    @torch.no_grad()
    def refresh() -> None:
        for group in late:
            group.start_param_sync(force_sync=True)

    return refresh


def _check_configuration(moe: Any) -> None:
    """errors: InvalidArgument naming an option under which experts cannot move."""
    config = moe.config
    for option, why in _REFUSED_OPTIONS.items():
        if getattr(config, option, None) not in (None, False):
            raise _refused(moe, f"{option} is set: {why}")
    if getattr(config, "transformer_impl", None) == "inference_optimized":
        raise _refused(moe, "transformer_impl is inference_optimized: it gives experts other memory in the first forward without "
                            "gradients; train with transformer_engine or local")
    if getattr(config, "fp8", None) and getattr(config, "fp8_recipe", "delayed") == "delayed":
        raise _refused(moe, "fp8_recipe is delayed: its amax history of each expert would stay with the slot; use blockwise, "
                            "tensorwise or mxfp8")


def _refused(moe: Any, what: str) -> InvalidArgument:
    return InvalidArgument(f"MoE layer {getattr(moe, 'layer_number', '?')}: {what} (docs/frameworks.md)")
