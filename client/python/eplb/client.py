"""The client of one rank: connect, register, record, step_boundary, close."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import weakref
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, Type, Union

import numpy as np

from eplb import _library, _replicas, _rows, _tokens
from eplb import _structs as structs
from eplb import check as checks
from eplb import all_gather as all_gathers
from eplb._arguments import Digest, counts_of, digest_of, integer, integers, real
from eplb._handle import AllGather, Handle, Rebuild
from eplb._maps import carried_map
from eplb._registry import Registry
from eplb.errors import Error, FailedPrecondition, InvalidArgument
from eplb.options import Options, completed, options_from, to_struct
from eplb.splits import BatchArrays, Split, options_struct, own_struct
from eplb.views import Boundary, DeviceTables, PlacementView, Stats, boundary_of, device_tables_of, stats_of


class Client:
    """One rank of a job whose experts EPLB may move.

        with eplb.Client.connect(endpoint="127.0.0.1:29610", num_layers=58, num_experts=256,
                                 all_gather=eplb.torch_all_gather()) as client:
            ... allocate local slots as client.placement says ...
            client.register(w1, name="layers.0.w1", layer=0)
            client.register(moment, name="layers.0.w1.exp_avg", layer=0, role="state")
            client.finish_registration()
            for step in range(steps):
                ... forward, backward, optimizer ...
                client.record(layer, counts)
                if client.step_boundary(step).switched: ...

    connect, finish_registration, check_experts, carry and step_boundary are collective: every rank calls them, in one order.
    Threads: the training thread alone; stats also from others. errors: eplb.Error with the library's message; what an
    all_gather, a rebuild or a probe raises comes out of the call that it was part of, with the eplb.Error as its
    __cause__. Ctrl-C: a collective call waits in the library, so Python sees SIGINT when it returns: of step_boundary at the
    latest after vote_deadline. fork: in a child every call does nothing, which is said once on stderr; the parent is not
    touched.
    EPLB_DISABLE=1 makes every call a no-op on all ranks. The interpreter's exit closes what is open, as failed.
    """

    def __init__(self, options: Options, all_gather: Optional[AllGather] = None) -> None:
        """As connect, with the options in one object."""
        if all_gather is not None and not callable(all_gather):
            raise InvalidArgument(f"all_gather: {all_gather!r}, expected a callable: bytes -> the bytes of all ranks")
        if all_gather is None and options.world_size in (None, 1):
            all_gather = all_gathers.alone
        self.options = completed(options, all_gather)
        self.all_gather = all_gather
        struct = to_struct(self.options)
        self._handle = Handle()
        self._library, self._pointer = self._handle.library, self._handle.pointer
        if all_gather is not None:
            callback = self._handle.all_gather_callback(all_gather)
            code = self._library.eplb_client_connect(self._pointer, ctypes.byref(struct), callback, None)
        elif self.options.endpoint:
            code = self._library.eplb_client_connect_through_daemon(self._pointer, ctypes.byref(struct))
        else:
            raise InvalidArgument(f"all_gather: missing; a job of {self.options.world_size} ranks needs one, or the endpoint "
                                  f"of an eplbd to meet at")
        self._handle.check(code)
        self._closed, self._finished = False, False
        self._carrier = ""  # who alone may carry, because routers follow the rows there
        self._vote_every: int = struct.vote_every
        self._placement = PlacementView(self._handle, struct.num_gpus)
        self._registry = Registry(self._placement.num_local_slots)
        self._boundary = structs.sized(structs.Boundary)
        self._boundary_reference = ctypes.byref(self._boundary)
        self._current_stream: Optional[Callable[[], int]] = None
        self._process = os.getpid()
        _open_clients.add(self)

    @classmethod
    def connect(cls, all_gather: Optional[AllGather] = None, **options: Any) -> Client:
        """Agrees with all ranks on the first placement. Collective; before weights exist.

        all_gather: bytes -> the bytes of all ranks, in rank order, such as torch_all_gather(); without one the ranks meet
        through the daemon at `endpoint`, which needs names of the job and of the run (run_id, or EPLB_LAUNCH_ID,
        torchrun's or SLURM's); a job of one rank needs neither. options: the fields of eplb.Options.
        errors: InvalidArgument naming the option; FailedPrecondition when ranks differ, naming field and ranks;
        DeadlineExceeded naming the ranks that did not come; LibraryNotFound. No daemon is no error, but with require_daemon:
        then Unavailable on rank 0 and FailedPrecondition on the others. Unavailable too where the ranks meet through a
        daemon and nobody listens.
        """
        return cls(options_from(options), all_gather)

    # ---- what belongs to experts ----

    def register(self, tensor: Any, *, name: str, layer: int, role: str = "weight") -> None:
        """Notes a tensor [local slots, ...] of a layer, whose row i belongs to the expert in local slot i.

        tensor: numpy array or torch tensor, on the CPU or a GPU, of any dtype. Rows may lie apart, each is one piece.
        Register parameters themselves rather than .data of them: it is then seen when they get other memory. It is kept
        alive until close. A DTensor is registered by its piece on this rank, where that has the rows of the local slots.
        Or a list of torch tensors, one for each local slot, such as the parameters of one module per expert: they are
        copied into one stack, and each has its row of it as memory from then on (no gradient changes; torch.save of one of
        them writes the whole stack, unless it is cloned). Rows of one memory already are taken as they are.
        name: distinct on this rank, the same on all. role: "weight", which every replica holds, or "state" of the optimizer.
        errors: InvalidArgument naming the tensor; FailedPrecondition after finish_registration.
        """
        self._expect_open("register")
        self._registry.add(tensor, name, layer, role)

    def register_derived(self, rebuild: Rebuild, *, name: str, layer: int) -> None:
        """Notes what is computed from the registered tensors and cached: it is not moved, but computed again.

        rebuild: (layer, local_slots), int32 and rising, those that received rows; called inside step_boundary,
        check_experts and carry on the training thread, when the rows and the placement are the new ones. What it raises ends
        the run_id.
        """
        self._expect_open("register_derived")
        self._registry.add_derived(name, layer, rebuild)

    def finish_registration(self) -> None:
        """Hands over what was registered, and agrees with all ranks on it. Collective, once. Where it was not called, the
        first step_boundary or check_experts does it.

        errors: InvalidArgument naming the tensor; FailedPrecondition when ranks differ, naming tensor and ranks. When the
        memory of a registered tensor went away, this rank's client is closed.
        """
        self._expect_open("finish_registration")
        self._expect_memory()
        tensors = self._registry.to_structs(self._handle)
        self._handle.check(self._library.eplb_client_register_experts(self._pointer, tensors, len(tensors)))
        self._finished = True
        device = self._registry.device
        if device.startswith("cuda"):
            torch = sys.modules["torch"]
            self._current_stream = lambda: torch.cuda.current_stream(device).cuda_stream

    def check(self, module: Any, optimizer: Any = None, *, ignore: Union[str, Iterable[str]] = ()) -> None:
        """Finds per-expert tensors that were not registered: parameters, buffers and optimizer state that look like it.

        module: of torch; optimizer: of torch, with `state` and `param_groups`, best after its first step. ignore: patterns
        of names (as fnmatch) that are known to be no expert's. It is this rank's matter alone: not collective.
        eplb.check.find_unregistered says what looks like it. errors: InvalidArgument naming every one that was found;
        FailedPrecondition after close, and on a rank of one local slot where nothing was found: shapes show nothing there.
        """
        found = checks.find_unregistered(self, module, optimizer, ignore)
        if found:
            raise InvalidArgument(checks.describe(found))

    def check_experts(self, probe: Callable[[int, int], Digest], stream: Any = None) -> None:
        """Moves all experts by one slot and back: `probe` must say the same of each in all places. Collective, between two
        steps, best after some.

        probe: (layer, local_slot) -> what the expert there makes of a fixed input: an integer, a float, bytes, or an array,
        of which every bit counts. errors: InvalidArgument naming layer, expert, slots and rank, or what the probe gave;
        InvalidArgument for a registered tensor whose memory went away, which closes this rank's client.
        """
        self._finish_once()
        self._expect_memory()
        callback = self._handle.probe_callback(lambda layer, slot: digest_of(probe(layer, slot)))
        try:
            self._handle.check(self._library.eplb_client_check_experts(self._pointer, callback, None,
                                                                       self._stream(stream)))
        finally:
            self._handle.callbacks.remove(callback)

    # ---- checkpoints of the trainer's own code: docs/embedding.md ----

    def carry(self, placement: Any = None, stream: Any = None) -> None:
        """Moves every registered row to another placement, or back, and nothing else: self.placement and device_tables stay
        those of the version in force, the daemon learns nothing, and row_placement is where the rows are. Collective, between
        two steps. While the rows are elsewhere, record, record_split, step_boundary, check_experts and the calls on rows of
        replicas are FailedPrecondition: a forward would meet the wrong experts.

        placement: integers [layers, slots], the expert in each slot, where an expert's lowest slot is its primary, or a Plan
        with such primaries, equal on all ranks; "static", expert e in slot e and replicas behind them; None, or the map of
        self.placement: back. Weights go to all replicas; so does state, but with state_placement "with_primary" it is the
        primary's row alone, and the others' have no meaning. What is written into one replica's rows has to be written into
        all of them: on the way back any of them is the source. stream: as of step_boundary.
        cost: one switch of the layers that differ. With EPLB_DISABLE=1 it does nothing.
        errors: InvalidArgument naming layer and slot; FailedPrecondition where ranks were given different placements, or
        another one refused its own; Unavailable when the first rows could not be moved: in all these nothing was. DataLoss
        for rows that fail half-way, and Aborted for a rank that is gone, end the run: every later call raises the same.
        InvalidArgument for a registered tensor whose memory went away closes this rank's client. FailedPrecondition where
        eplb.torch is attached: its static_order carries, and lets the routers follow.
        """
        if self._carrier:
            raise FailedPrecondition(f"carry: the model's routers would not follow; use {self._carrier}")
        self._carry_to(placement, stream)

    def _carry_to(self, placement: Any, stream: Any = None) -> None:
        self._finish_once()
        self._expect_memory()
        refusal: Optional[Error] = None
        try:
            target = carried_map(placement, self._placement)
        except Error as error:  # no map at all, so that the library tells the other ranks
            refusal, target = error, np.full(1, -1, np.int32)
        code = self._library.eplb_client_carry(self._pointer, target.ctypes.data if target.size else None, target.size,
                                               self._stream(stream))
        if refusal is not None and code != 0:
            raise refusal
        self._handle.check(code)

    @contextmanager
    def static_order(self, stream: Any = None) -> Iterator[None]:
        """Within it row i of a registered tensor is expert first_local_slot + i, as without EPLB: a trainer's own code can
        save a checkpoint, or load one. Collective, as carry; when it is left, also by an exception, the rows go back to where
        they were. errors: as carry."""
        before = self.row_placement.physical_to_logical_map.copy()
        self.carry("static", stream)
        try:
            yield
        finally:
            if not self._closed:
                self.carry(before, stream)

    # ---- training ----

    def record(self, layer: int, counts: Any) -> None:
        """Adds tokens that this rank's router sent to each expert in the current step: before dropping, once per top-k
        choice, no padding. May be called several times a step.

        counts: integers [experts], as numpy array, torch tensor or list. One on a GPU is waited for. errors:
        InvalidArgument.
        """
        if not (type(counts) is np.ndarray and counts.dtype == np.int64 and counts.flags.c_contiguous):
            counts = counts_of(counts)
        layer = integer("layer", layer)
        code = self._library.eplb_client_record(self._pointer, layer, counts.__array_interface__["data"][0], counts.size)
        if code != 0:
            self._handle.check(code)

    def record_step_time(self, seconds: float) -> None:
        """Adds to the time that this rank's experts computed in the current step, forward and backward, without waits for
        other ranks and without what does not grow with tokens. From these times the daemon finds slow GPUs
        (docs/gpu-speeds.md); a rank that records none is left out. May be called several times a step.

        errors: InvalidArgument for a time outside 0..1e6 s.
        """
        self._handle.check(self._library.eplb_client_record_step_time(self._pointer, real("seconds", seconds)))

    def record_split(self, layer: int, quotas: Any) -> None:
        """With split="batch": a batch of the layer was routed by these quotas, the tokens of each slot, those of all ranks of
        the EP group together. Once a batch, alike on all ranks of the EP group; the daemon measures balancedness by them.

        quotas: integers [slots], as numpy array, torch tensor or list. One on a GPU is waited for. errors: InvalidArgument
        naming layer and slot; FailedPrecondition with split="equal".
        """
        quotas = counts_of(quotas, "quotas", "[slots]")
        self._handle.check(self._library.eplb_client_record_split(
            self._pointer, integer("layer", layer), quotas.__array_interface__["data"][0], quotas.size))

    def count_tokens(self, expert_ids: Any, counters: Any = None, *, is_padding: Any = None, stream: Any = None) -> Any:
        """Adds the router's choices to counters, on the GPU or the host, wherever the arrays lie: all in one memory.

        expert_ids: int32 or int64 [tokens, top_k], the router's. counters: int64 [experts + 1], whose last counts ids that
        are out of range; None: new ones of zeros. is_padding: bool or uint8 [tokens], tokens to leave out. All are
        contiguous numpy arrays or torch tensors. stream: as of step_boundary; None: torch's current one. A GPU is not waited
        for. returns: counters; record takes counters[:-1]. errors: InvalidArgument naming the argument. cost: tokens * top_k.
        Threads: any, with counters of its own.
        """
        if counters is None and hasattr(expert_ids, "dtype"):
            counters = _tokens.zeros_beside(expert_ids, self._placement.num_experts + 1)
        choices = _tokens.choices_of(expert_ids, self._placement.num_experts, counters, is_padding)
        _library.check(self._library.eplb_count_tokens(ctypes.byref(choices), _tokens.stream_of(stream, expert_ids)))
        return counters

    def route_tokens(self, layer: int, expert_ids: Any, *, slots: Any = None, counters: Any = None, is_padding: Any = None,
                     first_token: int = 0, stream: Any = None, split: Optional[Split] = None) -> Any:
        """The slot of each of the router's choices, by the placement that `stream` has come to: on this GPU where the expert
        has a replica there, else on one that the token's number draws. -1 for padding and for ids out of range.

        slots: what is written, as expert_ids, or expert_ids itself; None: new. counters: counts in the same pass; None: no
        counts. first_token: the number of token 0; ranks that number their tokens apart do not all draw the same replica.
        The rest as count_tokens, in the memory where the registered tensors lie.
        split: what self.split gave for these very choices, with own quotas: an expert's choices, in the order of their
        index, fill its slots up to these, its primary first; first_token and stream have no meaning then. Choices on a GPU
        are waited for and routed on the host.
        returns: slots. errors: InvalidArgument naming the argument, or the expert whose choices are not as many as its own
        quotas; FailedPrecondition before finish_registration, and for a split from before a switch. Nothing is written on
        an error. Threads: any, but not during a step_boundary or check_experts of another one; a probe may call it.
        """
        if split is not None:
            return self._route_split(layer, expert_ids, split, slots, counters, is_padding)
        choices = _tokens.choices_of(expert_ids, self._placement.num_experts, counters, is_padding)
        if slots is None:
            slots = _tokens.empty_like(expert_ids)
        _tokens.check_slots(slots, expert_ids)
        _library.check(self._library.eplb_client_route_tokens(
            self._pointer, integer("layer", layer), ctypes.byref(choices), integer("first_token", first_token, 8),
            _rows.address_of(slots), _tokens.stream_of(stream, expert_ids)))
        return slots

    def split(self, layer: int, counts: Any, *, before: Any = None, mine: Any = None) -> Split:
        """The exact split of one layer of a batch: how many of an expert's tokens each of its slots takes, so that the
        fullest GPU has the fewest (docs/splitting-a-batch.md).

        counts: integers [experts], the tokens of all ranks of the EP group, once per top-k choice; or [num_gpus, experts],
        those of each rank, which also gives this rank's own quotas. before, mine: with [experts], the tokens of the EP
        group's lower ranks and of this rank, [experts] each, which give them as well. numpy arrays, torch tensors or lists;
        one on a GPU is waited for. Equal counts give equal quotas on every rank, and no rank is waited for; check_counts
        compares them. returns: Split, with arrays of the kind and on the device of counts.
        errors: InvalidArgument, the same on each rank with the same counts: naming the layer, and the expert of a count that
        cannot be; then nothing is split.
        cost: some microseconds, and Python's; the first split of a layer that a switch changed prepares it.
        Threads: any, but not during a step_boundary or check_experts of another one.
        """
        view = self._placement
        batch = BatchArrays(counts, before, mine, view.num_slots, view.num_gpus)
        layer = integer("layer", layer)
        _library.check(self._library.eplb_client_split(self._pointer, layer, ctypes.byref(batch.struct),
                                                       ctypes.byref(batch.result)))
        return batch.split(layer)

    def set_split_options(self, *, speeds: Optional[Sequence[float]] = None, slack: float = 0.0) -> None:
        """Of the splits that follow; the same on all ranks.

        speeds: [num_gpus], relative, 0: takes no tokens; None: all equal. slack: 0..1, the part of the least peak by which a
        GPU may be above it, so that fewer tokens leave the slots of equal shares. errors: InvalidArgument naming the option
        or the GPU, also for a GPU of speed 0 that holds an expert; the options stay as they were.
        """
        options, kept = options_struct(speeds, slack)
        _library.check(self._library.eplb_client_set_split_options(self._pointer, ctypes.byref(options)))
        del kept  # what the struct points to

    def check_counts(self, layer: int, counts: Any) -> None:
        """Whether all ranks of an EP group would split alike: layer, counts, options and placement. Collective, with the
        all_gather of connect; for a start, a test, or each thousandth step.

        counts: as split. errors, one message on all ranks: FailedPrecondition naming the ranks that differ, or one whose
        layer or counts split refuses.
        """
        array = integers("counts", counts, "[experts] or [GPUs, experts]")
        self._handle.check(self._library.eplb_client_check_counts(self._pointer, integer("layer", layer), array.ctypes.data,
                                                                  array.size))

    def _route_split(self, layer: int, expert_ids: Any, split: Split, slots: Any, counters: Any, is_padding: Any) -> Any:
        given = own_struct(split)
        choices = _tokens.HostChoices(expert_ids, self._placement.num_experts, slots, counters, is_padding)
        _library.check(self._library.eplb_client_route_split(self._pointer, integer("layer", layer),
                                                             ctypes.byref(choices.struct), ctypes.byref(given),
                                                             _rows.address_of(choices.slots)))
        return choices.finish()

    def step_boundary(self, step: int, stream: Any = None) -> Boundary:
        """Once per optimizer step, also a skipped one, on every rank; steps rise by one from first_step. Every vote_every
        steps all ranks vote, and may move experts and switch.

        stream: of expert work: a torch.cuda.Stream, a cudaStream_t as integer, or None for torch's current one where the
        experts are on a GPU. errors: Aborted naming the missing ranks and DataLoss end the run_id: stop;
        FailedPrecondition for a step out of order; InvalidArgument for a registered tensor whose memory went away, which
        closes this rank's client.
        """
        if not self._finished:
            self._finish_once()
        step = integer("step", step, 8)
        if (step + 1) % self._vote_every == 0 and not self._closed:
            self._expect_memory()
        code = self._library.eplb_client_step_boundary(self._pointer, step, self._stream(stream),
                                                       self._boundary_reference)
        if code != 0:
            self._handle.check(code)
        return boundary_of(self._boundary)

    # ---- experts in several slots: docs/replicas-in-training.md ----
    # Collective among the ranks of an EP group, after finish_registration. rows: layer -> a tensor [local slots, ..] in the
    # memory of the registered ones, or several; alike on each rank. stream: as step_boundary's. They cost nothing where each
    # expert has one replica. errors: InvalidArgument and ResourceExhausted naming layer and tensor; Aborted when a rank is
    # gone or came with other rows: the run ends.

    def reduce_gradients(self, rows: Mapping[int, Any], stream: Any = None) -> None:
        """Adds to each primary's row those of the other replicas, in the order of replicas, in place: equal input gives equal
        bits. With state_placement "every_replica" the others get the sum as well. Collective.

        rows: layer -> gradients [local slots, ..] of the tokens that each replica got, zeros where there were none; float32,
        float64, bfloat16 or float16. A second call adds them again.
        """
        self._carry("reduce_gradients", rows, stream)

    def broadcast_weights(self, rows: Mapping[int, Any], stream: Any = None) -> None:
        """Overwrites the rows of all other replicas with their primary's, in place. Collective.

        rows: layer -> weights [local slots, ..] of any dtype."""
        self._carry("broadcast_weights", rows, stream)

    def expert_squares(self, rows: Mapping[int, Any], stream: Any = None) -> np.ndarray:
        """The sum of squares of each expert's rows at its primary, float64 [layers, experts], equal on all ranks of the EP
        group under any placement; 0 in layers that are left out. Collective; after reduce_gradients an expert counts once.

        rows: as of reduce_gradients. Pipeline stages hold other layers: add theirs up.
        """
        squares = np.zeros((self._placement.num_layers, self._placement.num_experts))
        self._carry("expert_squares", rows, stream, squares.ctypes.data, squares.size)
        return squares

    def gradient_norm(self, rows: Mapping[int, Any], dense_squares: float = 0.0, stream: Any = None) -> float:
        """The global norm: dense_squares, those of everything else, then each expert once, in the order of layers and
        experts. Collective, as expert_squares."""
        return float(sum(self.expert_squares(rows, stream).flatten().tolist(), float(dense_squares))) ** 0.5

    def _carry(self, call: str, rows: Mapping[int, Any], stream: Any, *result: int) -> None:
        views = _replicas.to_structs(rows, self._placement.num_local_slots, call)
        function = getattr(self._library, f"eplb_client_{call}")
        self._handle.check(function(self._pointer, views, len(views), self._stream(stream), *result))

    # ---- what there is to see ----

    @property
    def placement(self) -> PlacementView:
        """The placement in force; one object, which follows switches."""
        return self._placement

    @property
    def row_placement(self) -> PlacementView:
        """Where the registered rows are: as `placement`, unless carry moved them. Its version is that of `placement`."""
        return PlacementView(self._handle, self._placement.num_gpus, of_rows=True)

    @property
    def device_tables(self) -> DeviceTables:
        """The placement for kernels, where the expert tensors lie. errors: FailedPrecondition before registration."""
        struct = structs.sized(structs.DeviceTables)
        _library.check(self._library.eplb_client_device_tables(self._pointer, ctypes.byref(struct)))
        if not struct.physical_to_logical_map:
            raise FailedPrecondition("device_tables was called before finish_registration")
        return device_tables_of(self._handle, struct, on_gpu=self._current_stream is not None)

    @property
    def transport(self) -> str:
        """What carries the rows now: "host", "peer", "nccl" or "peer+nccl"; "" before finish_registration."""
        return self._text(self._library.eplb_client_transport)

    @property
    def run_id(self) -> str:
        return self._text(self._library.eplb_client_run_id)

    @property
    def stats(self) -> Stats:
        """Threads: any."""
        struct = structs.sized(structs.Stats)
        _library.check(self._library.eplb_client_stats(self._pointer, ctypes.byref(struct)))
        return stats_of(struct)

    @property
    def registered(self) -> Registry:
        """What was registered; empty after close."""
        return self._registry

    @property
    def is_forked_copy(self) -> bool:
        """Whether this process is a forked child of the one that connected: calls do nothing."""
        return self._process != os.getpid()

    @property
    def closed(self) -> bool:
        """Whether close was called, also by a call that closed this rank's client."""
        return self._closed

    # ---- the end ----

    def close(self, reason: Optional[str] = "finished") -> None:
        """Says goodbye to the daemon, within 2 s, and lets go of the tensors. It waits up to 3 s more for the other ranks if
        rows of replicas were carried since the last vote: some may still be taking theirs. Closing again does nothing.
        After it register, register_derived, finish_registration, check_experts, carry, record*, step_boundary, check_counts
        and the calls on rows of replicas are FailedPrecondition; what reads the last placement still answers: count_tokens,
        route_tokens, split, set_split_options and the properties. reason: "finished", or None, is the normal end. errors:
        InvalidArgument for a reason that is no text."""
        if reason is not None and not isinstance(reason, str):
            raise InvalidArgument(f"reason: {reason!r}, expected text")
        encoded = None if reason is None else reason.encode("utf-8", "replace")
        self._handle.check(self._library.eplb_client_close(self._pointer, encoded))
        self._closed = True
        self._registry.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close("finished" if error is None else f"{type(error).__name__}: {error}")

    def _expect_open(self, call: str) -> None:
        if self._closed:
            raise FailedPrecondition(f"{call} was called after close")
        if self._finished:
            raise FailedPrecondition(f"{call} was called after finish_registration")

    def _finish_once(self) -> None:
        if not self._finished and not self._closed:
            self.finish_registration()

    def _expect_memory(self) -> None:
        try:
            self._registry.check_memory()
        except Error as error:
            self.close(str(error))  # the daemon tells the others why this rank goes no further
            raise

    def _stream(self, stream: Any) -> Optional[int]:
        if stream is None:
            return None if self._current_stream is None else self._current_stream()
        return getattr(stream, "cuda_stream", stream)

    def _text(self, function: Callable[..., int]) -> str:
        text = ctypes.c_char_p()
        _library.check(function(self._pointer, ctypes.byref(text)))
        return (text.value or b"").decode()


_open_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _close_all() -> None:
    for client in list(_open_clients):
        # A forked child that ends has nothing to say goodbye to.
        if not client._closed and client._process == os.getpid():
            client.close("the process ended without close")


atexit.register(_close_all)
