"""EPLB in a trainer of PyTorch, in three lines:

    attached = eplb.torch.attach(model, optimizer, experts="*.experts", router="gate", ep_group=group, endpoint=.., job=..)
    ... forward, backward, optimizer.step() ...
    attached.step_boundary()

attach finds what belongs to experts, follows their optimizer state, lets routers number slots, and moves experts between
steps: losses and weights stay the same to the bit. docs/attach.md says how. The parts under it are for adapters of frameworks:
pieces, carry, groups, routing, state. It needs torch, which the rest of the package does without.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import torch.distributed as dist
from torch import nn

from eplb.all_gather import alone, torch_all_gather
from eplb.errors import InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.groups import groups_of_mesh
from eplb.torch.layers import Experts, Router
from eplb.torch.pieces import ExpertTensor, Piece
from eplb.torch.routing import SlotColumns, Turn
from eplb.torch.state import Masters


def attach(model: Union[nn.Module, Sequence[nn.Module]], optimizer: Any = None, *, experts: Experts, router: Router,
           ep_group: Any = None, edp_group: Any = None, pp_group: Any = None, etp_group: Any = None, device_mesh: Any = None,
           boundary: str = "call", turn: Optional[Turn] = None, num_local_experts: Optional[int] = None,
           masters: Optional[Masters] = None, all_gather: Any = None, **options: Any) -> Attached:
    """Finds the experts of a model, connects, and hooks routers, state dicts and, on demand, the optimizer. Collective over the
    job; after model and optimizer are there, and before CUDA graphs are captured.

    model: a module, or the list of this rank's chunks. optimizer: of torch, a list of such, or None for no training.
    experts: which modules hold the local experts of a MoE layer: a pattern of their names as of fnmatch, a class, or
        (module) -> bool. Their parameters are a stack [local experts, ..] each, or those of a list with a module for each
        expert, or numbered at the end of their names (weight0, weight1, ..). num_local_experts: where that does not show.
    router: its name in the nearest module around the experts that has one, or (module around the experts) -> the router.
        Its output is turned from logical experts to slots, as eplb.torch.routing.ByShape knows it, or by `turn`.
    ep_group: ProcessGroup over whose ranks a layer's experts are spread, in order; None: all ranks. edp_group: ranks that hold the
        same experts; pp_group: stages of a pipeline; etp_group: ranks that share each expert and route other tokens. Each may be
        a DeviceMesh of one dimension; device_mesh: one with dimensions named ep, edp, pp, etp instead.
    boundary: "call": the trainer calls step_boundary after each optimizer.step(). "optimizer": the step does by which each
        optimizer has made one since the last; not with what skips steps on some ranks alone, or of some optimizers.
    masters: (parameter of the model) -> the tensor that the optimizer updates in its place, or None.
    all_gather: bytes -> those of all ranks in torch's order, with world_size; default eplb.torch_all_gather().
    options: of eplb.Client.connect, such as endpoint, job, first_step, vote_every, num_nodes. The first placement is static,
        unless initial_placement is given: experts are then carried there.
    errors: InvalidArgument naming module, parameter, state or option; FailedPrecondition on the ranks where nothing is wrong.
    With EPLB_DISABLE=1, on all ranks, nothing is done.
    """
    groups = {"ep_group": ep_group, "edp_group": edp_group, "pp_group": pp_group, "etp_group": etp_group}
    if device_mesh is not None:
        if any(group is not None for group in groups.values()):
            raise InvalidArgument("device_mesh: the groups follow from it; give it or them")
        groups.update(groups_of_mesh(device_mesh))
    if all_gather is None:
        all_gather = torch_all_gather() if dist.is_available() and dist.is_initialized() else _Alone()
    return Attached(model, optimizer, experts=experts, router=router, groups=groups, all_gather=all_gather, boundary=boundary,
                    turn=turn, num_local_experts=num_local_experts, masters=masters, options=options)


class _Alone:
    """The all-gather of a job that is this process."""

    rank, world_size = 0, 1

    def __call__(self, data: bytes) -> Any:
        return alone(data)


__all__ = ["Attached", "ExpertTensor", "Piece", "SlotColumns", "attach"]
