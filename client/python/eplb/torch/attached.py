"""EPLB in a trainer of PyTorch: attached to a model and its optimizers, and detached again without a trace."""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from types import TracebackType
from typing import Any, Callable, ContextManager, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from eplb.check import any_number
from eplb.client import Client
from eplb.errors import Aborted, DataLoss, Error, FailedPrecondition, InvalidArgument
from eplb.options import to_struct
from eplb.torch.alike import expect_alike, expect_alike_on_ranks, traits_of
from eplb.torch.buffered import collect, ids_of_buffered, spread, weights_of
from eplb.torch.calls import OptimizerCalls, Steps
from eplb.torch.carry import static_experts
from eplb.torch.compiled import expect_not_compiled, guard_hooks
from eplb.torch.forward_check import ForwardCheck, Forwards
from eplb.torch.groups import group_of
from eplb.torch.layers import ExpertLayer, Experts, Router, attached_experts, device_of, find_layers
from eplb.torch.layout import expect_one_model, expect_routers_of
from eplb.torch.meeting import connect_options, expect_options, meet
from eplb.torch.pieces import ExpertTensor
from eplb.torch.probe import SeenInputs
from eplb.torch.registration import Registration
from eplb.torch.routing import Seam, SlotColumns, TokenCounts, Turn, hook_router
from eplb.torch.scattered import Scattered
from eplb.torch.shards import fsdp_around, reshard
from eplb.torch.state import Masters, OptimizerState, optimizers_of
from eplb.torch.state_dicts import OptimizerStateDicts, StateDictHooks, hooks_of, refuse_moved
from eplb.torch.told import Told
from eplb.torch.memory_watch import Watch
from eplb.views import Boundary

# Boundaries until it is said which parameter's state is missing, and at least until a run ends in which no optimizer steps.
_PATIENCE, _IDLE = 16, 64

# The start of `reason` while this rank counts no tokens, as client/session/token_watch.h has it.
_NOT_COUNTING = "NOT_COUNTING: "

# Why nothing moves before an end-to-end check.
_UNVERIFIED = ("no batch has shown yet that expert e is in slot e: give attach a check_batch or call attached.check_forward(batch), or "
               "give check_batch=False where the trainer's order is known (docs/attach.md)")
_NOTHING = Boundary(False, False, 0, 0, 0, 0.0, 0, 0, "", True, True)


class Attached:
    """The experts of one rank in a trainer; eplb.torch.attach makes it. docs/attach.md describes its calls.

    step_boundary, detach, static_order and check_experts are collective over the job; check, tokens_per_expert and close are
    not. With EPLB_DISABLE=1 every call does nothing. Threads: the training thread.

    client: the eplb.Client, None with EPLB_DISABLE=1. layers: this rank's MoE layers; layers[i].index is EPLB's number of one.
    last_boundary: result of the newest step_boundary. in_static_order: true within static_order.
    """

    def __init__(self, model: Union[nn.Module, Sequence[nn.Module]], optimizer: Any, *, experts: Experts,
                 router: Optional[Router], groups: Mapping[str, Any], all_gather: Any, boundary: Any, turn: Optional[Turn],
                 seam: Optional[Seam], num_local_experts: Optional[int], masters: Optional[Masters],
                 refresh: Optional[Callable[[], None]], check_batch: Any, options: Mapping[str, Any]) -> None:
        """Arguments are those of eplb.torch.attach."""
        self.client: Optional[Client] = None
        self.layers: List[ExpertLayer] = []
        self.last_boundary = _NOTHING
        self.num_adopted = 0
        self._weights: List[ExpertTensor] = []
        self._columns: List[SlotColumns] = []
        self._hooks: List[Any] = []
        self._state_dicts: List[Union[StateDictHooks, OptimizerStateDicts]] = []
        self._told = Told()
        self._calls: List[OptimizerCalls] = []
        self._seen_inputs: Optional[SeenInputs] = None
        self.in_static_order, self._registration = False, Registration(None, [], OptimizerState([]), [], None)
        self._is_verified, self._has_switched, self._num_refused = check_batch is False, False, 0
        self._chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        self._is_disabled, self._is_attached = os.environ.get("EPLB_DISABLE", "0") not in ("", "0"), True
        if self._is_disabled:
            return
        if boundary not in ("call", "optimizer") and not callable(getattr(boundary, "step", None)):
            raise InvalidArgument(f"boundary: {boundary!r}, expected \"call\", \"optimizer\", or an object with a method step")
        if seam is None and router is None:
            raise InvalidArgument("router: give its name, or a seam")
        if seam is not None and turn is not None:
            raise InvalidArgument("turn: a seam turns what passes it; give one of both")

        def find() -> Tuple[List[ExpertLayer], OptimizerState]:
            expect_options(options)
            reshard(fsdp_around(self._chunks))
            state = OptimizerState(optimizers_of(optimizer), masters)
            if boundary == "optimizer" and not (state.optimizers and all(hasattr(each, "step") for each in state.optimizers)):
                raise InvalidArgument("boundary: \"optimizer\" needs an optimizer, whose step it follows")
            layers = find_layers(self._chunks, experts, router, num_local_experts)
            expect_not_compiled(self._chunks, layers)
            guard_hooks()
            state.expect_updated(layers)
            expect_alike(layers, state)
            return layers, state

        met = meet(all_gather, groups, find)
        self.layers, self._state, self._coordinates, self._all_gather = met.layers, met.state, met.coordinates, met.all_gather
        self._carry, self._fsdp = met.carry, fsdp_around(self._chunks, [layer.experts for layer in self.layers])
        self._refresh = refresh
        self._scattered = Scattered(self.layers, self._state, groups.get("edp_group"))
        etp_group = groups.get("etp_group")
        self._etp_group = None if etp_group is None or self._coordinates.expert_tensor_size == 1 else group_of(etp_group)
        self._slots = self._static = static_experts(met.num_layers, met.num_experts)
        self._next_step, self._skipped_steps, self._silent_steps = int(options.get("first_step") or 0), 0, 0
        self.client = Client.connect(self._all_gather, **connect_options(met, options))
        try:
            self._attach(boundary, seam or functools.partial(hook_router, turn), check_batch)
        except BaseException as error:
            self._undo_attach(str(error))
            raise

    # ---- training ----

    def step_boundary(self, step: Optional[int] = None) -> Boundary:
        """Ends a step: call it on every rank after each optimizer step, also a skipped one, and before the next backward,
        because gradients do not move. Collective at each vote. step: rises by one from first_step; None: the next one.

        Nothing moves until check_forward has passed, unless attach was given check_batch=False, nor until optimizers have state of
        all experts on all ranks. Steps until then are not EPLB's steps, and each of these boundaries waits for the slowest rank.
        From the 16th on, `reason` names a rank and a parameter without state.
        If this rank counts no tokens for two load windows, `reason` begins with "NOT_COUNTING: " and names the routers. Memory
        that replaced parameters or state, with the same shapes, types and device, is adopted. errors: as
        eplb.Client.step_boundary; InvalidArgument naming a tensor that cannot be adopted, and FailedPrecondition if no
        attached optimizer has made a step in 64 boundaries and two vote intervals: both close this rank's client.
        FailedPrecondition within static_order and after close.
        """
        if self._is_disabled:
            return _NOTHING
        client = self._expect_attached("step_boundary")
        if self.in_static_order:
            raise FailedPrecondition("step_boundary was called within static_order")
        number = self._next_step if step is None else step
        if number != self._next_step:
            raise FailedPrecondition(f"step_boundary of step {number}, expected {self._next_step}")
        self._next_step += 1
        is_vote = self.last_boundary.votes_next
        why_not = (self._steps.why_not_move() if self._is_verified else _UNVERIFIED) if is_vote else ""
        self._steps.end_boundary()
        with self._ending_the_run():
            self._watch.expect_trained_as_before()
            if self._registration.is_done:
                self._steps.expect_some(max(_IDLE, 2 * self._intervals[0]))
        self._expect_memory(fully=is_vote)
        if not self._registration.is_done and not self._register_when_ready(self._chunks):
            self._skipped_steps += 1
            self._silent_steps = 0 if self._counts.read().any() else self._silent_steps + 1
            self.last_boundary = _NOTHING._replace(version=client.placement.version, reason=self._reason_to_wait())
            return self.last_boundary
        number -= self._skipped_steps
        if is_vote:
            self._vote_no(why_not)
            collect(self._weights, self._refresh)
        if not self._counts.is_on_device or is_vote or self.last_boundary.window_ends_next:
            self._record()
        try:
            with _showing_how_to_save():
                result = client.step_boundary(number)
        finally:  # the exception of a signal handler may end a boundary that has switched
            self._follow_client(client)
        if result.reason.startswith(_NOT_COUNTING):
            result = result._replace(reason=self._with_routers(result.reason))
        if result.switched:
            self._after_switch()
        if self._counts.is_on_device and (result.votes_next or result.window_ends_next):
            self._counts.start_reading(self._reduce_counts)  # so that nobody waits a step later
        self._counts.end_step()
        self.last_boundary = result
        return result

    def tokens_per_expert(self) -> torch.Tensor:
        """int64 [this rank's MoE layers, logical experts], on their device: what this rank's routers sent since counts were
        last taken for the daemon."""
        return self._counts.now() if not self._is_disabled else torch.zeros(0, 0, dtype=torch.int64)

    # ---- verification ----

    def check_forward(self, batch: Any, tolerance: float = 0.01) -> None:
        """Compares the model's outputs for a batch in static order, with the experts of all layers shuffled, and back: they show
        whether experts are where EPLB assumes, and experts may move from then on. Collective, between two steps; attach does it
        with check_batch.

        batch: what the model is called with: a tensor, a tuple or list of arguments, or a dict of named ones; or a function
        () -> outputs, for several chunks, a pipeline or autocast. Forwards run without gradients, in eval mode, and leave random
        numbers, buffers and counts as they were. tolerance: largest difference, as a share of what wrong experts change. errors:
        InvalidArgument naming layers whose experts are elsewhere; FailedPrecondition if the batch cannot show it.
        """
        if self._is_disabled:
            return
        self._expect_attached("check_forward")
        with self.static_order(), self._counts.left_as_before():
            forwards = self._all_gather.together(lambda: Forwards(self._chunks, batch))
            check = ForwardCheck(forwards, self._all_gather, self._static, self._move_together, self._follow)
            check.expect_equal({layer.index: layer.name for layer in self.layers}, tolerance)
        self._is_verified = True

    def check(self, ignore: Iterable[str] = ()) -> None:
        """Names per-expert tensors of model and optimizers that are not registered, and modules outside of the model with the
        same experts. After the first step; for this rank alone.

        ignore: patterns of names that are no expert's; routers' parameters, weights whose copies move, and partitions whose
        parts follow experts are left out. errors: InvalidArgument; FailedPrecondition before state exists.
        """
        if self._is_disabled:
            return
        client = self._expect_registered("check")
        expect_one_model(self._chunks, self.layers)
        module = nn.ModuleList(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        left_out = {id(each) for layer in self.layers if layer.router is not None for each in layer.router.parameters()}
        left_out.update(ids_of_buffered(self._weights))
        names = [any_number(name) for name, parameter in module.named_parameters() if id(parameter) in left_out]
        patterns = [*names, *(f"optimizer.{name}.*" for name in names), *ignore]
        for optimizer in self._state.without_parts(self.layers) or [None]:
            client.check(module, optimizer, ignore=patterns)

    def check_experts(self, probe: Optional[Callable[[int, int], Any]] = None) -> None:
        """Moves every expert by one slot and back, and lets each compute a fixed input in all places. Collective, between two
        steps, after the first.

        probe: (EPLB's number of the layer, local slot) -> output of that expert for a fixed input. None: each expert is a
        module, which is called with random numbers of a shape seen before. errors: InvalidArgument naming an expert that
        computes with a tensor that does not move; FailedPrecondition if a probe is needed.
        """
        if self._is_disabled:
            return
        client = self._expect_registered("check_experts")
        self._expect_memory()
        self._all_gather.together(self._expect_memory)
        collect(self._weights, self._refresh)
        if probe is None:
            self._seen_inputs.agree(self._all_gather)
            self._all_gather.together(self._seen_inputs.expect_seen)
            probe = self._seen_inputs.probe
        with _showing_how_to_save():
            client.check_experts(probe)

    # ---- checkpoints and the end ----

    def named_expert_parameters(self) -> Iterator[Tuple[str, int, torch.Tensor]]:
        """Yields, of each expert of this rank, (name of its parameter, number of the expert in its layer, the live weights), wherever
        experts are. Names of single experts have {} for the number. Not collective. errors: FailedPrecondition after detach, and
        when experts move meanwhile."""
        if self._is_disabled:
            return
        self._expect_attached("named_expert_parameters")
        began = self._slots, self.in_static_order
        for layer in self.layers:
            first = layer.num_local_slots * self._coordinates.expert_model
            here = (self._static if self.in_static_order else self._slots)[layer.index][first:first + layer.num_local_slots]
            for each in layer.by_expert(here.tolist()):
                if began[0] is not self._slots or began[1] != self.in_static_order:
                    raise FailedPrecondition("named_expert_parameters: experts have moved since it was called: call it anew")
                yield each

    @contextlib.contextmanager
    def static_order(self) -> Iterator[None]:
        """Context in which expert e is in slot e, as without EPLB: every state dict and load is right, and forwards run.
        Collective at both ends; gradients do not move, and step_boundary is refused.

        It ends when all ranks have reached its end, also after exceptions. If a rank misses the deadline of all_gather, the
        client is closed and experts stay in static order. After a failed vote it works while all ranks live. After detach it
        does nothing. errors: those of the body; of step_boundary; FailedPrecondition if the failed vote left ranks with
        different placements.
        """
        if self._is_disabled or not self._is_attached:
            yield
            return
        if self.in_static_order:
            raise FailedPrecondition("static_order was called within static_order")
        here = self._slots
        self._move(here, self._static, self._agree_to_move())
        self.in_static_order = True
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(Error):  # the body's own is the one that tells
                self._leave_static_order(here, f"{type(error).__name__}: {error}")
            raise
        self._leave_static_order(here, "finished")

    def detach(self) -> None:
        """Carries every expert to its own slot, takes off all hooks, gives parameters and state memory of their own, and
        closes the client. Collective; between optimizer.step() and the next backward. The model is then as one that never was
        attached, to the bit. Again: nothing. errors: as static_order; the model is attached then as before."""
        if self._is_disabled or not self._is_attached:
            return
        if self.in_static_order:
            raise FailedPrecondition("detach was called within static_order")
        self._move(self._slots, self._static, self._agree_to_move())
        self._slots = self._static
        self._is_attached = False
        self._undo_attach("finished")

    def unmoved(self, *_: Any, **__: Any) -> ContextManager[None]:
        """Context as static_order, which may be within static_order. Arguments are ignored. For adapters of frameworks."""
        return contextlib.nullcontext() if self.in_static_order else self.static_order()

    def remove_at_detach(self, hook: Any) -> None:
        """hook: an object with remove(), which detach calls. For adapters of frameworks."""
        self._hooks.append(hook)

    def close(self, reason: str = "finished") -> None:
        """Experts move no more, and stay where they are; hooks stay, so that the model may be evaluated and, within
        static_order, saved. Not collective."""
        if self.client is not None:
            self.client.close(reason)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        """Detaches; after an exception it only closes, as other ranks may not come."""
        if error is None:
            self.detach()
        else:
            self.close(f"{type(error).__name__}: {error}")

    # ---- parts: the start ----

    @property
    def _client(self) -> Client:
        assert self.client is not None  # EPLB is not disabled
        return self.client

    def _attach(self, boundary: Any, seam: Seam, check_batch: Any) -> None:
        self._client._carrier = "attached.static_order()"
        struct = to_struct(self._client.options)
        self._intervals = (struct.vote_every, struct.report_every)
        has_batch = check_batch is not None and check_batch is not False
        if self._find_weights(has_batch):
            self._scattered.expect_covered(self._all_gather, self._coordinates.expert_data_size)
        self._registration = Registration(self._client, self.layers, self._state, self._weights, self._all_gather)
        self._watch = Watch(self.layers, OptimizerState([]), self._weights)
        self._hook_layers(seam)
        self._seen_inputs = SeenInputs(self.layers)
        if has_batch:
            self.check_forward(check_batch)
        first = self._client.placement.physical_to_logical_map.copy()
        if not self._is_verified:
            if (first != self._static).any():
                raise InvalidArgument(f"initial_placement: experts would move at once, and {_UNVERIFIED}")
            if self._coordinates.rank == 0:
                self._told.once(f"eplb: nothing moves: {_UNVERIFIED}")
        self._move(self._static, first, through_client=False)
        self._slots, self._version = first, self._client.placement.version
        self._register_when_ready([])
        self._hook_state_dicts()
        ledgers = self._counts.ledgers
        self._steps = Steps(self._calls, self._boundary_behind_steps if boundary == "optimizer" else None,
                            lambda: sum(ledger._version for ledger in ledgers))
        if not isinstance(boundary, str):
            self._calls.append(OptimizerCalls(boundary))
            self._calls[-1].after("step", self._boundary_behind_steps)

    def _boundary_behind_steps(self) -> None:
        if not self._client.closed:  # after close the training goes on without boundaries
            self.step_boundary()

    def _undo_attach(self, reason: str) -> None:
        """Takes off whatever attach put on, and closes the client."""
        for tensor in self._registration.registered or self._weights:
            tensor.release()
        if self._seen_inputs is not None:
            self._seen_inputs.remove()
        for each in (*self._hooks, *self._state_dicts, *self._calls):
            each.remove()
        for layer in self.layers:
            attached_experts.discard(layer.experts)
        self._client._carrier = ""
        self._client.close(reason)

    def _hook_layers(self, seam: Seam) -> None:
        num_experts = self._static.shape[1]
        self._counts = TokenCounts(len(self.layers), num_experts, device_of(self.layers))
        for layer, ledger in zip(self.layers, self._counts.ledgers):
            columns = SlotColumns(layer.name, num_experts, ledger.device, ledger, counts_all=not self._state.optimizers)
            self._columns.append(columns)
            self._hooks.append(seam(layer, columns))
            attached_experts.add(layer.experts)

    def _find_weights(self, has_batch: bool) -> bool:
        """Collective. has_batch: whether a batch will show that experts are where EPLB assumes. returns: whether an
        optimizer holds state in parts. errors: InvalidArgument naming a router of another number of experts; FailedPrecondition
        when ranks differ in check_batch."""
        def find() -> List[bool]:
            if not has_batch:
                expect_routers_of(self.layers, self._static.shape[1], self._coordinates.expert_model_size)
            for layer in self.layers:
                self._weights.extend(weights_of(layer, self._state))
            return [has_batch, self._is_verified, self._scattered.has_parts(), [layer.shard is not None for layer in self.layers]]

        given = self._all_gather.objects_of(find)
        differing = [rank for rank, each in enumerate(given) if each[:2] != given[0][:2]]
        if differing:
            raise FailedPrecondition(f"check_batch: rank {differing[0]} was given another than rank 0: give all ranks a batch, or False, "
                                     f"or none")
        self._are_sharded = all(each for _, _, _, shards in given for each in shards)
        return any(has_parts for _, _, has_parts, _ in given)

    def _hook_state_dicts(self) -> None:
        self._state_dicts += [hooks_of(layer, functools.partial(self._moved, layer), self.close) for layer in self.layers]
        for optimizer in self._state.optimizers:
            self._calls.append(OptimizerCalls(optimizer))
            if self._are_sharded and isinstance(optimizer, torch.optim.Optimizer) and all(
                    self._state.home(each)[1] is each for layer in self.layers for each in layer.parameters()):
                self._state_dicts.append(OptimizerStateDicts(optimizer, self.layers, self._moved))
                continue
            for name in ("state_dict", "load_state_dict") if hasattr(optimizer, "state_dict") else ():
                self._calls[-1].before(name, lambda name: refuse_moved(self._is_static, name))

    # ---- parts: a step ----

    def _register_when_ready(self, chunks: Sequence[nn.Module]) -> bool:
        """Collective. chunks, returns, errors: as of Registration.complete; errors close this rank's client."""
        with self._ending_the_run():
            if not self._registration.complete(chunks):
                return False
        self._watch = Watch(self.layers, self._state, self._registration.tensors())
        return True

    def _reason_to_wait(self) -> str:
        """returns: why nothing moves, once it has been so for long; told on stderr by the rank that waits."""
        number = self._skipped_steps
        if self._hooks and self._silent_steps >= max(8, 2 * self._intervals[1]):
            return self._with_routers(f"{_NOT_COUNTING}rank {self._coordinates.rank} has counted no token since it attached")
        if number < _PATIENCE:
            return ""
        if number == _PATIENCE and self._registration.waiting.startswith(f"rank {self._coordinates.rank} "):
            self._told.once(f"eplb: nothing moves: {self._registration.waiting}, {number} boundaries after attach; does it get gradients?")
        return self._registration.waiting

    def _vote_no(self, why: str) -> None:
        """Votes no if `why` is not empty. Logged once, at the second such vote in a row."""
        self._num_refused = self._num_refused + 1 if why else 0
        if not why or self._client.closed:
            return
        self._client.vote_no(f"VOTED_NO: rank {self._coordinates.rank}: {why}")
        if self._num_refused > 1 and self._is_verified:
            self._told.once(f"eplb: rank {self._coordinates.rank} votes no: {why}; call step_boundary after each optimizer.step(), and "
                       f"before the next forward")

    def _with_routers(self, reason: str) -> str:
        """returns: `reason` with what the silent routers did in the newest step; told once on stderr."""
        told = self._counts.told_silences([layer.name for layer in self.layers]) if self._hooks else ""
        if not told:
            return reason
        self._told.once(f"eplb: {_NOT_COUNTING}rank {self._coordinates.rank}: {told}")
        return f"{reason}; {told}"

    def _after_switch(self) -> None:
        """Looks for what may have changed since attach, such as learning rates by a scheduler. Collective. errors: as attach,
        which close this rank's client."""
        def traits() -> Any:
            expect_alike(self.layers, self._state)
            if not self._has_switched:
                expect_one_model(self._chunks, self.layers)
            return traits_of(self.layers, self._state)

        with self._ending_the_run():
            expect_alike_on_ranks(self._all_gather.objects_of(traits))
        self._has_switched = True

    def _expect_memory(self, fully: bool = True) -> None:
        """Takes over what was replaced. fully: as of Watch.intact, before rows move. errors: InvalidArgument for what cannot
        be, which closes this rank's client."""
        reshard(self._fsdp)
        if self._watch.intact(fully):
            return
        with self._ending_the_run():
            self.num_adopted += len(self._watch.adopt())

    @contextlib.contextmanager
    def _ending_the_run(self) -> Iterator[None]:
        """Errors within it close this rank's client: the daemon tells the others why this rank goes no further."""
        try:
            yield
        except Error as error:
            self._client.close(str(error))
            raise

    def _record(self) -> None:
        for layer, counts in zip(self.layers, self._counts.read(self._reduce_counts)):
            self._client.record(layer.index, counts)

    def _reduce_counts(self, counts: torch.Tensor) -> None:
        """Each rank of an expert-tensor group routes other tokens, and EPLB counts those of one."""
        if self._etp_group is not None and self.layers:
            dist.all_reduce(counts, group=self._etp_group)

    # ---- parts: where experts are ----

    def _leave_static_order(self, here: np.ndarray, reason: str) -> None:
        """errors: those of the all-gather where a rank does not come, and of memory that cannot be taken over."""
        try:
            through_client = self._agree_to_move()  # bounded, as an all-to-all is not
        except Error:
            self._client.close(reason)
            self._slots = self._static
            raise
        finally:
            self.in_static_order = False
        self._move(self._static, here, through_client)

    def _is_static(self, layers: Any = slice(None)) -> bool:
        """layers: EPLB's number of one; all. returns: whether each expert is in its own slot."""
        return self.in_static_order or bool((self._slots[layers] == self._static[layers]).all())

    def _moved(self, layer: ExpertLayer) -> Optional[List[int]]:
        """returns: the expert in each local slot; None while each is in its own."""
        first = self._coordinates.expert_model * layer.num_local_slots
        return None if self._is_static(layer.index) else self._slots[layer.index][first:first + layer.num_local_slots].tolist()

    def _agree_to_move(self) -> bool:
        """returns: whether the client moves the rows. It knows alone where registered rows are, as long as its run has not ended
        on any rank. Collective.

        errors: those of memory that cannot be taken over; DataLoss, and FailedPrecondition when a failed vote left ranks with
        different placements: nothing can be saved then."""
        def mine() -> List[Any]:
            self._expect_memory()
            if isinstance(self._client.ended, DataLoss):
                raise self._client.ended
            return [self._registration.is_done and not self._client.closed and self._client.ended is None,
                    zlib.crc32((self._static if self.in_static_order else self._slots).tobytes())]

        found = self._all_gather.objects_of(mine)
        differing = [rank for rank, (_, slots) in enumerate(found) if slots != found[0][1]]
        if differing:
            raise FailedPrecondition(f"rank {differing[0]} has experts in other slots than rank 0, because a vote failed while they "
                                     f"were switched: restart from a checkpoint")
        return all(through_client for through_client, _ in found)

    def _move_together(self, before: np.ndarray, after: np.ndarray) -> None:
        self._move(before, after, self._agree_to_move())

    def _move(self, before: np.ndarray, after: np.ndarray, through_client: bool) -> None:
        """Carries experts with their state, and lets the routers follow. Collective. through_client: of _agree_to_move."""
        if not (before == after).all():
            collect(self._weights, self._refresh)
            if through_client:
                with _showing_how_to_save():
                    self._client._carry_to(after)
            else:
                tensors = self._registration.tensors()
                self._carry(tensors, before, after)
                spread(tensors)
            self._scattered.carry(self._carry, before, after)
        self._follow(after)

    def _follow_client(self, client: Client) -> None:
        if client.placement.version == self._version:
            return
        before, self._slots, self._version = self._slots, client.placement.physical_to_logical_map.copy(), client.placement.version
        self._scattered.carry(self._carry, before, self._slots)
        self._follow(self._slots)

    def _follow(self, slots: np.ndarray) -> None:
        for columns, layer in zip(self._columns, self.layers):
            columns.set_slots(slots[layer.index])

    def _expect_attached(self, call: str) -> Client:
        if not self._is_attached:
            raise FailedPrecondition(f"{call} was called after detach")
        return self._client

    def _expect_registered(self, call: str) -> Client:
        client = self._expect_attached(call)
        if not self._registration.is_done:
            raise FailedPrecondition(f"{call} was called before the first step_boundary at which optimizers had state")
        return client


@contextlib.contextmanager
def _showing_how_to_save() -> Iterator[None]:
    try:
        yield
    except Aborted as error:
        raise Aborted(f"{error}; while all ranks live, `with attached.static_order():` still saves on all of them") from error
