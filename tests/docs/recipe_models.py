"""Small expert-parallel models with the structure of well-known ones, for the pages' lines to be tried on.

Tokens go to the ranks of their experts and back by all-to-all; what a block gives a token is added in the order of its choices.
"""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HIDDEN, EXPERTS, LAYERS, TOKENS, TOP_K, PHASE_STEPS = 12, 20, 8, 2, 40, 2, 15


class _Send(torch.autograd.Function):
    """Rows to the ranks of a group. leaving, arriving: how many, by rank."""

    @staticmethod
    def forward(context, group, rows, leaving, arriving):
        context.group, context.leaving, context.arriving = group, leaving, arriving
        arrived = rows.new_empty(sum(arriving), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), arriving, leaving, group=group)
        return arrived

    @staticmethod
    def backward(context, gradient):
        return None, _Send.apply(context.group, gradient, context.arriving, context.leaving), None, None


def through_experts(group, tokens, chosen, num_local, compute):
    """[tokens, k, width]: what the expert of each choice makes of a token. chosen: [tokens, k], numbers of slots.

    compute: (rows, [rows of each local expert]) -> rows.
    """
    ranks, order = dist.get_world_size(group), torch.argsort(chosen.reshape(-1), stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=ranks * num_local)
    from_rank = torch.empty_like(counts)
    dist.all_to_all_single(from_rank, counts, group=group)
    leaving, arriving = (each.view(ranks, num_local).sum(dim=1).tolist() for each in (counts, from_rank))
    arrived = _Send.apply(group, tokens[order // chosen.shape[1]], leaving, arriving)
    # By expert, and of each expert by rank: an order that does not depend on where the expert is.
    of_expert = torch.arange(num_local).repeat(ranks).repeat_interleave(from_rank)
    by_expert = torch.argsort(of_expert, stable=True)
    done = torch.empty_like(arrived)
    done = done.index_copy(0, by_expert, compute(arrived[by_expert], from_rank.view(ranks, num_local).sum(dim=0).tolist()))
    back = _Send.apply(group, done, arriving, leaving)
    return torch.empty_like(back).index_copy(0, order, back).view(*chosen.shape, -1)


class MixtralExpert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*shape, bias=False) for shape in
                                     ((WIDTH, HIDDEN), (HIDDEN, WIDTH), (WIDTH, HIDDEN)))

    def forward(self, rows):
        return self.w2(nn.functional.silu(self.w1(rows)) * self.w3(rows))


class MixtralBlock(nn.Module):
    """A gate that gives logits, and a module for each expert of this rank."""

    def __init__(self, group):
        super().__init__()
        self.group, self.local = group, EXPERTS // dist.get_world_size(group)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(MixtralExpert() for _ in range(self.local))

    def forward(self, tokens):
        weights, chosen = torch.topk(self.gate(tokens).softmax(dim=1), TOP_K, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        done = through_experts(self.group, tokens, chosen, self.local, lambda rows, counts: torch.cat(
            [expert(each) for expert, each in zip(self.experts, rows.split(counts))]))
        return (weights.unsqueeze(2) * done).sum(dim=1)


class MixtralLayer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.block_sparse_moe = MixtralBlock(group)

    def forward(self, tokens):
        return tokens + self.block_sparse_moe(tokens)


class GroupedExperts(nn.Module):
    """Stacks of weights."""

    def __init__(self, local):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.empty(local, *shape)) for shape in
                                     ((HIDDEN, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)))

    def forward(self, rows, counts):
        return torch.cat([nn.functional.silu(each @ w1.t()).mul(each @ w3.t()) @ w2.t()
                          for each, w1, w2, w3 in zip(rows.split(counts), self.w1, self.w2, self.w3)])


class TitanRouter(nn.Module):
    """Scores and indices of the choices, and counts for the bias that evens out loads."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, tokens, bias):
        scores = self.gate(tokens).sigmoid()
        _, chosen = torch.topk(scores + bias, TOP_K, dim=-1)
        top = scores.gather(1, chosen)
        return top / top.sum(dim=-1, keepdim=True), chosen, torch.histc(chosen.float(), bins=EXPERTS, min=0, max=EXPERTS)


class TitanMoE(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.local = group, EXPERTS // dist.get_world_size(group)
        self.experts, self.router = GroupedExperts(self.local), TitanRouter()
        self.register_buffer("expert_bias", torch.zeros(EXPERTS))
        self.register_buffer("tokens_per_expert", torch.zeros(EXPERTS), persistent=False)

    def forward(self, tokens):
        scores, chosen, counts = self.router(tokens, self.expert_bias)
        self.tokens_per_expert += counts
        done = through_experts(self.group, tokens, chosen, self.local, self.experts)
        return (scores.unsqueeze(2) * done).sum(dim=1)

    def update_bias(self):
        """After a step, as torchtitan's hook does: from counts by logical expert."""
        dist.all_reduce(self.tokens_per_expert)
        self.expert_bias += 1e-3 * torch.sign(self.tokens_per_expert.mean() - self.tokens_per_expert)
        self.tokens_per_expert.zero_()


class TitanLayer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.moe = TitanMoE(group)

    def forward(self, tokens):
        return tokens + self.moe(tokens)


class Model(nn.Module):
    def __init__(self, layer, group):
        super().__init__()
        self.layers = nn.ModuleList(layer(group) for _ in range(LAYERS))

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def build(layer, group):
    """A model with the same experts on however many ranks."""
    model = Model(layer, group)
    first = dist.get_rank(group) * EXPERTS // dist.get_world_size(group)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
            local = ".experts." in name and isinstance(parameter, nn.Parameter) and parameter.dim() == 3
            single = ".experts." in name and not local
            experts = [first + slot for slot in range(parameter.shape[0])] if local else \
                [first + int(name.split(".experts.")[1].split(".")[0])] if single else [0]
            kind = sum(name.split(".experts.")[-1].encode()) if single else number
            for expert, target in zip(experts, parameter if local else [parameter]):
                generator = torch.Generator().manual_seed(1000 * kind + expert)
                target.copy_(torch.randn(target.shape, generator=generator) * 0.3)
    return model


def batches(steps, ready=lambda step: None):
    """(input, target) of this rank for each step; other experts are hot in each phase. ready(step): once ahead of each."""
    for step in range(steps):
        ready(step)
        kinds = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
        centres = torch.randn(3, WIDTH, generator=kinds) * 2
        generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
        x = centres[torch.randint(3, (TOKENS,), generator=generator)] + torch.randn(TOKENS, WIDTH, generator=generator) * 0.3
        yield x, x.roll(1, dims=1)


def loss_of(model, batch):
    tokens, target = batch
    return ((model(tokens) - target) ** 2).mean()


def reduce_gradients(model):
    """Over the ranks that hold a parameter: all of them, or this one alone where it is an expert's."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if ".experts." not in name:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def end_step(model):
    for layer in model.layers:
        if hasattr(layer, "moe"):
            layer.moe.update_bias()
