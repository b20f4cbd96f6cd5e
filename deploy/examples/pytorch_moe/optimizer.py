"""Adam for dense parameters and for experts slot by slot, bit for bit the same under any placement without replicas.

Three things make it so: an expert's row is updated by itself, as its position in a stacked tensor could change which
elements a vectorised loop rounds otherwise; the gradient norm adds per-expert squares in the order of logical experts;
and the gradients of dense parameters are added in the order of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
import torch

from balancer import Balancer
from collectives import Ranks
from experts import ExpertSlots
from model import LanguageModel
from placement import Placement


@dataclass(frozen=True)
class AdamOptions:
    """learning_rate is reached after warmup_steps, rising linearly. clip: the largest global norm of the gradient.
    state_in_every_replica: all replicas of an expert hold its moments and update themselves; else its primary alone
    does, and gives the others its weights."""
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    first_decay: float = 0.9
    second_decay: float = 0.99
    epsilon: float = 1e-8
    clip: float = 1.0
    state_in_every_replica: bool = True


@dataclass(frozen=True)
class Moments:
    """Of one tensor, in its shape; the experts' are stacked as their weights are."""
    first: torch.Tensor
    second: torch.Tensor

    @staticmethod
    def zeros(like: torch.Tensor) -> Moments:
        return Moments(torch.zeros_like(like), torch.zeros_like(like))


class Adam:
    """The optimizer of one rank. num_updates: steps taken, equal for all parameters on all ranks.

    balancer: keeps experts in several slots one expert.
    """

    def __init__(self, model: LanguageModel, ranks: Ranks, options: AdamOptions, balancer: Balancer) -> None:
        self.options = options
        self.num_updates = 0
        self.dense = {name: each.data for name, each in model.dense().items()}
        self.dense_moments = {name: Moments.zeros(each) for name, each in self.dense.items()}
        self.slots = [layer.slots for layer in model.layers()]
        self.slot_moments = [{name: Moments.zeros(each) for name, each in slots.stacked().items()}
                             for slots in self.slots]
        # As torch's optimizers show what they hold: of the experts, whose parameters have no gradient of their own.
        self.state = {slots.get_parameter(name): {"first_moment": moments.first, "second_moment": moments.second}
                      for slots, of_slots in zip(self.slots, self.slot_moments) for name, moments in of_slots.items()}
        self.param_groups = [{"params": list(self.state)}]
        self._parameters = model.dense()
        self._ranks, self._balancer = ranks, balancer

    def step(self, placement: Placement) -> float:
        """One update from the gradients of this rank's backward pass, which it then clears. Collective.

        returns: the global norm of the gradient before clipping, equal on all ranks; an expert counts once.
        """
        gradients = self._sum_dense_gradients()
        self._balancer.reduce_gradients({layer: slots.gradients for layer, slots in enumerate(self.slots)})
        norm = self._gradient_norm(gradients, placement)
        scale = min(1.0, self.options.clip / (norm + 1e-6))
        self.num_updates += 1
        for name, parameter in self.dense.items():
            self._update(parameter, gradients[name] * scale, self.dense_moments[name])
        for layer, slots in enumerate(self.slots):
            self._update_slots(placement, layer, slots, scale)
        if not self.options.state_in_every_replica:
            self._balancer.broadcast_weights({layer: list(slots.stacked().values())
                                              for layer, slots in enumerate(self.slots)})
        self._clear_gradients()
        return norm

    def _sum_dense_gradients(self) -> dict[str, torch.Tensor]:
        parameters = self._parameters
        flat = self._ranks.sum(torch.cat([each.grad.flatten() for each in parameters.values()]))
        pieces = flat.split([each.numel() for each in parameters.values()])
        return {name: piece.view_as(each) for (name, each), piece in zip(parameters.items(), pieces)}

    def _gradient_norm(self, gradients: dict[str, torch.Tensor], placement: Placement) -> float:
        dense = sum(float(each.double().pow(2).sum()) for each in gradients.values())
        bounds, rank = placement.bounds, self._ranks.rank
        squares = torch.zeros(placement.num_layers, placement.num_experts, dtype=torch.float64)
        for layer, slots in enumerate(self.slots):
            for expert in range(placement.num_experts):
                primary = placement.replicas(layer, expert)[0]
                if bounds[rank] <= primary < bounds[rank + 1]:
                    squares[layer, expert] = slots.gradients[primary - bounds[rank]].double().pow(2).sum()
        # One rank has an expert's square and all others have 0, so that this sum is exact; the next one is in the order
        # of layers and logical experts.
        of_experts = self._ranks.sum(squares.to(self._ranks.device)).flatten().tolist()
        return sum(of_experts, dense) ** 0.5

    def _update_slots(self, placement: Placement, layer: int, slots: ExpertSlots, scale: float) -> None:
        for local_slot, slot in enumerate(placement.local_slots(self._ranks.rank)):
            expert = int(placement.physical_to_logical_map[layer, slot])
            if expert < 0:
                continue
            if not self.options.state_in_every_replica and placement.replicas(layer, expert)[0] != slot:
                continue
            gradients = slots.gradient_of_slot(local_slot)
            for name, weights in slots.stacked().items():
                moments = self.slot_moments[layer][name]
                row = Moments(moments.first[local_slot], moments.second[local_slot])
                self._update(weights[local_slot], gradients[name] * scale, row)

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, moments: Moments) -> None:
        """One Adam update in place, of a dense tensor or of one expert's row of a stacked one."""
        options = self.options
        moments.first.mul_(options.first_decay).add_(gradient, alpha=1 - options.first_decay)
        moments.second.mul_(options.second_decay).addcmul_(gradient, gradient, value=1 - options.second_decay)
        rate = options.learning_rate * min(1.0, self.num_updates / max(1, options.warmup_steps))
        first = moments.first / (1 - options.first_decay ** self.num_updates)
        second = moments.second / (1 - options.second_decay ** self.num_updates)
        parameter.addcdiv_(first, second.sqrt_().add_(options.epsilon), value=-rate)

    def _clear_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
        for slots in self.slots:
            slots.gradients.zero_()
