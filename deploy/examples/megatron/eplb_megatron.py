"""EPLB in a Megatron-Core training: attach after the model and its optimizer are there, step_boundary after each step.

    balancer = EplbMegatron.attach(model, optimizer, endpoint="127.0.0.1:29610", job="pretrain", first_step=iteration)
    ... forward, backward, optimizer.step() ...
    balancer.step_boundary(iteration)

Nothing of Megatron is imported but megatron.core.parallel_state, and that only where none is given. README.md beside this
file says where each call goes, what is supported and what is refused. Threads: the training thread.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

import numpy as np
import torch
import torch.distributed as dist

import eplb
from eplb import checkpoint
from eplb.options import to_struct
from eplb.torch.carry import static_experts
from eplb.torch.groups import InEplbOrder, agreed_experts
from eplb.torch.routing import TokenCounts
from eplb_megatron_checkpoint import LogicalKeys, LogicalState
from eplb_megatron_holdings import Finder, Groups, Holdings
from eplb_megatron_layers import SlotRouting, find_layers
from eplb_megatron_optimizer import ExpertState, leaves_of
from eplb_megatron_ranks import connect_options, coordinates_of, number_layers
from eplb_megatron_watch import Watch

# Tensors [experts, ..] of routers are equal on all ranks; with one EP rank they look like experts'.
_NO_EXPERTS = ("*router.*",)
# Rows of the fixed input of check_experts: fp8 kernels want a multiple of 16.
_PROBE_TOKENS = 16


class EplbMegatron:
    """The experts of one rank, wherever they are. Every call but tokens_per_expert, check, sharded_load and close
    is collective.

    client: the eplb.Client. layers: this rank's MoE layers; layers[i].index is EPLB's number of one.
    """

    def __init__(self, model: Union[torch.nn.Module, Sequence[torch.nn.Module]], optimizer: Any, parallel_state: Any,
                 all_gather: Any, options: Mapping[str, Any]) -> None:
        """Arguments are those of attach."""
        self._chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self._coordinates = coordinates_of(parallel_state, all_gather.world_size)
        self._all_gather = InEplbOrder(all_gather, self._coordinates.rank, all_gather.world_size)
        groups = Groups(self._coordinates, parallel_state.get_expert_model_parallel_group(),
                        parallel_state.get_expert_data_parallel_group())
        self._etp_group = None
        if self._coordinates.expert_tensor_size > 1:
            self._etp_group = parallel_state.get_expert_tensor_parallel_group()
        self._leaves = self._all_gather.together(lambda: leaves_of(optimizer))
        self.layers = self._all_gather.together(lambda: find_layers(self._chunks))
        numbers, num_layers = number_layers(self._all_gather, [layer.key for layer in self.layers])
        for layer, number in zip(self.layers, numbers):
            layer.index = number
        num_experts = agreed_experts(self._all_gather, [layer.num_experts for layer in self.layers])
        self._static = static_experts(num_layers, num_experts)
        connecting = self._all_gather.together(lambda: connect_options(self._coordinates, num_layers, num_experts, options))
        self.client = eplb.Client.connect(self._all_gather, **connecting)
        struct = to_struct(self.client.options)
        self._intervals = (struct.vote_every, struct.report_every)
        self._registered: Optional[Holdings] = None
        self._skipped_steps, self._in_static_order = 0, False
        self._state = ExpertState(self._leaves)
        try:
            self._finder = Finder(self.layers, self._state, self._all_gather, groups)
            self._holdings().carry(self._static, self.client.placement.physical_to_logical_map)
        except eplb.Error as error:
            self.client.close(str(error))
            raise
        self._keys: List[Union[LogicalKeys, LogicalState]] = []
        device = next(self.layers[0].parameters()).device if self.layers else torch.device("cpu")
        self._counts = TokenCounts(len(self.layers), num_experts, device)
        for layer, ledger in zip(self.layers, self._counts.ledgers):
            layer.routing = SlotRouting(layer, ledger)
            self._keys.append(LogicalKeys(layer, lambda number=layer.index: self._experts()[number]))
        self._keys += [LogicalState(leaf, self._is_static) for leaf in self._state.leaves_of_experts(self.layers)]
        self._follow_placement()

    @classmethod
    def attach(cls, model: Union[torch.nn.Module, Sequence[torch.nn.Module]], optimizer: Any, *, parallel_state: Any = None,
               all_gather: Any = None, **options: Any) -> EplbMegatron:
        """Connects, carries the experts to the first placement, and hooks the routers. Collective over the whole job.

        Call it after setup_model_and_optimizer: weights, masters and loaded state are in Megatron's own order then, and
        it is before CUDA graphs are captured. model: a module or the list of this rank's chunks. optimizer: Megatron's.
        parallel_state: default megatron.core.parallel_state. all_gather: bytes -> the bytes of all ranks in the order of
        torch's ranks, with world_size; default eplb.torch_all_gather(), which waits 60 s for each rank. options: of
        eplb.Client.connect, such as endpoint, job, first_step, num_nodes; what follows from model and groups is refused.
        errors: InvalidArgument naming layer, tensor, optimizer or option; on every rank when any refuses.
        """
        if parallel_state is None:
            from megatron.core import parallel_state  # type: ignore[import-not-found,no-redef]
        return cls(model, optimizer, parallel_state, all_gather or eplb.torch_all_gather(), options)

    # ---- training ----

    def step_boundary(self, step: int) -> eplb.Boundary:
        """Once after each optimizer step, also a skipped one. errors: as eplb.Client.step_boundary.

        Moments are there after the first step that is not skipped: it registers everything. Steps skipped before it are
        not EPLB's steps; its numbers stay behind by them.
        """
        if self._in_static_order:
            raise eplb.FailedPrecondition("step_boundary was called within static_order")
        if self._registered is None and not self._register_when_ready():
            self._skipped_steps += 1
            self._counts.clear()
            return eplb.Boundary(False, False, self.client.placement.version, 0, 0, 0.0, 0, 0, "")
        holdings = self._expect_memory()
        step -= self._skipped_steps
        self._record(step)
        if (step + 1) % self._intervals[0] == 0:
            holdings.collect()
        before = self.client.placement.physical_to_logical_map.copy()
        result = self.client.step_boundary(step)
        if result.switched:
            holdings.follow(before, self.client.placement.physical_to_logical_map)
            self._follow_placement()
        if self._is_read(step + 1):
            self._counts.start_reading(self._reduce_counts)
        self._counts.end_step()
        return result

    def tokens_per_expert(self) -> torch.Tensor:
        """int64 [this rank's MoE layers, logical experts], on their device: what this rank's routers sent since counts were
        last taken for the daemon."""
        return self._counts.now()

    # ---- verification ----

    def check(self, ignore: Iterable[str] = ()) -> None:
        """Names per-expert tensors of model and optimizers that are not registered. After the first step_boundary; for this
        rank alone. ignore: patterns of names that are no expert's. errors: InvalidArgument."""
        self._expect_registered("check")
        model = torch.nn.ModuleList(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        late = self._finder.unregistered()
        if late:
            raise eplb.InvalidArgument(f"check: state that the optimizer made after everything was registered stays behind when "
                                       f"experts move: {', '.join(late[:20])}")
        left_out = self._finder.not_as_they_are()
        known = [_any_number(name) for name, each in model.named_parameters() for layer in self.layers
                 for family, parameters in layer.families.items() if (layer.index, family) in left_out
                 and any(each is parameter for parameter in parameters)]
        for view in self._state.views(self.layers, self._chunks, left_out):
            self.client.check(model, view, ignore=(*_NO_EXPERTS, *known, *ignore))

    def check_experts(self) -> None:
        """Moves every expert by one slot and back, and lets each compute a fixed input in all places. Collective, between
        two steps. errors: InvalidArgument naming the expert that computes with a tensor that does not move."""
        self._expect_registered("check_experts").refresh()
        self.client.check_experts(self._probe)
        self._follow_placement()

    # ---- checkpoints ----

    def save(self, path: checkpoint.PathLike, **options: Any) -> None:
        """eplb.checkpoint.save of the experts, in logical order. options: fields, dense, sharded_state. errors:
        InvalidArgument where the optimizer's state is in shards, which it does not write."""
        self._expect_registered("save")
        self._expect_whole("save")
        checkpoint.save(path, self.client, **options)

    def load(self, path: checkpoint.PathLike, **options: Any) -> Dict[str, Any]:
        """eplb.checkpoint.load into the experts of this placement, also before the first step. Adam's step and all that is
        no expert's is not in it."""
        self._expect_whole("load")
        if self._registered is None and not self._register_when_ready():
            self._all_gather.together(self._state.create)
            if not self._register_when_ready():
                raise eplb.FailedPrecondition("load was called before the first step_boundary, and init_state_fn made no state")
        fields = checkpoint.load(path, self.client, **options)
        for weights in self._expect_registered("load").buffered:
            weights.spread(range(len(weights.rows)))
        return fields

    @contextlib.contextmanager
    def static_order(self) -> Iterator[None]:
        """Within it every expert is in its own slot, so that anything of Megatron may save (or, before the first
        step_boundary, load) the model; no forward runs. It carries all local experts over the EP group, twice."""
        here = self._experts().copy()
        self._holdings().carry(here, self._static)
        self._in_static_order = True
        try:
            yield
        finally:
            self._in_static_order = False
            self._holdings().carry(self._static, here)

    @contextlib.contextmanager
    def sharded_load(self) -> Iterator[None]:
        """Within it load_state_dict takes, under any placement, what sharded_state_dict was asked for within it. For this
        rank alone."""
        for keys in self._keys:
            keys.permit_load(True)
        try:
            yield
        finally:
            for keys in self._keys:
                keys.permit_load(False)

    def close(self, reason: str = "finished") -> None:
        """Experts move no more. They stay where they are and are found there: the model may be evaluated and saved after it.
        Not collective."""
        self.client.close(reason)

    # ---- parts ----

    def _experts(self) -> np.ndarray:
        """[layers, slots]: where the experts' memory is now."""
        return self._static if self._in_static_order else self.client.placement.physical_to_logical_map

    def _is_static(self) -> bool:
        return bool((self._experts() == self._static).all())

    def _holdings(self) -> Holdings:
        """All that belongs to experts and is there now; what is registered, once that is done. Collective."""
        if self._registered is None:
            return self._finder.find()
        self._all_gather.together(self._adopt)
        return self._registered

    def _adopt(self) -> None:
        if not self._watch.intact():
            self._watch.adopt()

    def _register_when_ready(self) -> bool:
        """returns: whether everything is registered now. errors: FailedPrecondition when ranks or experts differ."""
        found = self._all_gather.objects({"there": self._state.is_there(self.layers),
                                        "scalars": self._state.scalars(self.layers)})
        waiting = [rank for rank, each in enumerate(found) if each["there"] is False]
        if waiting and any(each["there"] for each in found):
            raise eplb.FailedPrecondition(f"ranks {waiting[:8]} have no optimizer state after this step, others have: a "
                                          f"step must be skipped on all ranks or none")
        if waiting:
            return False
        for name in sorted({name for each in found for name in each["scalars"]}):
            values = sorted({value for each in found for value in each["scalars"].get(name, ())})
            if len(values) > 1:
                raise eplb.FailedPrecondition(f"optimizer state {name} is {values[:4]} for different experts: it stays with "
                                              f"the slot, and must be the same for all")
        holdings = self._finder.find()
        holdings.register(self.client)
        self._registered, self._watch = holdings, Watch(self.layers, self._state, holdings.tensors)
        return True

    def _expect_registered(self, call: str) -> Holdings:
        if self._registered is None:
            raise eplb.FailedPrecondition(f"{call} was called before the first step_boundary")
        return self._registered

    def _expect_whole(self, call: str) -> None:
        if self._finder.in_shards:
            raise eplb.InvalidArgument(f"{call}: masters and moments are in shards over the expert-data ranks, which are not in "
                                       f"this kind of checkpoint: use Megatron's, or `with balancer.static_order():`")

    def _expect_memory(self) -> Holdings:
        holdings = self._expect_registered("step_boundary")
        try:
            self._adopt()
        except eplb.Error as error:
            self.client.close(str(error))  # the daemon tells the others why this rank goes no further
            raise
        return holdings

    def _record(self, step: int) -> None:
        """Counts that were taken a step ago, so that the device is not waited for."""
        if not self._is_read(step):
            return
        for layer, counts in zip(self.layers, self._counts.read(self._reduce_counts)):
            self.client.record(layer.index, counts)

    def _is_read(self, step: int) -> bool:
        """True if counts go to the client in the boundary of a step, which ends a vote or a window."""
        return any((step + 1) % interval == 0 for interval in self._intervals)

    def _reduce_counts(self, counts: torch.Tensor) -> None:
        """Each rank of an expert-tensor group routed other tokens of the sequence; EPLB counts one of them."""
        if self._etp_group is not None and self.layers:  # all ranks of such a group have the same layers
            dist.all_reduce(counts, group=self._etp_group)

    def _follow_placement(self) -> None:
        for layer in self.layers:
            layer.routing.set_slots(self.client.placement.physical_to_logical_map[layer.index])

    @torch.no_grad()
    def _probe(self, number: int, slot: int) -> torch.Tensor:
        """Returns the output of the expert in a local slot for a fixed input."""
        layer: Optional[Any] = next((each for each in self.layers if each.index == number), None)
        if layer is None:
            raise eplb.FailedPrecondition(f"layer {number} is on another pipeline stage")
        parameter = next(layer.parameters())
        generator = torch.Generator().manual_seed(number)
        config = layer.module.config
        width = getattr(config, "moe_latent_size", None) or config.hidden_size
        hidden = torch.randn(_PROBE_TOKENS, width, generator=generator)
        tokens = torch.zeros(layer.num_local_slots, dtype=torch.int64)
        tokens[slot] = _PROBE_TOKENS
        probs = torch.ones(_PROBE_TOKENS, device=parameter.device)
        arguments = [hidden.to(parameter.device, parameter.dtype), tokens, probs]
        experts = layer.module.experts  # before Megatron-Core 0.12 without the probs
        return experts(*arguments[:len(inspect.signature(experts.forward).parameters)])[0]


def _any_number(name: str) -> str:
    """A pattern for what client.check calls tensors whose names differ in numbers."""
    return re.sub(r"\d+(?=\.|$)", "*", name)
