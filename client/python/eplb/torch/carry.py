"""Experts carried from the slots of one permutation to those of another, without the client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from eplb.torch.pieces import ExpertTensor


def static_experts(num_layers: int, num_experts: int) -> np.ndarray:
    """[layers, slots]: expert e in slot e, as a trainer builds and loads the model."""
    return np.tile(np.arange(num_experts), (num_layers, 1))


def carry(tensors: Sequence[ExpertTensor], before: np.ndarray, after: np.ndarray, gpu: int, group: Any,
          gpus: Sequence[int] = ()) -> None:
    """Moves rows from the slots of one permutation to those of another, in place. Collective in the EP group.

    before, after: [layers, slots], the expert in each slot. gpu: this rank's place in the order of experts. group: the ranks of
    the EP group. gpus: the place of each of its ranks; default: its own order.
    cost: at most the bytes of all local experts each way, one all-to-all a tensor.
    """
    for tensor in tensors:
        old, new = before[tensor.layer], after[tensor.layer]
        if (old == new).all():
            continue
        per_gpu = len(tensor.rows)
        targets = np.argsort(new)[old]  # of the row in each slot
        owners, num_gpus = targets // per_gpu, len(old) // per_gpu
        order = np.array(gpus or range(num_gpus))
        place = np.argsort(order)  # place of each GPU in `group`
        first = gpu * per_gpu
        leaving = np.argsort(place[owners[first:first + per_gpu]], kind="stable")
        # Those that come, by sender and then by the slot they leave.
        coming = np.flatnonzero(owners == gpu)
        coming = coming[np.argsort(place[coming // per_gpu], kind="stable")]
        arriving = targets[coming] - first
        sent = np.bincount(owners[first:first + per_gpu], minlength=num_gpus)[order].tolist()
        received = np.bincount(coming // per_gpu, minlength=num_gpus)[order].tolist()
        rows = tensor.rows[torch.tensor(leaving, device=tensor.rows.device)]
        tensor.rows[torch.tensor(arriving, device=rows.device)] = _all_to_all(rows, sent, received, group)


def carry_scalars(scalars: Sequence[Tuple[str, Sequence[Dict[str, Any]]]], layer: int, before: np.ndarray, after: np.ndarray,
                  carry_rows: Callable[..., None], device: torch.device) -> None:
    """Moves numbers of one layer's experts as carry_rows does rows: (key, for each local slot its dict). Tensors of one element
    keep their memory. device: where collectives work. cost: one all-to-all, and a wait for the device."""
    if not scalars or (before[layer] == after[layer]).all():
        return
    columns = [_column([state[key] for state in states]).to(device) for key, states in scalars]
    rows = torch.stack(columns, dim=1)
    carry_rows([SimpleNamespace(layer=layer, rows=rows)], before, after)
    for (key, states), values in zip(scalars, rows.t().tolist()):
        for state, value in zip(states, values):
            if torch.is_tensor(state[key]):
                state[key].fill_(value)
            else:
                state[key] = type(state[key])(value)


def _column(values: Sequence[Any]) -> torch.Tensor:
    """float64, which holds steps and products of decays exactly."""
    if torch.is_tensor(values[0]):
        return torch.stack([value.detach().reshape(()) for value in values]).double()
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def _all_to_all(rows: torch.Tensor, sent: List[int], received: List[int], group: Any) -> torch.Tensor:
    if len(sent) == 1:
        return rows
    leaving = rows.contiguous().view(torch.uint8)  # gloo does not know every type
    arrived = torch.empty_like(leaving)  # a permutation: as many rows come as go
    dist.all_to_all_single(arrived, leaving, received, sent, group=group)
    return arrived.view(rows.dtype)
