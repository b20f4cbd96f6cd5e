"""Echo: replicas of a batch's hot experts in spare slots, for that batch alone. docs/echo.md explains it.

    echo = eplb.echo(placement, counts, num_gpus=64, spare_slots=2)   # without a client and without a daemon

Equal counts give equal plans on every rank and machine, so no rank waits for another.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int64
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from eplb import _library
from eplb import _structs as structs
from eplb._arguments import counts_of, integer, real
from eplb._maps import Maps, known
from eplb._records import ArrayRecord


@dataclass(frozen=True, eq=False)
class Echo(ArrayRecord):
    """The echo of one layer of a batch; arrays of numpy. Two are equal when all their fields are; there is no hash.

    home_tokens: int64 [slots], tokens that each slot of the placement keeps.
    source: int32 [GPUs, spare slots], the slot whose expert a spare slot holds, -1: none.
    spare_tokens: int64 [GPUs, spare slots], tokens that a spare slot takes. All tokens sum to the counts.
    before, peak: tokens of the fullest GPU without and with the echo. bound: no echo has a lower peak, for the tokens of
        domain `bound_domain`. num_replicas: spare slots in use.
    """

    layer: int
    home_tokens: np.ndarray = field(repr=False)
    source: np.ndarray = field(repr=False)
    spare_tokens: np.ndarray = field(repr=False)
    before: int
    peak: int
    bound: int
    bound_domain: int
    num_replicas: int


def echo(placement: Any, counts: Any, *, layer: int = 0, spare_slots: int = 2, tolerance: float = 0.01, num_domains: int = 0,
         num_gpus: Optional[int] = None, num_nodes: Optional[int] = None) -> Echo:
    """Plans the echo of one layer of a batch beside a placement. Nothing is moved.

    placement, num_gpus, num_nodes: as eplb.Splitter. counts: integers [experts], summed over the EP group.
    spare_slots: of each GPU. tolerance: 0..1, how far a GPU may be above the mean of the fullest domain. num_domains: NVLink
    domains, which an expert does not leave; 0: the nodes. errors: InvalidArgument naming what does not fit.
    """
    gpus = known("num_gpus", num_gpus, placement)
    maps = Maps(placement, gpus, known("num_nodes", num_nodes, placement, 1))
    given = counts_of(counts)
    layer, spares = integer("layer", layer), integer("spare_slots", spare_slots)
    options = structs.sized(structs.EchoOptions, tolerance=real("tolerance", tolerance), spare_slots=spares,
                            num_domains=integer("num_domains", num_domains))
    library, plan = _library.load(), ctypes.c_void_p()
    _library.check(library.eplb_plan_from_maps(ctypes.byref(maps.struct), ctypes.byref(plan)))
    try:
        shape = (gpus, min(max(spares, 0), 1024))  # what is outside is refused by the library
        home_tokens = np.empty(maps.num_slots, np.int64)
        source, spare_tokens = np.empty(shape, np.int32), np.empty(shape, np.int64)
        result = structs.sized(structs.Echo, home_tokens=home_tokens.ctypes.data, source=source.ctypes.data,
                               spare_tokens=spare_tokens.ctypes.data, num_slots=home_tokens.size, num_spares=source.size)
        _library.check(library.eplb_plan_echo(plan, ctypes.byref(options), layer, given.ctypes.data_as(POINTER(c_int64)),
                                              given.size, ctypes.byref(result)))
    finally:
        library.eplb_plan_destroy(plan)
    return Echo(layer=layer, home_tokens=home_tokens, source=source, spare_tokens=spare_tokens, before=result.before,
                peak=result.peak, bound=result.bound, bound_domain=result.bound_domain, num_replicas=result.num_replicas)
