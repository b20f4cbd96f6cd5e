"""Counts of a model's routers: how unevenly experts are used, and what balancing would gain. Nothing moves, and no daemon is
needed."""

from __future__ import annotations

import csv
import fnmatch
import json
import math
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from eplb._arguments import integer
from eplb.all_gather import alone, torch_all_gather
from eplb.client import Client
from eplb.errors import Error, FailedPrecondition, InvalidArgument
from eplb.options import options_from, to_struct
from eplb.replay import Replay, replay
from eplb.torch.groups import gathered
from eplb.torch.routing import TokenCounts, Turn, num_tokens_of, turn_by_shape
from eplb.torch.told import Told
from eplb.torch.turn import WITH_GRADIENTS, WITHOUT_GRADIENTS, count

_PAGE = "docs/watching.md"
_WHY_NOT = "VOTED_NO: the job is watched: nothing of it is registered, and nothing moves"


class Watcher:
    """Watches the routers of a rank; eplb.torch.watch makes it. Threads: the training thread.

    names: of the routers, one for each layer. windows: the newest, (first step, last step, int64 [layers, experts]). last: the
    newest report, {} before the first.
    """

    def __init__(self, chunks: Sequence[nn.Module], router: str, *, num_experts: Optional[int], num_gpus: int, every: int,
                 most_windows: int, group: Any, turn: Optional[Turn], counts_all: bool, csv_path: Any, trace_path: Any,
                 connect: Optional[Mapping[str, Any]]) -> None:
        """Arguments are those of eplb.torch.watch."""
        self._group, self._is_shared = group, group is not None or dist.is_initialized() and dist.get_world_size() > 1
        self._writes = not self._is_shared or dist.get_rank(group) == 0
        found: List[Tuple[str, nn.Module]] = []
        numbers: List[int] = []

        def prepare() -> None:
            for name, number in (("every", every), ("most_windows", most_windows), ("num_gpus", num_gpus)):
                integer(name, number)
            found.extend(_routers_in(chunks, router))
            numbers.append(_experts_of(found, num_experts))
            if every < 1 or most_windows < 1 or num_gpus < 1 or numbers[0] % num_gpus:
                raise InvalidArgument(f"every: {every}, most_windows: {most_windows}, num_gpus: {num_gpus}, expected at least 1, and that "
                                      f"num_gpus divides the {numbers[0]} experts")
            for path in (csv_path, trace_path):
                if path is not None and self._writes:
                    open(path, "a", encoding="utf-8").close()  # fails here rather than in a later step
            if connect is not None:
                to_struct(options_from(connect))

        all_gather = torch_all_gather() if self._is_shared and connect is not None else None
        gathered(all_gather or alone, prepare)
        self.names = [name for name, _ in found]
        self.num_experts, self.num_gpus, self._every = numbers[0], num_gpus, every
        self.windows: Deque[Tuple[int, int, np.ndarray]] = deque(maxlen=most_windows)
        self.last: Dict[str, float] = {}
        self._csv_path, self._trace_path, self._told, self._step, self._first = csv_path, trace_path, Told(), 0, 0
        device = next((parameter.device for _, module in found for parameter in module.parameters()), torch.device("cpu"))
        self._counts = TokenCounts(len(found), self.num_experts, device)
        columns = [CountedColumns(name, self.num_experts, ledger, counts_all) for name, ledger in zip(self.names, self._counts.ledgers)]
        self._sent = np.zeros((len(found), self.num_experts), np.int64)  # counts of the window that the daemon has
        self._client = None if connect is None else self._connect(all_gather, connect)
        # In front of other hooks: that of an attached trainer gives slots.
        self._handles = [module.register_forward_hook(_Hook(each, turn), prepend=True, with_kwargs=True)
                         for each, (_, module) in zip(columns, found)]

    def step(self) -> Dict[str, float]:
        """Ends a step: call it once after each on every rank. Collective in the group at each window's end. returns: {} within a
        window; at its end the report, figures by name for any logger, equal on all ranks:

        eplb/balancedness: mean / max load of a GPU with one slot for each expert, a mean over layers; nan without tokens.
        eplb/imbalance: max / mean tokens of an expert, a mean over layers. eplb/dead_experts: experts of all layers without a
        token. eplb/hottest_layer, eplb/hottest_expert, eplb/hottest_share: the largest share of a layer's tokens.
        eplb/tokens: choices that were counted.
        """
        self._counts.end_step()
        self._step += 1
        if self._client is not None:
            self._boundary(self._client)
        if self._step % self._every:
            return {}
        if not self.windows and not self._first:
            self._expect_alike()
        load = self._counts.read(self._sum).copy()
        self.windows.append((self._first, self._step - 1, load))
        self._first = self._step
        self.last = _report_of(load, self.num_gpus)
        if self._writes:
            try:
                self._write()
            except OSError as error:
                self._told.once(f"eplb: watch: {error.filename}: {error.strerror}")
        return self.last

    def would_gain(self, num_slots: Optional[int] = None, policies: Sequence[str] = ("auto",),
                   **options: Any) -> Dict[str, Replay]:
        """Returns what each policy would have made of the windows, predicted, as `eplbctl replay` computes it. Not collective.

        num_slots: of a layer; None: one for each expert. options: of eplb.replay.replay, such as expert_bytes and split. cost: that
        of the policy, for each window. errors: FailedPrecondition before two windows; as eplb.replay.replay.
        """
        if len(self.windows) < 2:
            raise FailedPrecondition("would_gain: a decision needs a window before it, and there are fewer than 2")
        loads = np.stack([load for _, _, load in self.windows])
        return {policy: replay(loads, num_slots or self.num_experts, self.num_gpus, policy=policy, steps_of_window=self._every, **options)
                for policy in policies}

    def close(self) -> None:
        """Takes the hooks off. Again: nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._client is not None:
            self._client.close("finished")

    def _expect_alike(self) -> None:
        """Collective. errors: InvalidArgument when ranks have other layers."""
        if not self._is_shared:
            return
        mine, of_all = [self.names, self.num_experts, self._every], [None] * dist.get_world_size(self._group)
        dist.all_gather_object(of_all, mine, group=self._group)
        differing = [rank for rank, each in enumerate(of_all) if each != of_all[0]]
        if differing:
            raise InvalidArgument(f"group: rank {differing[0]} watches other layers than rank 0, or other windows: give ranks with the same "
                                  f"layers, such as those of one pipeline stage")

    def _sum(self, counts: torch.Tensor) -> None:
        if self._is_shared:
            dist.all_reduce(counts, group=self._group)

    def _connect(self, all_gather: Any, given: Mapping[str, Any]) -> Client:
        options = {"initial_placement": "static", "report_every": self._every, **given, "num_layers": len(self.names),
                   "num_experts": self.num_experts, "num_slots": self.num_experts, "num_gpus": self.num_gpus}
        if self._is_shared:
            options = {"rank": dist.get_rank(), "world_size": dist.get_world_size(), **options}
        client = Client.connect(all_gather, **options)
        self._window_ends = True  # with the next step, as far as is known
        for layer in range(len(self.names)):  # in the place of the experts, because a job without rows is refused
            client.register(np.zeros((self.num_experts // self.num_gpus, 1), np.float32), name=f"watched.{layer}", layer=layer)
        return client

    def _boundary(self, client: Client) -> None:
        """Records new counts, from a device only at the end of a window, because that waits for it. The window's counts stay in the
        ledgers."""
        is_end = self._window_ends or not self._step % self._every
        if is_end or not self._counts.is_on_device:
            now = self._counts.now().cpu().numpy()
            for layer, counts in enumerate(now - self._sent):
                client.record(layer, counts)
            self._sent = now if self._step % self._every else np.zeros_like(now)
        try:
            client.vote_no(_WHY_NOT)
            self._window_ends = client.step_boundary(self._step - 1).window_ends_next
        except Error as error:  # the training goes on
            client.close(str(error))
            self._client = None
            self._told.once(f"eplb: watch: the daemon sees this job no more: {error}")

    def _write(self) -> None:
        first, last, load = self.windows[-1]
        if self._trace_path is not None:
            with open(self._trace_path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"first_step": first, "last_step": last, "load": load.tolist()}, separators=(",", ":")) + "\n")
        if self._csv_path is not None:
            with open(self._csv_path, "a", encoding="utf-8", newline="") as file:
                row = {"first_step": first, "last_step": last, **self.last}
                writer = csv.DictWriter(file, list(row))
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(row)


class CountedColumns:
    """The columns of a router's hook that counts and turns nothing: a stand-in for eplb.torch.routing.SlotColumns.

    counts_all: also runs without gradients count.
    """

    def __init__(self, name: str, num_experts: int, ledger: torch.Tensor, counts_all: bool) -> None:
        self.name, self.num_experts, self.mask_dim = name, num_experts, 1
        self._ledger, self._counts_all = ledger, counts_all

    def count_and_turn(self, chosen: torch.Tensor, dim: int = -1) -> torch.Tensor:
        counted = chosen if chosen.dtype in (torch.int32, torch.int64, torch.bool) else chosen.int()
        trains = self._counts_all or torch.is_grad_enabled()
        count(counted, self._ledger, dim % chosen.dim(), WITH_GRADIENTS if trains else WITHOUT_GRADIENTS)
        return chosen

    def in_slot_order(self, columns: torch.Tensor, dim: int = 1) -> torch.Tensor:
        return columns

    def slots_of(self, indices: torch.Tensor) -> torch.Tensor:
        return indices

    def count_columns(self, chosen: torch.Tensor, dim: int = 1) -> None:
        self.count_and_turn(chosen != 0, dim)

    def count_indices(self, indices: torch.Tensor) -> None:
        self.count_and_turn(indices)


class _Hook:
    """A copy of the module takes a copy of it along, which counts for nobody."""

    def __init__(self, columns: CountedColumns, turn: Optional[Turn]) -> None:
        self._columns, self._turn = columns, turn

    def __call__(self, _module: nn.Module, arguments: Any, named: Any, output: Any) -> None:
        columns: Any = self._columns
        if self._turn is not None:
            self._turn(output, columns)
        else:
            turn_by_shape(output, columns, num_tokens_of((*arguments, *named.values())))


def _routers_in(chunks: Sequence[nn.Module], router: str) -> List[Tuple[str, nn.Module]]:
    """errors: InvalidArgument if there is none."""
    pattern = f".{router}" if any(each in router for each in "*?[") else f"*.{router}"
    found = [(name, module) for chunk in chunks for name, module in chunk.named_modules() if fnmatch.fnmatchcase(f".{name}", pattern)]
    if not found:
        raise InvalidArgument(f"router: the model has no module named \"{router}\" ({_PAGE})")
    return found


def _experts_of(routers: Sequence[Tuple[str, nn.Module]], given: Optional[int]) -> int:
    """The number of experts, by the first dimension of the routers' weights. errors: InvalidArgument where they do not tell it, or
    tell another than was given."""
    found = {parameter.shape[0] for _, module in routers for parameter in module.parameters() if parameter.dim() == 2}
    if given is not None and (len(found) != 1 or given in found):
        return given
    if given is not None:
        raise InvalidArgument(f"num_experts: {given}, and the weights of {routers[0][0]} have {found.pop()} rows")
    if len(found) != 1:
        raise InvalidArgument(f"num_experts: give it: the weights of {routers[0][0]} and the other routers have {sorted(found)} rows")
    return int(found.pop())


def _report_of(load: np.ndarray, num_gpus: int) -> Dict[str, float]:
    tokens = load.sum(axis=1)
    if not tokens.any():
        return {"eplb/balancedness": math.nan, "eplb/imbalance": math.nan, "eplb/dead_experts": math.nan, "eplb/hottest_layer": math.nan,
                "eplb/hottest_expert": math.nan, "eplb/hottest_share": math.nan, "eplb/tokens": 0}
    used = load[tokens > 0]
    gpus = used.reshape(len(used), num_gpus, -1).sum(axis=2)
    shares = load / np.maximum(tokens, 1)[:, None]
    layer, expert = np.unravel_index(int(shares.argmax()), load.shape)
    return {"eplb/balancedness": float((gpus.mean(axis=1) / gpus.max(axis=1)).mean()),
            "eplb/imbalance": float((used.max(axis=1) / used.mean(axis=1)).mean()), "eplb/dead_experts": int((load == 0).sum()),
            "eplb/hottest_layer": int(layer), "eplb/hottest_expert": int(expert), "eplb/hottest_share": float(shares[layer, expert]),
            "eplb/tokens": int(tokens.sum())}


def watch(model: Union[nn.Module, Sequence[nn.Module]], router: str, *, num_gpus: int, num_experts: Optional[int] = None,
          every: int = 10, most_windows: int = 256, group: Any = None, turn: Optional[Turn] = None, counts_all: bool = False,
          csv: Any = None, trace: Any = None, connect: Optional[Mapping[str, Any]] = None) -> Watcher:
    """Watches how a model's routers use its experts. Collective with `connect`; at any time, before a compiled forward.

    model: a module, or the list of this rank's chunks. router: the name of each layer's router, as "gate", or a pattern of whole
    names. num_gpus: over which a layer's experts are spread, in order. num_experts: None: the rows of the routers' weights.
    every: steps in a window. most_windows: that are kept. group: ranks whose tokens are summed, which have the same layers; None:
    all. turn: as of eplb.torch.attach. counts_all: also forwards without gradients count, as of inference. csv: a file that each
    report is added to, by the first rank. trace: a file that each window is added to, which `eplbctl replay --trace` reads.
    connect: options of eplb.Client.connect, such as endpoint and job: the daemon's page shows the job, and every vote is no.
    errors: InvalidArgument naming the argument.
    """
    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    return Watcher(chunks, router, num_experts=num_experts, num_gpus=num_gpus, every=every, most_windows=most_windows, group=group,
                   turn=turn, counts_all=counts_all, csv_path=csv, trace_path=trace, connect=connect)
