"""Replays of recorded loads: they tell what balancing would have saved, as `eplbctl replay` computes it; without a daemon.

Threads: safe; the library computes without the interpreter's lock. Signal handlers of Python run meanwhile, and what they raise
ends the wait for it.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import POINTER, c_int64
from dataclasses import dataclass
from typing import Any, Optional

from eplb import _library
from eplb import _structs as structs
from eplb._arguments import integer, integers, numbers, real, text
from eplb._threads import run_beside
from eplb.errors import InvalidArgument

_COUNTS = ("num_slots", "num_gpus", "num_nodes", "num_groups")
_LONG = ("expert_bytes", "steps_of_window", "every", "history")


@dataclass(frozen=True)
class Replay:
    """Figures of a replay, predicted: nothing of it ran. Balancedness: mean / max load of a GPU, a mean over windows with tokens;
    nan if none has any. Seconds are those of the fullest GPUs, for expert layers alone.

    without_eplb: with one slot for each expert, in order. saved, spent: of balancing, and on migrations. transfers: of experts
    between GPUs.
    """

    policy: str
    balancedness_without_eplb: float
    balancedness: float
    seconds_without_eplb: float
    seconds_saved: float
    seconds_spent: float
    rebalances: int
    transfers: int
    bytes: int

    @property
    def gain(self) -> float:
        """The share of seconds_without_eplb that would have been saved, net of migrations; nan without tokens."""
        return (self.seconds_saved - self.seconds_spent) / self.seconds_without_eplb if self.seconds_without_eplb else math.nan


def replay(windows: Any, num_slots: int, num_gpus: int, *, policy: str = "auto", split: str = "equal", num_nodes: int = 1,
           num_groups: int = 1, min_gain: float = 0.01, token_ns: Optional[float] = None, expert_bytes: int = 0,
           steps_of_window: int = 50, every: int = 1, history: int = 4) -> Replay:
    """Decides on windows as the daemon would have, each time on what came before, and applies decisions as soon as it would.

    windows: integers [windows, layers, experts], tokens, oldest first. num_slots, num_gpus, num_nodes, num_groups: of a layer, as
    of eplb.placement.plan; each expert has one slot if num_slots is their number. policy: "auto", the daemon's default, or as
    there. split: "equal", or "batch" for exact splits. min_gain: least decrease of the peak GPU load. token_ns: time of a token on
    the fullest GPU; None: as of `eplbctl replay`. expert_bytes: of a move; 0: moves take no time. steps_of_window: steps in each
    window, of which some pass before a decision takes effect. every: windows between decisions. history: windows that a decision
    looks at. errors: InvalidArgument.
    """
    cells = integers("windows", numbers("windows", windows, "iu"), "[windows, layers, experts]")
    if cells.ndim != 3:
        raise InvalidArgument(f"windows has shape {list(cells.shape)}, expected [windows, layers, experts]")
    given = locals()
    library, options = _library.load(), structs.ReplayOptions()
    _library.check(library.eplb_replay_options_init(ctypes.byref(options), ctypes.sizeof(options)))
    options.num_windows, options.num_layers, options.num_experts = cells.shape
    options.policy, options.split = text("policy", policy), text("split", split)
    options.min_gain = real("min_gain", min_gain)
    if token_ns is not None:
        options.token_ns = real("token_ns", token_ns)
    for names, num_bytes in ((_COUNTS, 4), (_LONG, 8)):
        for name in names:
            setattr(options, name, integer(name, given[name], num_bytes))
    figures = structs.sized(structs.ReplayFigures)
    loads = cells.ctypes.data_as(POINTER(c_int64))  # keeps the cells
    run_beside(lambda: _library.check(library.eplb_replay(ctypes.byref(options), loads, ctypes.byref(figures))))
    return Replay(policy, *(getattr(figures, name) for name, _ in structs.ReplayFigures._fields_[1:]))
