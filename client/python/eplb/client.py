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
from eplb.splits import BatchArrays, Split, SplitFigures, figures_of, options_struct, own_struct
from eplb.views import Boundary, DeviceTables, PlacementView, Stats, boundary_of, device_tables_of, stats_of


class Client:
    """One rank of a job whose experts EPLB may move. client/python/README.md has a whole trainer and a table of the options.

    connect, finish_registration, check_experts, carry and step_boundary are collective: every rank calls them, in one order.
    Threads: the training thread alone; stats also from others. errors: eplb.Error with the library's message. An exception of
    an all_gather, a rebuild or a probe is raised by the call that ran it, with the eplb.Error as its __cause__. Signals: Python's
    handlers run within 0.2 s while a call waits. What a handler raises, such as KeyboardInterrupt, ends a vote on all ranks
    with Aborted, and is raised by the call. fork: in a child every call does nothing and logs that once. EPLB_DISABLE=1 makes
    every call do nothing. The interpreter's exit closes open clients as failed.
    """

    def __init__(self, options: Options, all_gather: Optional[AllGather] = None) -> None:
        """Overload of connect with the options in one object."""
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
        self._placement = PlacementView(self._handle, struct.num_gpus)
        self._registry = Registry(self._placement.num_local_slots)
        self._counted: dict[int, Any] = {}  # arrays that route_from reads, by layer
        self._boundary = structs.sized(structs.Boundary)
        self._votes_next = True  # the first boundary of a run does
        self._boundary_reference = ctypes.byref(self._boundary)
        self._current_stream: Optional[Callable[[], int]] = None
        self._process = os.getpid()
        _open_clients.add(self)

    @classmethod
    def connect(cls, all_gather: Optional[AllGather] = None, **options: Any) -> Client:
        """Agrees with all ranks on the first placement. Collective; before weights exist.

        all_gather: bytes -> the bytes of all ranks, in rank order, such as torch_all_gather(). Without one the ranks meet
        through the daemon at `endpoint`, and need names of the job and of the run; a job of one rank needs neither. options:
        fields of eplb.Options. errors: InvalidArgument naming the option; FailedPrecondition naming the field and the ranks
        that differ; DeadlineExceeded naming the ranks that are missing; LibraryNotFound. Without a daemon the job
        starts all the same. With require_daemon it is Unavailable on rank 0 and FailedPrecondition on the others. Unavailable too
        if the ranks meet through a daemon and none answers.
        """
        return cls(options_from(options), all_gather)

    # ---- what belongs to experts ----

    def register(self, tensor: Any, *, name: str, layer: int, role: str = "weight") -> None:
        """Notes a tensor [local slots, ...] of a layer, whose row i belongs to the expert in local slot i.

        tensor: numpy array, torch tensor on the CPU or a GPU, or DTensor whose piece on this rank has the rows of the local
        slots; of any dtype. Rows may lie apart, each is one piece. Register parameters rather than their .data, so that new
        memory is noticed. It is kept alive until close. Or a list of torch tensors, one for each local slot: they are copied
        into one stack, whose rows are their memory from then on, unless they are rows of one memory already. name: distinct on
        this rank, the same on all. role: "weight", which every replica holds, or "state" of the optimizer. errors:
        InvalidArgument naming the tensor; FailedPrecondition after finish_registration.
        """
        self._expect_open("register")
        self._registry.add(tensor, name, layer, role)

    def register_derived(self, rebuild: Rebuild, *, name: str, layer: int) -> None:
        """Notes data that is computed from the registered tensors and cached: it is computed again instead of moved.

        rebuild: (layer, local_slots), int32 and rising, those that received rows; called on the training thread inside
        step_boundary, check_experts and carry, after rows and placement changed. An exception in it ends the run.
        """
        self._expect_open("register_derived")
        self._registry.add_derived(name, layer, rebuild)

    def finish_registration(self) -> None:
        """Hands over the registered tensors, and agrees with all ranks on them. Collective, once; the first step_boundary or
        check_experts calls it if the trainer did not.

        errors: InvalidArgument naming the tensor; FailedPrecondition naming the tensor and the ranks that differ. If memory of
        a registered tensor was freed, this rank's client is closed.
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
        """Finds per-expert tensors that were not registered, as eplb.check.find_unregistered does. Not collective.

        module, optimizer: of torch, best after the first step. ignore: patterns of names, as fnmatch. errors: InvalidArgument
        naming every tensor found; FailedPrecondition after close, and on a rank of one local slot where nothing was found.
        """
        found = checks.find_unregistered(self, module, optimizer, ignore)
        if found:
            raise InvalidArgument(checks.describe(found))

    def check_experts(self, probe: Callable[[int, int], Digest], stream: Any = None) -> None:
        """Moves all experts by one slot and back, and compares what `probe` returns for each in all places. Collective,
        between two steps, best after some.

        probe: (layer, local_slot) -> output of that expert for a fixed input: an integer, a float, bytes, or an array, of
        which every bit counts. errors: InvalidArgument naming layer, expert, slots and rank, or the output; InvalidArgument
        for a registered tensor whose memory was freed, which closes this rank's client.
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
        """Moves every registered row to another placement, or back: self.placement and device_tables stay those of the current
        version, the daemon is not informed, and row_placement is where the rows are. Collective, between two steps. While the
        rows are elsewhere, record, record_split, step_boundary, check_experts and the calls on rows of replicas are
        FailedPrecondition.

        placement: integers [layers, slots], the expert in each slot, where an expert's lowest slot is its primary, or such a
        Plan, equal on all ranks; "static"; None, or the map of self.placement: back. With state_placement "with_primary", only
        the primary's row of state has a meaning. Data written into one replica's rows must be written into all, because any of
        them may be the source on the way back. stream: as of step_boundary. cost: one switch of the layers that differ.
        errors: InvalidArgument naming layer and slot, FailedPrecondition if ranks got different placements or another rank
        refused its own, Unavailable if the first rows could not be moved: nothing has moved then. DataLoss for rows that fail
        half-way, and Aborted for a missing rank, end the run. InvalidArgument for a registered tensor whose memory was freed
        closes this rank's client. FailedPrecondition if eplb.torch is attached: use its static_order.
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
        """Context in which row i of a registered tensor is expert first_local_slot + i, as without EPLB, for a trainer's own
        checkpoint code. Collective, as carry. At its end, also by an exception, the rows go back. errors: as carry.
        """
        before = self.row_placement.physical_to_logical_map.copy()
        self.carry("static", stream)
        try:
            yield
        finally:
            if not self._closed:
                self.carry(before, stream)

    # ---- training ----

    def record(self, layer: int, counts: Any) -> None:
        """Adds tokens that this rank's router sent to each expert in the current step: before dropping, once per top-k choice,
        no padding. May be called several times a step. counts: integers [experts], array, torch tensor or list; a GPU is
        waited for.
        """
        if not (type(counts) is np.ndarray and counts.dtype == np.int64 and counts.flags.c_contiguous):
            counts = counts_of(counts)
        layer = integer("layer", layer)
        code = self._library.eplb_client_record(self._pointer, layer, counts.__array_interface__["data"][0], counts.size)
        if code != 0:
            self._handle.check(code)

    def record_step_time(self, seconds: float) -> None:
        """Adds to the time that this rank's experts computed in the current step, forward and backward, without waits for
        other ranks. The daemon finds slow GPUs by these times (docs/gpu-speeds.md); a rank that records none is left out.
        seconds: 0..1e6.
        """
        self._handle.check(self._library.eplb_client_record_step_time(self._pointer, real("seconds", seconds)))

    def record_split(self, layer: int, quotas: Any) -> None:
        """Reports the quotas by which a batch of the layer was routed, with split="batch": tokens of each slot from all ranks
        of the EP group. Once a batch, equal on all ranks; the daemon measures balancedness by them. Splits of route_from are
        recorded by step_boundary. quotas: integers [slots].
        errors: InvalidArgument naming layer and slot; FailedPrecondition with split="equal".
        """
        quotas = counts_of(quotas, "quotas", "[slots]")
        self._handle.check(self._library.eplb_client_record_split(
            self._pointer, integer("layer", layer), quotas.__array_interface__["data"][0], quotas.size))

    def count_tokens(self, expert_ids: Any, counters: Any = None, *, is_padding: Any = None, stream: Any = None) -> Any:
        """Adds the router's choices to counters and returns the counters; record takes counters[:-1].

        expert_ids: int32 or int64 [tokens, top_k]. counters: int64 [experts + 1], the last for ids out of range; None: new
        ones. is_padding: bool or uint8 [tokens], tokens to leave out. All are contiguous numpy arrays or torch tensors in one
        memory. stream: as of step_boundary; None: torch's current one; a GPU is not waited for. errors: InvalidArgument naming
        the argument. Threads: any, with counters of its own.
        """
        if counters is None and hasattr(expert_ids, "dtype"):
            counters = _tokens.zeros_beside(expert_ids, self._placement.num_experts + 1)
        choices = _tokens.choices_of(expert_ids, self._placement.num_experts, counters, is_padding)
        _library.check(self._library.eplb_count_tokens(ctypes.byref(choices), _tokens.stream_of(stream, expert_ids)))
        return counters

    def route_tokens(self, layer: int, expert_ids: Any, *, slots: Any = None, counters: Any = None, is_padding: Any = None,
                     first_token: int = 0, stream: Any = None, split: Optional[Split] = None) -> Any:
        """Returns the slot of each of the router's choices, by the placement that `stream` has reached: on this GPU if the
        expert has a replica there, otherwise on one that the token's number draws. -1 for padding and for ids out of range.

        slots: array to write, as expert_ids, or expert_ids itself; None: a new one. counters: counts in the same pass.
        first_token: the number of token 0; ranks that number their tokens apart draw different replicas. Other arguments are
        those of count_tokens, in the memory of the registered tensors. split: result of self.split for these choices, with own
        quotas: an expert's choices, in the order of their index, fill its slots up to these, its primary first. Choices are
        then in host memory; count_for and route_from split on a GPU. errors: InvalidArgument naming the argument, or the expert
        whose choices are not as many as its own quotas; FailedPrecondition before finish_registration, for a split from before
        a switch, and for choices on a GPU with `split`. Nothing is written on an error. Threads: any, but not during a
        step_boundary or check_experts of another one; a probe may call it.
        """
        choices = _tokens.choices_of(expert_ids, self._placement.num_experts, counters, is_padding)
        if slots is None:
            slots = _tokens.empty_like(expert_ids)
        _tokens.check_slots(slots, expert_ids)
        if split is not None:
            _library.check(self._library.eplb_client_route_split(
                self._pointer, integer("layer", layer), ctypes.byref(choices), ctypes.byref(own_struct(split)), _rows.address_of(slots)))
            return slots
        _library.check(self._library.eplb_client_route_tokens(
            self._pointer, integer("layer", layer), ctypes.byref(choices), integer("first_token", first_token, 8),
            _rows.address_of(slots), _tokens.stream_of(stream, expert_ids)))
        return slots

    def split(self, layer: int, counts: Any, *, before: Any = None, mine: Any = None) -> Split:
        """Returns the exact split of one layer of a batch: tokens that each slot takes of its expert, so that the fullest GPU
        has the fewest (docs/splitting-a-batch.md). Equal counts give equal quotas on every rank, and no rank is waited for.

        counts: integers [experts], tokens of all ranks of the EP group, once per top-k choice; or [num_gpus, experts], those
        of each rank, which also gives this rank's own quotas. before, mine: with [experts], tokens of the EP group's lower
        ranks and of this rank, [experts] each, which give them as well. returns: Split, with arrays of the kind and on the
        device of counts. errors: InvalidArgument, the same on each rank with the same counts, naming layer and expert; then
        nothing is split. Threads: any, but not during a step_boundary or check_experts of another one.
        """
        view = self._placement
        batch = BatchArrays(counts, before, mine, view.num_slots, view.num_gpus)
        layer = integer("layer", layer)
        _library.check(self._library.eplb_client_split(self._pointer, layer, ctypes.byref(batch.struct),
                                                       ctypes.byref(batch.result)))
        return batch.split(layer)

    def set_split_options(self, *, speeds: Optional[Sequence[float]] = None, slack: float = 0.0) -> None:
        """Sets the options of the splits that follow; equal on all ranks.

        speeds: [num_gpus], relative, 0: takes no tokens; None: all equal. slack: 0..1, the part of the least peak by which a
        GPU may be above it, so that fewer tokens leave the slots of equal shares. errors: InvalidArgument; the options then
        stay as they were.
        """
        options, kept = options_struct(speeds, slack)
        _library.check(self._library.eplb_client_set_split_options(self._pointer, ctypes.byref(options)))
        del kept  # the struct points to it

    def check_counts(self, layer: int, counts: Any) -> None:
        """Compares layer, counts, options and placement among all ranks of an EP group. Collective, with the all_gather of
        connect; for a start, a test, or each thousandth step. counts: as split. errors, equal on all ranks: FailedPrecondition
        naming the ranks that differ, or one whose layer or counts split refuses.
        """
        array = integers("counts", counts, "[experts] or [GPUs, experts]")
        self._handle.check(self._library.eplb_client_check_counts(self._pointer, integer("layer", layer), array.ctypes.data,
                                                                  array.size))

    def prepare_split(self, *, max_tokens: int, top_k: int, deadline_s: float = 0.001, split_on_gpu: bool = False) -> None:
        """Allocates what count_for and route_from need, after finish_registration. Replay no graph that was captured before.
        max_tokens: most tokens of a batch on this rank. deadline_s: longest wait of a stream for a split [1e-6, 60]; 0: 0.001.

        split_on_gpu, for tensors on a GPU: False: a thread of the client splits. It needs a CPU core, and takes the least time
        for batches that are hard to split. True: a kernel splits, with equal bits; up to 128 GPUs and 2^24 choices of all ranks
        in a batch. set_split_options then holds from the next step_boundary. errors: InvalidArgument naming the argument.
        """
        setup = structs.sized(structs.SplitSetup, max_tokens=integer("max_tokens", max_tokens, 8), top_k=integer("top_k", top_k),
                              deadline_s=real("deadline_s", deadline_s), split_on_gpu=bool(split_on_gpu))
        self._handle.check(self._library.eplb_client_prepare_split(self._pointer, ctypes.byref(setup)))

    def count_for(self, layer: int, expert_ids: Any, row: Any = None, *, counters: Any = None, is_padding: Any = None,
                  stream: Any = None) -> Any:
        """Writes this rank's choices of each expert to row and returns it. An all-gather of the rows of the EP group's ranks, on
        the same stream, gives route_from its counts. On a GPU nothing is waited for, also inside a graph capture.

        row: int64 [experts]; None: a new one. counters: counted as well, as by count_tokens. expert_ids must not change before
        route_from is done. The rest as count_tokens, in the memory of the registered tensors. errors: InvalidArgument naming
        the argument; FailedPrecondition before prepare_split. Threads: one at a time; a call beside another is
        FailedPrecondition.
        """
        experts = self._placement.num_experts
        choices = _tokens.choices_of(expert_ids, experts, counters, is_padding)
        if row is None:
            row = _tokens.zeros_beside(expert_ids, experts)
        _tokens.check("row", row, ("int64",), (experts,), written=True)
        layer = integer("layer", layer)
        _library.check(self._library.eplb_client_count_for(self._pointer, layer, ctypes.byref(choices), _rows.address_of(row),
                                                           _tokens.stream_of(stream, expert_ids)))
        self._counted[layer] = (expert_ids, is_padding)
        return row

    def route_from(self, layer: int, gathered: Any, *, slots: Any = None, stream: Any = None) -> Any:
        """Returns the slots of the layer's choices of the last count_for, by the exact split of `gathered`, int64 [num_gpus,
        experts]: those of split and route_tokens. A GPU's stream waits for the split, up to the deadline of prepare_split. If
        the split is late, or refuses the counts, each choice draws a replica of its expert. split_figures has how many did.
        With split="batch" step_boundary reports the splits of all batches that the stream has finished, as record_split.

        slots: array to write, as expert_ids, or expert_ids itself; None: a new one. errors: InvalidArgument naming the argument;
        FailedPrecondition before the layer's count_for, which each call needs. Threads: as count_for.
        """
        layer = integer("layer", layer)
        if layer not in self._counted:
            raise FailedPrecondition(f"route_from of layer {layer} was called before its count_for, which each call needs")
        expert_ids, _ = self._counted[layer]
        _tokens.check("gathered", gathered, ("int64",), (self._placement.num_gpus, self._placement.num_experts))
        if slots is None:
            slots = _tokens.empty_like(expert_ids)
        _tokens.check_slots(slots, expert_ids)
        _library.check(self._library.eplb_client_route_from(self._pointer, layer, _rows.address_of(gathered),
                                                            _rows.address_of(slots), _tokens.stream_of(stream, expert_ids)))
        self._counted.pop(layer, None)  # the slots may have replaced the ids
        return slots

    @property
    def split_figures(self) -> SplitFigures:
        """Counts of the batches that route_from routed, and the newest split."""
        filled = structs.sized(structs.SplitFigures)
        _library.check(self._library.eplb_client_split_figures(self._pointer, ctypes.byref(filled)))
        return figures_of(filled)

    def vote_no(self, reason: str) -> None:
        """Makes this rank vote no in its next vote, so that nothing moves there on any rank, for a trainer with gradients that
        would not move. reason: that of the boundary of the vote; not empty.
        """
        self._handle.check(self._library.eplb_client_vote_no(self._pointer, reason.encode()))

    def step_boundary(self, step: int, stream: Any = None) -> Boundary:
        """Ends a step: once per optimizer step, also a skipped one, on every rank; steps rise by one from first_step. At least
        every vote_every steps, and each step while a proposal is known, all ranks vote, and may move experts and switch.

        stream: of expert work: a torch.cuda.Stream, a cudaStream_t as integer, or None for torch's current one if the experts
        are on a GPU. errors: Aborted naming the missing ranks and DataLoss end the run: stop; FailedPrecondition for a step
        out of order; InvalidArgument for a registered tensor whose memory was freed, which closes this rank's client.
        """
        if not self._finished:
            self._finish_once()
        step = integer("step", step, 8)
        if self._votes_next and not self._closed:
            self._expect_memory()
        code = self._library.eplb_client_step_boundary(self._pointer, step, self._stream(stream),
                                                       self._boundary_reference)
        self._handle.check(code)
        self._votes_next = self._boundary.votes_next != 0
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
        """The current placement; one object, which follows switches."""
        return self._placement

    @property
    def row_placement(self) -> PlacementView:
        """Placement of the registered rows: equal to `placement`, unless carry moved them."""
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
        """Current transport of the rows: "host", "peer", "nccl" or "peer+nccl"; "" before finish_registration."""
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
        """The registered tensors; empty after close."""
        return self._registry

    @property
    def is_forked_copy(self) -> bool:
        """True in a forked child of the process that connected: calls do nothing."""
        return self._process != os.getpid()

    @property
    def ended(self) -> Optional[Error]:
        """The Aborted or DataLoss that ended the run on this rank; None while it goes on."""
        return self._handle.ended

    @property
    def closed(self) -> bool:
        """True after close, also after a call that closed this rank's client."""
        return self._closed

    # ---- the end ----

    def close(self, reason: Optional[str] = "finished") -> None:
        """Disconnects from the daemon, within 2 s, and releases the tensors. If rows of replicas were carried since the last
        vote, it waits up to 3 s more for ranks that may still take theirs. A second call does nothing. Afterwards
        count_tokens, route_tokens, split, set_split_options and the properties still answer; all other calls are
        FailedPrecondition. reason: "finished", or None, is the normal end. errors: InvalidArgument for a reason that is no
        text.
        """
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
