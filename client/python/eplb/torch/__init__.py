"""EPLB in a trainer of PyTorch, in three lines:

    attached = eplb.torch.attach(model, optimizer, experts="*.experts", router="gate", ep_group=group, check_batch=batch,
                                 endpoint=.., job=..)
    ... forward, backward, optimizer.step() ...
    attached.step_boundary()

attach finds what belongs to experts, follows their optimizer state, lets routers number slots, and moves experts between
steps: losses and weights stay the same to the bit. docs/attach.md says how. The parts under it are for adapters of frameworks:
pieces, carry, groups, routing, state. It needs torch, which the rest of the package does without.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

import torch.distributed as dist
from torch import nn

from eplb.all_gather import alone, torch_all_gather
from eplb.errors import InvalidArgument
from eplb.torch.attached import Attached
from eplb.torch.groups import groups_of_mesh
from eplb.torch.layers import Experts, Router
from eplb.torch.pieces import ExpertTensor, Piece
from eplb.torch.routing import Seam, SlotColumns, Turn
from eplb.torch.scattered import Part
from eplb.torch.state import Masters
from eplb.torch.watcher import Watcher, watch


def attach(model: Union[nn.Module, Sequence[nn.Module]], optimizer: Any = None, *, experts: Experts,
           router: Optional[Router] = None, ep_group: Any = None, edp_group: Any = None, pp_group: Any = None, etp_group: Any = None,
           device_mesh: Any = None, boundary: Any = "call", turn: Optional[Turn] = None, seam: Optional[Seam] = None,
           num_local_experts: Optional[int] = None, masters: Optional[Masters] = None, refresh: Optional[Callable[[], None]] = None,
           check_batch: Any = None, all_gather: Any = None, **options: Any) -> Attached:
    """Finds the experts of a model, connects, and hooks routers, state dicts and, on demand, the optimizer. Collective over the
    job; after model and optimizer were built, and before CUDA graphs are captured. docs/attach.md describes the arguments.

    model: a module, or the list of this rank's chunks. optimizer: of torch, a list of them, or None for no training.
    experts: modules that hold the local experts of a layer: a pattern of names, a class, or (module) -> bool.
    num_local_experts: needed if the first dimension of stacked parameters is another number.
    router: its name in the nearest module around the experts that has one, or (module around the experts) -> the router.
    turn: (output, columns) -> output by slots, for outputs that eplb.torch.routing.turn_by_shape does not recognise.
    seam: instead of the router's output: (layer, columns) -> a hook with remove(), at the place where the layer's choices pass:
    before it numbers are logical experts, after it slots. Called once a layer; it counts by columns.count_and_turn.
    ep_group, edp_group, pp_group, etp_group: ProcessGroups, or DeviceMeshes of one dimension; ep_group None: all ranks.
    device_mesh: instead of groups, a mesh with dimensions named ep, edp, pp, etp.
    boundary: "call": the trainer calls step_boundary. "optimizer": the step by which each optimizer has made one calls it. An
    object: its method step ends with it, such as that of a framework's optimizer around torch's.
    masters: (parameter of the model) -> the tensor that the optimizer updates in its place, or None; or a Part of a flat tensor,
    such as a partition over the ranks of edp_group.
    refresh: brings weights up to date on this rank, if the optimizer's step leaves that to the next forward. It runs before
    experts may move.
    check_batch: a batch that the model is called with, of any size: attach ends with attached.check_forward(check_batch), and
    nothing moves unless it passed. None: nothing moves until the trainer has called check_forward. False: expert e is known to be
    in slot e, and nothing verifies it.
    all_gather: bytes -> bytes of all ranks, in torch's order; default eplb.torch_all_gather(). options: of eplb.Client.connect.
    errors: InvalidArgument naming module, parameter, state or option; FailedPrecondition on ranks without a fault of their own.
    With EPLB_DISABLE=1, on all ranks, nothing is done.
    """
    groups = {"ep_group": ep_group, "edp_group": edp_group, "pp_group": pp_group, "etp_group": etp_group}
    if device_mesh is not None:
        if any(group is not None for group in groups.values()):
            raise InvalidArgument("device_mesh: the groups follow from it; give it or them")
        groups.update(groups_of_mesh(device_mesh))
    for name, group in groups.items():
        if group is not None and not hasattr(group, "get_group") and not isinstance(group, dist.ProcessGroup):
            raise InvalidArgument(f"{name} is a {type(group).__name__}, expected a ProcessGroup, as torch.distributed.new_group "
                                  f"gives, or a DeviceMesh of one dimension")
    if all_gather is None:
        all_gather = torch_all_gather() if dist.is_available() and dist.is_initialized() else _Alone()
    return Attached(model, optimizer, experts=experts, router=router, groups=groups, all_gather=all_gather, boundary=boundary,
                    turn=turn, seam=seam, num_local_experts=num_local_experts, masters=masters, refresh=refresh,
                    check_batch=check_batch, options=options)


class _Alone:
    """The all-gather of a job that is this process."""

    rank, world_size = 0, 1

    def __call__(self, data: bytes) -> Any:
        return alone(data)


__all__ = ["Attached", "ExpertTensor", "Part", "Piece", "SlotColumns", "Watcher", "attach", "watch"]
