"""Experts in several slots stay one expert in training: gradients are summed over replicas in a fixed order, the primary's
weights are given on, and an expert counts once in a norm. Over torch.distributed.

    replicas = Replicas(client)
    for layer in layers: replicas.reduce_gradients(layer, gradients[layer])     # at the primaries; to_all=True: everywhere
    norm = replicas.gradient_norm(gradients, dense_squares)
    ... optimizer ...
    for layer in layers: replicas.broadcast_weights(layer, weights[layer])      # where the primary alone was updated

gradients[layer] and weights[layer]: a tensor [local slots, ..], or a list of such tensors. Threads: the training thread. Every
call is collective among the ranks of an EP group, but it costs nothing in a layer whose experts have one replica each. Before rows
of a new kind (call, layer, type, shape) are carried for the first time, the ranks compare it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Set, Tuple, Union

import numpy as np
import torch
import torch.distributed as dist

from eplb.errors import InvalidArgument

# A copy of one slot's row into another slot of the layer: (from, to).
Transfer = Tuple[int, int]
# Of a layer: each [local slots, ..].
Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]


class Placed(Protocol):
    """What is read of a placement; eplb.PlacementView has it."""

    num_layers: int
    num_experts: int
    num_slots: int
    num_gpus: int
    logical_to_physical_map: np.ndarray
    logical_replica_count: np.ndarray

    @property
    def version(self) -> int: ...


class HasPlacement(Protocol):
    @property
    def placement(self) -> Placed: ...


def slot_bounds(num_slots: int, num_gpus: int) -> List[int]:
    """The slots of GPU g are bounds[g] .. bounds[g + 1] - 1; the first num_slots % num_gpus GPUs hold one more."""
    least, more = divmod(num_slots, num_gpus)
    return [gpu * least + min(gpu, more) for gpu in range(num_gpus + 1)]


class Replicas:
    """Of one rank. client: an eplb.Client, or anything with its `placement`, which is read anew at each switch.

    group: the process group of this rank's ep_group, its ranks in the order of GPUs; None: all ranks.
    errors: InvalidArgument, before any collective, when the group has another number of ranks than an EP group has GPUs, when
    the placement has first_local_slot and this rank's place in the group means another, and for a layer that is not in
    the placement; on every rank, before rows are carried, when ranks differ in the kind of rows. Errors of torch.distributed
    come through. Nothing is recorded for autograd: rows may be parameters.
    """

    def __init__(self, client: HasPlacement, group: Optional[Any] = None) -> None:
        self._client, self._group = client, group
        self._rank = dist.get_rank(group) if dist.is_initialized() else 0
        num_gpus = dist.get_world_size(group) if dist.is_initialized() else 1
        placement = client.placement
        if num_gpus != placement.num_gpus:
            raise InvalidArgument(f"the group has {num_gpus} ranks, an EP group has {placement.num_gpus} GPUs")
        self._bounds = slot_bounds(placement.num_slots, num_gpus)
        self._first, self._end = self._bounds[self._rank:self._rank + 2]
        first = getattr(placement, "first_local_slot", self._first)
        if first != self._first:
            raise InvalidArgument(f"rank {self._rank} of the group would hold the slots from {self._first} on, this client "
                                  f"holds those from {first} on: the group is not its EP group in the order of GPUs")
        self._version = -1
        self._to_primaries: Dict[int, List[Transfer]] = {}
        self._agreed: Set[str] = set()  # kinds of rows that the ranks have compared

    @torch.no_grad()
    def reduce_gradients(self, layer: int, rows: Tensors, to_all: bool = False) -> None:
        """Adds to each primary's row those of the other replicas, in the order of replicas, in place: equal input gives
        equal bits. to_all: the others then get the sum, for optimizers that update every replica.

        rows: [local slots, ..], e.g. gradients of the tokens that each replica got; zeros where there were none.
        """
        transfers = self._transfers(layer)
        for tensor in self._tensors(layer, rows) if transfers else ():
            self._compare(f"reduce_gradients{' to all' if to_all else ''}", layer, tensor)
            for slot, row in self._carry(tensor, transfers):
                tensor[slot] += row
            if to_all:
                self._broadcast(tensor, transfers)

    @torch.no_grad()
    def broadcast_weights(self, layer: int, rows: Tensors) -> None:
        """Overwrites the rows of all other replicas with their primary's, in place. rows: [local slots, ..]."""
        transfers = self._transfers(layer)
        for tensor in self._tensors(layer, rows) if transfers else ():
            self._compare("broadcast_weights", layer, tensor)
            self._broadcast(tensor, transfers)

    @torch.no_grad()
    def expert_squares(self, rows: Mapping[int, Tensors]) -> torch.Tensor:
        """The sums of squares of each expert's rows at its primary, float64 [layers, experts] on the host, equal on all
        ranks of the ep_group.

        rows: layer -> its tensors [local slots, ..]; layers that are left out have 0. Replicas other than the primary are not
        looked at, so that each expert counts once: call it after reduce_gradients.
        """
        placement = self._client.placement
        squares = torch.zeros(placement.num_layers, placement.num_experts, dtype=torch.float64)
        for layer, given in rows.items():
            self._expect_layer(layer, placement)
            tensors = self._tensors(layer, given)
            primaries = placement.logical_to_physical_map[layer, :, 0]
            for expert in np.flatnonzero((primaries >= self._first) & (primaries < self._end)).tolist():
                slot = int(primaries[expert]) - self._first
                squares[layer, expert] = sum(float(tensor[slot].double().pow(2).sum()) for tensor in tensors)
        # One rank has an expert's square and all others 0: the sum is exact in any order.
        return self._sum(squares)

    @torch.no_grad()
    def gradient_norm(self, rows: Mapping[int, Tensors], dense_squares: float = 0.0) -> float:
        """The global norm: dense_squares, then each expert once, in the order of layers and logical experts. Equal on all
        ranks to the bit if dense_squares is, under any placement. rows: as expert_squares.

        dense_squares: of everything else. Pipeline stages hold different layers: there, add up expert_squares yourself.
        """
        return float(sum(self.expert_squares(rows).flatten().tolist(), float(dense_squares))) ** 0.5

    def _transfers(self, layer: int) -> List[Transfer]:
        """One for every replica that is not a primary, to the primary: experts rising, replicas in their order."""
        placement = self._client.placement
        self._expect_layer(layer, placement)
        if placement.version != self._version:
            self._version, self._to_primaries = placement.version, {}
        if layer not in self._to_primaries:
            counts, slots = placement.logical_replica_count[layer], placement.logical_to_physical_map[layer]
            self._to_primaries[layer] = [(int(slot), int(slots[expert, 0])) for expert in np.flatnonzero(counts > 1)
                                         for slot in slots[expert, 1:counts[expert]]]
        return self._to_primaries[layer]

    def _broadcast(self, rows: torch.Tensor, transfers: Sequence[Transfer]) -> None:
        for slot, row in self._carry(rows, [(primary, slot) for slot, primary in transfers]):
            rows[slot] = row

    def _carry(self, rows: torch.Tensor, transfers: Sequence[Transfer]) -> List[Tuple[int, torch.Tensor]]:
        """returns: (local slot, row) of the transfers that end on this rank, in their order."""
        num_gpus = len(self._bounds) - 1
        sent: List[List[int]] = [[] for _ in range(num_gpus)]
        arriving: List[List[int]] = [[] for _ in range(num_gpus)]  # numbers of transfers, by sender
        targets: List[int] = []
        for source, target in transfers:
            sender, receiver = self._gpu_of(source), self._gpu_of(target)
            if sender == self._rank:
                sent[receiver].append(source - self._first)
            if receiver == self._rank:
                arriving[sender].append(len(targets))
                targets.append(target - self._first)
        leaving = rows.reshape(len(rows), -1)[torch.tensor(sum(sent, []), dtype=torch.int64, device=rows.device)]
        arrived = self._all_to_all(leaving, [len(each) for each in sent], [len(each) for each in arriving])
        place = {number: i for i, number in enumerate(sum(arriving, []))}
        return [(slot, arrived[place[number]].view(rows.shape[1:])) for number, slot in enumerate(targets)]

    def _all_to_all(self, rows: torch.Tensor, sent: List[int], received: List[int]) -> torch.Tensor:
        if len(sent) == 1:
            return rows
        through_host = rows.is_cuda and dist.get_backend(self._group) == "gloo"
        # As bytes: gloo does not know every type.
        leaving = (rows.cpu() if through_host else rows.contiguous()).view(torch.uint8)
        arrived = leaving.new_empty((sum(received), leaving.shape[1]))
        dist.all_to_all_single(arrived, leaving, received, sent, group=self._group)
        return (arrived.to(rows.device) if through_host else arrived).view(rows.dtype)

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        if len(self._bounds) == 2:
            return values
        on_gpu = dist.get_backend(self._group) == "nccl"
        mine = values.cuda() if on_gpu else values
        dist.all_reduce(mine, group=self._group)
        return mine.cpu()

    def _gpu_of(self, slot: int) -> int:
        return int(np.searchsorted(self._bounds, slot, side="right")) - 1

    def _expect_layer(self, layer: int, placement: Placed) -> None:
        if not 0 <= layer < placement.num_layers:
            raise InvalidArgument(f"layer {layer}: the placement has layers 0..{placement.num_layers - 1}")

    def _tensors(self, layer: int, given: Tensors) -> List[torch.Tensor]:
        tensors = [given] if given is None or isinstance(given, torch.Tensor) else list(given)
        for rows in tensors:
            if not isinstance(rows, torch.Tensor):
                raise InvalidArgument(f"layer {layer}: rows are {type(rows).__name__}, expected a tensor [local slots, ..]; "
                                      "where experts have no gradient, give zeros")
            if rows.dim() == 0 or len(rows) != self._end - self._first:
                raise InvalidArgument(f"layer {layer}: rows have shape {list(rows.shape)}, expected the "
                                      f"{self._end - self._first} local slots first")
        return tensors

    def _compare(self, call: str, layer: int, rows: torch.Tensor) -> None:
        """errors: InvalidArgument on every rank, naming two that differ. cost: nothing for a kind of rows that was compared."""
        kind = f"{call} of layer {layer}, {str(rows.dtype).replace('torch.', '')} {list(rows.shape[1:])} a slot"
        if kind in self._agreed or len(self._bounds) == 2:
            return
        kinds: List[Any] = [None] * (len(self._bounds) - 1)
        dist.all_gather_object(kinds, kind, group=self._group)
        for rank, other in enumerate(kinds):
            if other != kinds[0]:
                raise InvalidArgument(f"rank 0 of the group came with {kinds[0]}, rank {rank} with {other}")
        self._agreed.add(kind)
