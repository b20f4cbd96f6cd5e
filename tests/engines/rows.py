"""The rows of each engine: what 4 ranks count, how they are set up, what happens to them, and what must hold.

world: number of ranks. layers: of each model. stages: of the pipeline. groups: of the router. nodes: 0 for those that the
engine finds. settings: of register. windows: number of rearrangements. loads: "zeros", or "even" for the current map, in a
window; otherwise loads that drift. faults: a fault of faults.py and its rank, in a window. daemon: True if an eplbd plans.
orders: "kill" or "start" before a window. absent: ranks without the plugin. kept: windows after which the map must be the old
one, in the group of a fault's rank. moved: largest share of slots that may receive an expert from another GPU in a window after
the first. logs: patterns of all lines of a rank. engines: those that have the row.
"""

import experts

ENGINES = ("vllm", "vllm_sync", "sglang")
VLLM = ENGINES[:2]
DEFAULTS = {"world": 4, "layers": [experts.LAYERS], "stages": 1, "groups": 1, "nodes": 0, "settings": {}, "windows": 12,
            "loads": {}, "faults": {}, "daemon": False, "orders": {}, "absent": (), "kept": (), "moved": 0.1, "logs": {},
            "engines": ENGINES}
STAYS = r": the placement stays as it is: "
AGAIN = r": balances again$"
OWN = r" of 4 lacks EPLB's plugin or was late: all ranks use \w+'s own policy until they restart$"
GONE = STAYS + r"eplbd at [\d.:]+: connection refused$"
UNTOLD = r": the daemon received no report whether its placement was taken: "
LATE = STAYS + r"rank 0 of 4 published no placement within"
STOPPED = {"faults": {4: ("stopped", 2), 8: ("stopped", 0)}, "kept": (4, 8),
           "logs": {0: (STAYS + "rank 2 of 4 did not ack", AGAIN, STAYS + "ranks 1, 2, 3 of 4 did not ack", AGAIN),
                    1: (LATE, AGAIN), 2: (LATE, AGAIN), 3: (LATE, AGAIN)}}
ZEROS = {"loads": {0: "zeros", 5: "zeros", 6: "zeros"}, "kept": (0, 5, 6)}
GROUPS = {"windows": 20, "world": 8, "groups": 8, "nodes": 4, "moved": 0.17}
ROWS = {
    "drift": {"windows": 20},
    "groups": GROUPS,
    "no_groups": {"groups": None},
    "two_models": {"layers": [experts.LAYERS, 1], "faults": {4: ("stopped", 2)}, "kept": (4,), "engines": VLLM,
                   "logs": {0: (STAYS + "rank 2 of 4 did not acknowledge", AGAIN)}},
    "two_stages": {"stages": 2, "faults": {0: ("stopped", 3)}, "kept": (0,), "engines": VLLM,
                   "logs": {2: (STAYS + "rank 1 of 2 did not acknowledge", AGAIN)}},
    "zeros": ZEROS,
    "no_gain": {"settings": {"policy": "balanced"}, "loads": {5: "even"}, "kept": (5,), "moved": 1},
    "stopped": STOPPED,
    "plan_fails": {"faults": {4: ("plan_fails", 0), 8: ("plan_fails", 2)}, "kept": (4,),
                   "logs": {0: (STAYS + "MemoryError: no memory", AGAIN)}},
    "absent": {"absent": (2,), "moved": 1, "logs": {0: ("rank 2" + OWN,)}},
    "absent_0": {"absent": (0,), "moved": 1, "logs": {1: ("rank 0" + OWN,)}},
    "daemon": {"daemon": True, "windows": 20},
    "daemon_groups": {"daemon": True, **GROUPS},
    "daemon_two_models": {"daemon": True, "layers": [experts.LAYERS, 1], "engines": VLLM},
    "daemon_two_stages": {"daemon": True, "stages": 2, "engines": VLLM},
    "daemon_zeros": {"daemon": True, **ZEROS},
    "daemon_no_gain": {"daemon": True, "loads": {5: "even"}, "kept": (5,)},
    "daemon_stopped": {"daemon": True, **STOPPED},
    "daemon_killed": {"daemon": True, "orders": {4: "kill", 7: "start"}, "kept": (4, 5, 6), "logs": {0: (GONE, AGAIN)}},
    "daemon_killed_meanwhile": {"daemon": True, "faults": {4: ("kill", 2)}, "orders": {7: "start"}, "kept": (5, 6),
                                "logs": {0: (UNTOLD, GONE, AGAIN)}},
    "daemon_absent": {"daemon": True, "absent": (2,), "moved": 1, "logs": {0: ("rank 2" + OWN,)}},
}


def daemon_plans(row, window):
    """Returns True if the ranks have asked a daemon that lives after a window."""
    events = {**{at: fault for at, (fault, _) in row["faults"].items()}, **row["orders"]}
    newest = [events[at] for at in sorted(events) if at <= window and events[at] in ("kill", "start")][-1:]
    return row["daemon"] and newest != ["kill"] and not row["absent"]
