"""A mixture-of-experts model with the interface of Megatron-Core's: as much of it as the adapter touches, written for tests.

Names of classes, attributes, arguments and results are those of megatron.core.transformer.moe, parallel_state and
transformer_config. Tokens travel by all-to-all over gloo. Weights are a function of seed, layer and logical expert.
"""

from dataclasses import dataclass, replace
from typing import Any, Optional

import minimal_dist_checkpointing as dist_checkpointing
import torch
import torch.distributed as dist
from torch import nn


@dataclass
class TransformerConfig:
    experts: str = "GroupedMLP"  # or "SequentialMLP" or "TEGroupedMLP"
    num_layers: int = 2  # layers of a pipeline stage
    num_moe_experts: int = 8
    hidden_size: int = 32
    moe_ffn_hidden_size: int = 64
    moe_router_topk: int = 2
    moe_aux_loss_coeff: float = 0.01
    moe_router_enable_expert_bias: bool = True
    moe_router_bias_update_rate: float = 1e-3
    moe_expert_capacity_factor: Optional[float] = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_expert_rank_capacity_factor: Optional[float] = None
    moe_paged_stash: bool = False
    moe_single_grouped_weight: bool = False
    moe_latent_size: Optional[int] = None
    transformer_impl: str = "transformer_engine"
    add_bias_linear: bool = False
    params_dtype: torch.dtype = torch.bfloat16
    fp4: Optional[str] = None
    fp8: Optional[str] = None
    fp8_recipe: str = "delayed"
    seed: int = 1


class ParallelState:
    """The groups of a job. order: "ep-dp", EP ranks are neighbours, as in Megatron's default; or "dp-ep".

    Pipeline stages are slowest; each holds layers of its own. With expert_tensor_size the copies of an expert are an
    expert-tensor group, whose ranks hold whole experts here: what a rank computes is no matter of who counts its tokens.
    """

    def __init__(self, expert_model_size: int, order: str = "ep-dp", pipeline_parallel_size: int = 1,
                 expert_tensor_size: int = 1) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        self.pipeline_parallel_size, self.expert_tensor_size = pipeline_parallel_size, expert_tensor_size
        per_stage = world // pipeline_parallel_size
        self.pipeline_stage = rank // per_stage
        alone = [dist.new_group([each]) for each in range(world)][rank]
        for stage in torch.arange(world).reshape(pipeline_parallel_size, per_stage):
            num_copies = per_stage // expert_model_size
            by_copy = stage.reshape((num_copies, -1) if order == "ep-dp" else (-1, num_copies))
            by_copy = by_copy if order == "ep-dp" else by_copy.T  # [copies, EP ranks]
            for name, groups in (("_stage", [stage.tolist()]), ("_expert_model", by_copy.tolist()),
                                 ("_copies", by_copy.T.tolist())):
                for members in groups:
                    group = dist.new_group(members)
                    if rank in members:
                        setattr(self, name, group)
        self._expert_data = alone if expert_tensor_size > 1 else self._copies
        self._expert_tensor = self._copies if expert_tensor_size > 1 else alone

    def copies_group(self) -> Any:
        """The ranks that hold the same experts."""
        return self._copies

    def get_data_parallel_group(self) -> Any:
        return self._stage

    def get_expert_model_parallel_group(self) -> Any:
        return self._expert_model

    def get_expert_model_parallel_rank(self) -> int:
        return dist.get_rank(self._expert_model)

    def get_expert_model_parallel_world_size(self) -> int:
        return dist.get_world_size(self._expert_model)

    def get_expert_data_parallel_group(self) -> Any:
        return self._expert_data

    def get_expert_tensor_parallel_group(self) -> Any:
        return self._expert_tensor

    def get_expert_tensor_parallel_rank(self) -> int:
        return dist.get_rank(self._expert_tensor)

    def get_expert_tensor_parallel_world_size(self) -> int:
        return dist.get_world_size(self._expert_tensor)

    def get_pipeline_model_parallel_rank(self) -> int:
        return self.pipeline_stage

    def get_pipeline_model_parallel_world_size(self) -> int:
        return self.pipeline_parallel_size


class TopKRouter(nn.Module):
    """Gives (probs [tokens, experts], routing_map bool [tokens, experts]), as logical experts."""

    def __init__(self, config: TransformerConfig, layer_number: int) -> None:
        super().__init__()
        self.config, self.layer_number = config, layer_number
        self.weight = nn.Parameter(_random((config.num_moe_experts, config.hidden_size), config.seed, layer_number, 999))
        self.register_buffer("expert_bias", torch.zeros(config.num_moe_experts))
        self.register_buffer("local_tokens_per_expert", torch.zeros(config.num_moe_experts), persistent=False)
        self.aux_loss: Optional[torch.Tensor] = None

    def forward(self, hidden: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor]":
        scores = torch.softmax(hidden.reshape(-1, hidden.shape[-1]).float() @ self.weight.T, dim=-1)
        chosen = torch.topk(scores + self.expert_bias, self.config.moe_router_topk, dim=-1).indices
        routing_map = torch.zeros_like(scores, dtype=torch.bool).scatter(1, chosen, True)
        counts = routing_map.sum(dim=0)
        if self.training and torch.is_grad_enabled():
            self.local_tokens_per_expert += counts
        share = counts.float() / counts.sum()
        self.aux_loss = self.config.moe_aux_loss_coeff * len(counts) * (scores.mean(dim=0) * share).sum()
        return scores * routing_map, routing_map

    def update_expert_bias(self, group: Any) -> None:
        dist.all_reduce(self.local_tokens_per_expert, group=group)
        tokens = self.local_tokens_per_expert
        self.expert_bias += self.config.moe_router_bias_update_rate * torch.sign(tokens.mean() - tokens)
        tokens.zero_()


class AllToAll(torch.autograd.Function):
    """Rows [n, ..] to the ranks of a group and, for the gradient, back."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, sent: "list[int]", received: "list[int]", group: Any) -> torch.Tensor:
        context.splits = sent, received, group
        return _carry(rows, sent, received, group)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> "tuple[Any, ...]":
        sent, received, group = context.splits
        return _carry(gradients[0], received, sent, group), None, None, None


class MoEAlltoAllTokenDispatcher:
    """Column c of what a router gives is slot c: on EP rank c // num_local_experts."""

    def __init__(self, num_local_experts: int, group: Any) -> None:
        self._num_local, self._group = num_local_experts, group

    def token_permutation(self, hidden: torch.Tensor, probs: torch.Tensor,
                          routing_map: torch.Tensor) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
        """Tokens by local slot, within it by source rank and token; tokens of each slot; their probs."""
        self._shape = hidden.shape
        slots, self._tokens = routing_map.T.nonzero(as_tuple=True)
        counts = routing_map.sum(dim=0).view(-1, self._num_local)  # [EP ranks, slots]
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self._group)
        self._sent, self._received = counts.sum(dim=1).tolist(), theirs.sum(dim=1).tolist()
        local = torch.arange(self._num_local).repeat(len(theirs)).repeat_interleave(theirs.flatten())
        self._order = torch.argsort(local, stable=True)
        rows = hidden.reshape(-1, hidden.shape[-1])[self._tokens]
        arrived = AllToAll.apply(rows, self._sent, self._received, self._group)
        weights = AllToAll.apply(probs[self._tokens, slots].unsqueeze(1), self._sent, self._received, self._group)
        return arrived[self._order], theirs.sum(dim=0), weights[self._order].squeeze(1)

    def token_unpermutation(self, output: torch.Tensor) -> torch.Tensor:
        back = torch.zeros_like(output).index_copy(0, self._order, output)
        rows = AllToAll.apply(back, self._received, self._sent, self._group)
        # In the order of slots: with more than two experts a token, the sum's rounding depends on the placement.
        total = torch.zeros(self._shape, dtype=rows.dtype).view(-1, self._shape[-1]).index_add(0, self._tokens, rows)
        return total.view(self._shape)


class GroupedMLP(nn.Module):
    """weight1 [hidden, experts * ffn] and weight2 [experts * ffn, hidden]: experts side by side in memory."""

    def __init__(self, num_local_experts: int, config: TransformerConfig, weights: Any) -> None:
        super().__init__()
        self.num_local_experts, self.config = num_local_experts, config
        ups, downs = zip(*(weights(slot) for slot in range(num_local_experts)))
        self.weight1 = nn.Parameter(torch.stack([up.T for up in ups]).reshape(config.hidden_size, -1))
        self.weight2 = nn.Parameter(torch.stack([down.T for down in downs]).reshape(-1, config.hidden_size))

    def forward(self, hidden: torch.Tensor, tokens_per_expert: torch.Tensor,
                permuted_probs: torch.Tensor) -> "tuple[torch.Tensor, None]":
        ups = self.weight1.view(self.num_local_experts, self.config.hidden_size, -1)
        downs = self.weight2.view(self.num_local_experts, -1, self.config.hidden_size)
        return _by_expert(hidden, tokens_per_expert, permuted_probs,
                          [lambda x, i=i: torch.relu(x @ ups[i]) @ downs[i] for i in range(len(ups))])

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> "dict[str, Any]":
        """Returns one shard for all experts of a rank."""
        rank, size = metadata["ep"]
        return {f"{prefix}{name}": dist_checkpointing.sharded(
            f"{prefix}experts.{name}", getattr(self, name).data.view(self.num_local_experts, -1), sharded_offsets,
            rank * self.num_local_experts, size * self.num_local_experts, prepended=False, copy=metadata["edp_rank"])
            for name in ("weight1", "weight2")}


class Linear(nn.Module):
    def __init__(self, weight: torch.Tensor, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(weight[:, 0].clone()) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(hidden, self.weight, self.bias)


class MLP(nn.Module):
    def __init__(self, up: torch.Tensor, down: torch.Tensor, bias: bool) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = Linear(up, bias), Linear(down, bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.linear_fc2(torch.relu(self.linear_fc1(hidden)))


class SequentialMLP(nn.Module):
    def __init__(self, num_local_experts: int, config: TransformerConfig, weights: Any) -> None:
        super().__init__()
        self.local_experts = nn.ModuleList(MLP(*weights(slot), config.add_bias_linear) for slot in range(num_local_experts))

    def forward(self, hidden: torch.Tensor, tokens_per_expert: torch.Tensor,
                permuted_probs: torch.Tensor) -> "tuple[torch.Tensor, None]":
        return _by_expert(hidden, tokens_per_expert, permuted_probs, list(self.local_experts))

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> "dict[str, Any]":
        rank, size = metadata["ep"]
        num_local, found = len(self.local_experts), {}
        for slot, expert in enumerate(self.local_experts):
            for name, parameter in expert.named_parameters():
                make = dist_checkpointing.halved if name.startswith("linear_fc1") else dist_checkpointing.sharded
                found[f"{prefix}local_experts.{slot}.{name}"] = make(
                    f"{prefix}experts.{name}", parameter.data, sharded_offsets, rank * num_local + slot, size * num_local,
                    copy=metadata["edp_rank"])
        return found


class GroupedLinear(nn.Module):
    def __init__(self, weights: "list[torch.Tensor]") -> None:
        super().__init__()
        for slot, weight in enumerate(weights):
            setattr(self, f"weight{slot}", nn.Parameter(weight.clone()))


class TEGroupedMLP(nn.Module):
    """linear_fc1.weight0, linear_fc1.weight1, ..: a parameter for each expert."""

    def __init__(self, num_local_experts: int, config: TransformerConfig, weights: Any) -> None:
        super().__init__()
        self.num_local_experts = num_local_experts
        ups, downs = zip(*(weights(slot) for slot in range(num_local_experts)))
        self.linear_fc1, self.linear_fc2 = GroupedLinear(list(ups)), GroupedLinear(list(downs))

    def forward(self, hidden: torch.Tensor, tokens_per_expert: torch.Tensor,
                permuted_probs: torch.Tensor) -> "tuple[torch.Tensor, None]":
        def expert(x: torch.Tensor, slot: int) -> torch.Tensor:
            up, down = getattr(self.linear_fc1, f"weight{slot}"), getattr(self.linear_fc2, f"weight{slot}")
            return torch.relu(x @ up.T) @ down.T

        return _by_expert(hidden, tokens_per_expert, permuted_probs,
                          [lambda x, i=i: expert(x, i) for i in range(self.num_local_experts)])

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> "dict[str, Any]":
        rank, size = metadata["ep"]
        found = {}
        for linear in ("linear_fc1", "linear_fc2"):
            make = dist_checkpointing.halved if linear == "linear_fc1" else dist_checkpointing.sharded
            for slot in range(self.num_local_experts):
                found[f"{prefix}{linear}.weight{slot}"] = make(
                    f"{prefix}experts.{linear}.weight", getattr(getattr(self, linear), f"weight{slot}").data,
                    sharded_offsets, rank * self.num_local_experts + slot, size * self.num_local_experts,
                    copy=metadata["edp_rank"])
        return found


class MoELayer(nn.Module):
    def __init__(self, config: TransformerConfig, layer_number: int, parallel_state: ParallelState) -> None:
        super().__init__()
        self.config, self.layer_number = config, layer_number
        size, rank = parallel_state.get_expert_model_parallel_world_size(), parallel_state.get_expert_model_parallel_rank()
        self.num_local_experts = config.num_moe_experts // size
        first = rank * self.num_local_experts
        self.local_expert_indices = list(range(first, first + self.num_local_experts))
        self.router = TopKRouter(config, layer_number)
        group = parallel_state.get_expert_model_parallel_group()
        self.token_dispatcher = MoEAlltoAllTokenDispatcher(self.num_local_experts, group)

        width = config.moe_latent_size or config.hidden_size
        self.latent = nn.ParameterList(
            nn.Parameter(_random(shape, config.seed, layer_number, 997).to(config.params_dtype))
            for shape in ((width, config.hidden_size), (config.hidden_size, width)) if config.moe_latent_size)

        def weights(slot: int) -> "tuple[torch.Tensor, torch.Tensor]":
            up, down = ((config.moe_ffn_hidden_size, width), (width, config.moe_ffn_hidden_size))
            return tuple(_random(shape, config.seed, layer_number, 2 * (first + slot) + part).to(config.params_dtype)
                         for part, shape in enumerate((up, down)))

        kind = {each.__name__: each for each in (GroupedMLP, SequentialMLP, TEGroupedMLP)}[config.experts]
        self.experts = kind(self.num_local_experts, replace(config, hidden_size=width), weights)

    def forward(self, hidden: torch.Tensor) -> "tuple[torch.Tensor, None]":
        """With a latent size the experts' input is projected to it, and their output back."""
        probs, routing_map = self.router(hidden)
        inner = hidden @ self.latent[0].T if len(self.latent) else hidden
        permuted, tokens_per_expert, permuted_probs = self.token_dispatcher.token_permutation(inner, probs, routing_map)
        output, _ = self.experts(permuted, tokens_per_expert, permuted_probs)
        output = self.token_dispatcher.token_unpermutation(output)
        return output @ self.latent[1].T if len(self.latent) else output, None


class TransformerLayer(nn.Module):
    def __init__(self, config: TransformerConfig, layer_number: int, parallel_state: ParallelState) -> None:
        super().__init__()
        self.mlp = MoELayer(config, layer_number, parallel_state)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output, _ = self.mlp(hidden)
        return hidden + output


class Model(nn.Module):
    def __init__(self, config: TransformerConfig, parallel_state: ParallelState) -> None:
        super().__init__()
        self.config = config
        first = 1 + parallel_state.pipeline_stage * config.num_layers
        self.layers = nn.ModuleList(TransformerLayer(config, number, parallel_state)
                                    for number in range(first, first + config.num_layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def _by_expert(hidden: torch.Tensor, tokens_per_expert: torch.Tensor, probs: torch.Tensor,
               experts: "list[Any]") -> "tuple[torch.Tensor, None]":
    parts = torch.split(hidden, tokens_per_expert.tolist())
    output = torch.cat([expert(part) for expert, part in zip(experts, parts)])
    return output * probs.unsqueeze(1).to(output.dtype), None


def _carry(rows: torch.Tensor, sent: "list[int]", received: "list[int]", group: Any) -> torch.Tensor:
    leaving = rows.detach().contiguous().view(torch.uint8)  # gloo does not know bfloat16
    arrived = leaving.new_empty((sum(received), leaving.shape[1]))
    dist.all_to_all_single(arrived, leaving, received, sent, group=group)
    return arrived.view(rows.dtype)


def _random(shape: "tuple[int, ...]", seed: int, layer: int, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * layer + number)
    return torch.randn(shape, generator=generator) * shape[-1] ** -0.5
