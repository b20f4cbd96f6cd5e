"""A small expert-parallel model for the pages' lines to be tried on.

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


class GroupedExperts(nn.Module):
    """Stacks of weights."""

    def __init__(self, local):
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.empty(local, *shape)) for shape in
                                     ((HIDDEN, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)))

    def forward(self, rows, counts):
        return torch.cat([nn.functional.silu(each @ w1.t()).mul(each @ w3.t()) @ w2.t()
                          for each, w1, w2, w3 in zip(rows.split(counts), self.w1, self.w2, self.w3)])


class Router(nn.Module):
    """Scores and indices of the choices."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)

    def forward(self, tokens):
        top, chosen = torch.topk(self.gate(tokens).sigmoid(), TOP_K, dim=-1)
        return top / top.sum(dim=-1, keepdim=True), chosen


class MoE(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.local = group, EXPERTS // dist.get_world_size(group)
        self.experts, self.router = GroupedExperts(self.local), Router()

    def forward(self, tokens):
        scores, chosen = self.router(tokens)
        done = through_experts(self.group, tokens, chosen, self.local, self.experts)
        return (scores.unsqueeze(2) * done).sum(dim=1)


class Layer(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.moe = MoE(group)

    def forward(self, tokens):
        return tokens + self.moe(tokens)


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.layers = nn.ModuleList(Layer(group) for _ in range(LAYERS))

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def build(group):
    """A model with the same experts on however many ranks."""
    model = Model(group)
    first = dist.get_rank(group) * EXPERTS // dist.get_world_size(group)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
            is_local = ".experts." in name
            for place, target in enumerate(parameter if is_local else [parameter]):
                generator = torch.Generator().manual_seed(1000 * number + (first + place if is_local else 0))
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
