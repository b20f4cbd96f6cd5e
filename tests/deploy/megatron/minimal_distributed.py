"""Optimizers with the interface of megatron.core.optimizer's that shard over the expert-data ranks; written for tests.

Parameters are views of a contiguous buffer, from the last to the first, each on a multiple of 64 elements; a buffer is cut
into buckets, and each bucket evenly among the ranks, wherever experts begin and end.
"""

from types import SimpleNamespace
from typing import Any

import minimal_dist_checkpointing as dist_checkpointing
import torch
import torch.distributed as dist
from minimal_optimizer import Float16OptimizerWithFloat16Params, FusedAdam, MegatronOptimizer, init_state

_ALIGNMENT = 64  # elements, of a parameter's start


def _padded(number: int, divisor: int) -> int:
    return -(-number // divisor) * divisor


class ParamAndGradBuffer:
    """bucket_size: elements above which a new bucket begins."""

    def __init__(self, parameters: "list[torch.nn.Parameter]", num_ranks: int, bucket_size: int) -> None:
        self.params, self.param_index_map, limits, start, bucket_start = parameters, {}, [], 0, 0
        for parameter in reversed(parameters):
            start = _padded(start, _ALIGNMENT)
            self.param_index_map[parameter] = (start, start + parameter.numel(), len(limits))
            start += parameter.numel()
            if start - bucket_start >= bucket_size:
                start = _padded(start, 128 * num_ranks)
                limits.append((bucket_start, start))
                bucket_start = start
        if start > bucket_start:
            limits.append((bucket_start, _padded(start, 128 * num_ranks)))
        self.param_dtype, self.grad_dtype = parameters[0].dtype, torch.float32
        self.param_data = torch.zeros(limits[-1][1], dtype=self.param_dtype)
        self.grad_data = torch.zeros(limits[-1][1])
        for parameter, (first, last, _) in self.param_index_map.items():
            view = self.param_data[first:last].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.main_grad = self.grad_data[first:last].view(parameter.shape)
            parameter.grad_in_buffer = True
        self.buckets = [SimpleNamespace(offset=first, param_data=self.param_data[first:last],
                                        grad_data=self.grad_data[first:last]) for first, last in limits]


class DistributedOptimizer(MegatronOptimizer):
    """One rank's shards. overlap: other ranks get the weights with the next forward (sync_params), not in the step.
    precision_aware: the inner optimizer updates the weights' memory, and has masters among its state."""

    def __init__(self, optimizer: torch.optim.Optimizer, buffers: "list[ParamAndGradBuffer]", group: Any, overlap: bool = False,
                 precision_aware: bool = False) -> None:
        super().__init__(optimizer)
        self.buffers, self.data_parallel_group = buffers, group
        self.ddp_config = SimpleNamespace(overlap_param_gather=overlap, use_megatron_fsdp=False)
        self.gbuf_ranges = [{(each.param_dtype, each.grad_dtype): [{"param_map": self._param_map(each, bucket)}
                                                                   for bucket in each.buckets]} for each in buffers]
        self.model_param_gbuf_map = {parameter: (number, dtype, bucket) for number, ranges in enumerate(self.gbuf_ranges)
                                     for dtype, buckets in ranges.items() for bucket, each in enumerate(buckets)
                                     for parameter in each["param_map"]}
        self.model_float16_groups, self.model_fp32_groups = [], []
        self.shard_float16_groups, self.shard_fp32_groups, self.shard_fp32_from_float16_groups = [], [], []
        for group_ in optimizer.param_groups:
            mine = [each for each in reversed(group_["params"]) if each in self.model_param_gbuf_map]
            halves = [each for each in mine if each.dtype != torch.float32]
            wholes = [each for each in mine if each.dtype == torch.float32]
            shards, mains = [self._shard(each) for each in halves], [None] * len(halves)
            if not precision_aware:
                mains = [each.clone().float() for each in shards]
            self.model_float16_groups.append(halves)
            self.model_fp32_groups.append(wholes)
            self.shard_float16_groups.append(shards)
            self.shard_fp32_groups.append([self._shard(each) for each in wholes])
            self.shard_fp32_from_float16_groups.append(mains)
            group_["params"] = [*self.shard_fp32_groups[-1], *(shards if precision_aware else mains)]

    def _param_map(self, buffer: ParamAndGradBuffer, bucket: Any) -> "dict[torch.nn.Parameter, Any]":
        size = len(bucket.param_data) // dist.get_world_size(self.data_parallel_group)
        first = bucket.offset + dist.get_rank(self.data_parallel_group) * size
        found = {}
        for parameter, (start, stop, _) in buffer.param_index_map.items():
            begin, end = max(start, first), min(stop, first + size)
            if begin < end:
                found[parameter] = {"param": SimpleNamespace(start=begin - start, end=end - start)}
        return found

    def _get_model_param_range_map(self, parameter: torch.nn.Parameter) -> Any:
        number, dtype, bucket = self.model_param_gbuf_map[parameter]
        return self.gbuf_ranges[number][dtype][bucket]["param_map"][parameter]

    def _shard(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        mine = self._get_model_param_range_map(parameter)["param"]
        return parameter.detach().view(-1)[mine.start:mine.end]

    def held(self) -> "list[tuple[torch.nn.Parameter, int, torch.Tensor]]":
        """(model parameter, first element, what the inner optimizer updates)"""
        found = []
        groups = ((self.model_float16_groups, self.shard_float16_groups, self.shard_fp32_from_float16_groups),
                  (self.model_fp32_groups, self.shard_fp32_groups, self.shard_fp32_groups))
        for models, shards, mains in groups:
            for model_group, shard_group, main_group in zip(models, shards, mains):
                for model, shard, main in zip(model_group, shard_group, main_group):
                    start = self._get_model_param_range_map(model)["param"].start
                    found.append((model, start, shard if main is None else main))
        return found

    @torch.no_grad()
    def step(self) -> None:
        for model, start, updated in self.held():
            updated.grad = None
            gradient = model.main_grad.view(-1)[start:start + updated.numel()].float()
            if updated.dtype == torch.float32:
                updated.grad = gradient.clone()
            else:
                updated.decoupled_grad = gradient.clone()
        self.optimizer.step()
        for model, start, updated in self.held():
            model.data.view(-1)[start:start + updated.numel()].copy_(updated)
        if not self.ddp_config.overlap_param_gather:
            self.sync_params()

    @torch.no_grad()
    def sync_params(self) -> None:
        """All-gather of each bucket."""
        rank, size = dist.get_rank(self.data_parallel_group), dist.get_world_size(self.data_parallel_group)
        for bucket in (bucket for buffer in self.buffers for bucket in buffer.buckets):
            parts = bucket.param_data.view(torch.uint8).view(size, -1)  # gloo does not know bfloat16
            gathered = [torch.empty_like(parts[0]) for _ in range(size)]
            dist.all_gather(gathered, parts[rank].clone(), group=self.data_parallel_group)
            for part, each in zip(parts, gathered):
                part.copy_(each)

    # ---- checkpoints ----

    def state_dict(self) -> "dict[str, Any]":
        return {"step": [group["step"] for group in self.param_groups]}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        numbers = {model: number for number, model in enumerate(self._parameters())}
        for model, start, updated in self.held():
            if not self.optimizer.state[updated]:
                init_state(self.optimizer, updated)
            for key, target in {"param": updated, **self.optimizer.state[updated]}.items() if "param_state" in state else ():
                target.copy_(state["param_state"][numbers[model]][key].view(-1)[start:start + target.numel()])

    def sharded_state_dict(self, model_sharded_state_dict: "dict[str, Any]", is_loading: bool = False,
                           sharding_type: Any = None, metadata: Any = None) -> "dict[str, Any]":
        """fully_reshardable: whole tensors, sharded as the model's are. dp_reshardable: a shard of each bucket."""
        layout = (metadata or {}).get("distrib_optim_sharding_type", "fully_sharded_model_space")
        if is_loading:
            self.load_state_dict(self.state_dict())
        if layout == "dp_reshardable":
            return {f"bucket.{number}.{start}": updated for number, (_, start, updated) in enumerate(self.held())}
        by_address = {each.data.data_ptr(): each for each in model_sharded_state_dict.values()}
        return {number: {key: dist_checkpointing.optimizer_entry(by_address[model.data_ptr()], whole.view(model.shape), key)
                         for key, whole in wholes.items()}
                for number, (model, wholes) in enumerate(self.get_parameter_state_dp_zero().items())}

    def get_parameter_state_dp_zero(self) -> "dict[torch.nn.Parameter, dict[str, torch.Tensor]]":
        """Whole masters and moments of each parameter, on every rank."""
        return gathered(self._parameters(), self, self.data_parallel_group)

    def _parameters(self) -> "list[torch.nn.Parameter]":
        return [parameter for buffer in self.buffers for parameter in buffer.param_index_map]

    def save_parameter_state(self, filename: str) -> None:
        torch.save(list(self.get_parameter_state_dp_zero().values()), filename)


class PrecisionAwareAdam(FusedAdam):
    """Updates float32 masters of its own, and the low-precision parameter from them."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["step"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["master_param"] = parameter.detach().clone().float()
                    state["exp_avg"] = torch.zeros(parameter.shape, dtype=torch.bfloat16)
                    state["exp_avg_sq"] = torch.zeros(parameter.shape)
                gradient = parameter.decoupled_grad
                first = state["exp_avg"].float() * 0.9 + gradient * 0.1
                state["exp_avg"].copy_(first)
                state["exp_avg_sq"].mul_(0.99).add_(gradient * gradient * 0.01)
                size = group["lr"] / (1 - 0.9 ** group["step"])
                second = (state["exp_avg_sq"] / (1 - 0.99 ** group["step"])).sqrt()
                state["master_param"].sub_(size * first / (second + 1e-8))
                parameter.copy_(state["master_param"])


class LayerWiseDistributedOptimizer(MegatronOptimizer):
    """Whole parameters to ranks, to and fro by their size. What the ranks updated they send each other."""

    def __init__(self, optimizer: torch.optim.Optimizer, group: Any) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        turns = [*range(size), *reversed(range(size))]
        everything = sorted((each for part in optimizer.param_groups for each in part["params"]), key=lambda each: each.numel())
        self.expt_dp_params_list = [[] for _ in range(size)]
        for number, parameter in enumerate(everything):
            self.expt_dp_params_list[turns[number % len(turns)]].append(parameter)
        mine = {id(each) for each in self.expt_dp_params_list[rank]}
        for part in optimizer.param_groups:
            part["params"] = [each for each in part["params"] if id(each) in mine]
        self._group, self._rank = group, rank
        self.chained_optimizers = [Float16OptimizerWithFloat16Params(optimizer)]

    def step(self) -> None:
        self.chained_optimizers[0].step()
        for owner, parameters in enumerate(self.expt_dp_params_list):
            for parameter in parameters:
                whole = parameter.data.contiguous().view(torch.uint8) if owner == self._rank \
                    else torch.zeros_like(parameter.data).view(torch.uint8)
                dist.all_reduce(whole, group=self._group)
                parameter.data.copy_(whole.view(parameter.dtype).view(parameter.shape))

    def masters(self) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        return self.chained_optimizers[0].masters()

    def held(self) -> "list[tuple[torch.Tensor, int, torch.Tensor]]":
        return [(model, 0, main) for model, main in self.masters()]


def inner_of(leaf: Any) -> Any:
    if isinstance(leaf, LayerWiseDistributedOptimizer):
        leaf = leaf.chained_optimizers[0]
    return getattr(leaf, "optimizer", getattr(leaf, "optim", leaf))


def gathered(parameters: Any, leaf: Any, group: Any) -> "dict[torch.Tensor, dict[str, torch.Tensor]]":
    """Whole masters and state of each parameter, from the shards of all ranks. parameters: in the same order on each."""
    held = {id(model): (start, updated) for model, start, updated in leaf.held()}
    mine = []
    for parameter in parameters:
        start, updated = held.get(id(parameter), (0, None))
        tensors = {} if updated is None else {"param": updated, **inner_of(leaf).state.get(updated, {})}
        mine.append({key: (start, value.detach().clone()) for key, value in tensors.items() if value.dim() > 0})
    everywhere: "list[Any]" = [None] * dist.get_world_size(group)
    dist.all_gather_object(everywhere, mine, group=group)
    found = {}
    for number, parameter in enumerate(parameters):
        wholes: "dict[str, torch.Tensor]" = {}
        for key, (start, value) in (item for each in everywhere for item in each[number].items()):
            whole = wholes.setdefault(key, torch.zeros(parameter.numel(), dtype=value.dtype))
            whole[start:start + value.numel()] = value.view(-1)
        found[parameter] = wholes
    return found


def build_experts(parameters: "list[torch.nn.Parameter]", sharding: str, group: Any, bucket_size: int = 22000) -> Any:
    """sharding: "distributed", with "+overlap" or "+precision_aware"; "layer_wise"; "zero", torch's."""
    kind, _, option = sharding.partition("+")
    if kind == "layer_wise":
        return LayerWiseDistributedOptimizer(FusedAdam(parameters), group)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return zero_of_torch(ZeroRedundancyOptimizer, parameters, group)
    buffer = ParamAndGradBuffer(parameters, dist.get_world_size(group), bucket_size)
    adam = PrecisionAwareAdam if option == "precision_aware" else FusedAdam
    return DistributedOptimizer(adam(parameters), [buffer], group, option == "overlap", option == "precision_aware")


def zero_of_torch(kind: Any, parameters: "list[torch.nn.Parameter]", group: Any) -> Any:
    """torch's ZeroRedundancyOptimizer of float32 parameters, with what training asks of Megatron's."""
    leaf = kind(parameters, torch.optim.AdamW, process_group=group, lr=1e-2)
    step = leaf.step

    def step_with_main_grads() -> None:
        for parameter in parameters:
            parameter.grad = parameter.main_grad
        step()

    leaf.step = step_with_main_grads
    leaf.held = lambda: [(each, 0, each) for part in leaf.optim.param_groups for each in part["params"]]
    return leaf
