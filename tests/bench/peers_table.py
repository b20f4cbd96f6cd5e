#!/usr/bin/env python3
"""Prints, as Markdown, what public balancers reach on the workloads and what this engine reaches.

The peers' figures are those of tests/data/workloads/peers.json, measured once with their own code;
none of that code is here. This engine's figures are measured by this run: for each workload it
writes the load to a temporary file and calls `eplbctl plan`. Peers that keep expert groups on their
node stand beside `--hierarchy strict`, the others beside `--hierarchy none`.

The search also has to keep up with its prototype, which is in peers.json too but not in the table:
within 0.001 in every row at `--effort thorough`, and within 0.003 at `--effort default` in the rows
of DEFAULT_SHAPES and DEFAULT_LOADS.

Needs numpy (in build/venv, from tests/environment). Exit 1 when a row at `thorough` is below a peer's, or one is further
below the prototype's than that.

  tests/bench/peers_table.py [--bin build/release/bin] [--effort thorough] [--seed 0] [NAME ..]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "workloads"
sys.path.insert(0, str(DATA))

# Peers that keep an expert group on its node where groups % nodes == 0.
HIERARCHICAL = {"deepseek", "vllm_default", "vllm_batched"}
PROTOTYPES = {"own_prototype_hier": "strict", "own_prototype_global": "none"}
PROTOTYPE_TOLERANCE = {"thorough": 0.001, "default": 0.003}
DEFAULT_SHAPES = {"a_dsv3_prefill", "c2_4n_32g_320s", "c3_16n_32g_320s", "d_qwen3_235b", "f_kimi_k2"}
DEFAULT_LOADS = {"zipf08", "zipf12", "logn1", "unif"}
# Rounding of peers.json.
TOLERANCE = 6e-6


def best_peers(rows, hierarchical_shape):
    """The best peer of each hierarchy in the rows of one workload: {hierarchy: (value, name)}."""
    best = {}
    for row in rows:
        name, value = row["policy"], row["balancedness"]
        if name in PROTOTYPES or value is None:
            continue
        strict = hierarchical_shape and name in HIERARCHICAL
        key = "strict" if strict else "none"
        best[key] = max(best.get(key, (0, "")), (value, name))
    return best


def least_by_prototype(rows, effort):
    """Returns the prototype's answers in the rows of one workload: {hierarchy: (value, name)}."""
    least = {}
    for row in rows:
        shape, load_name = row["workload"].split("/")
        counts = effort == "thorough" or (shape in DEFAULT_SHAPES and load_name in DEFAULT_LOADS)
        if row["policy"] in PROTOTYPES and effort in PROTOTYPE_TOLERANCE and counts:
            least[PROTOTYPES[row["policy"]]] = (row["balancedness"] - PROTOTYPE_TOLERANCE[effort], row["policy"])
    return least


def plan(binary, load, config, hierarchy, effort):
    """Returns the report of `eplbctl plan` for a load [L, E]."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "load.json"
        path.write_text(json.dumps(load.tolist()))
        command = [binary, "plan", "--load", path, "--gpus", config["G"], "--nodes", config["N"],
                   "--groups", config["groups"], "--slots", config["S"], "--hierarchy", hierarchy,
                   "--effort", effort, "-o", "json"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              timeout=600, check=True)
        return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default="build/release/bin", help="the folder of eplbctl")
    parser.add_argument("--effort", default="thorough")
    parser.add_argument("--seed", type=int, default=0, help="peers were measured on seed 0")
    parser.add_argument("names", nargs="*", help="workloads; all by default")
    arguments = parser.parse_args()
    import workloads  # beside the data, needs numpy

    peers = {}
    for row in json.loads((DATA / "peers.json").read_text())["static"]:
        peers.setdefault(row["workload"], []).append(row)
    print("| workload | hierarchy | best peer | peer | eplb | gap to bound | s |")
    print("|---|---|---|---|---|---|---|")
    below = []
    compared = 0
    for name, rows in peers.items():
        shape, load_name = name.split("/")
        if load_name not in workloads.LOADS or (arguments.names and name not in arguments.names):
            continue
        load, config = workloads.workload(shape, load_name, arguments.seed)
        hierarchical = config["groups"] > 1 and config["groups"] % config["N"] == 0
        prototype = least_by_prototype(rows, arguments.effort)
        for hierarchy, (value, peer) in sorted(best_peers(rows, hierarchical).items()):
            found = plan(f"{arguments.bin}/eplbctl", load, config, hierarchy, arguments.effort)
            mean = found["balancedness"]["mean"]
            print(f"| {name} | {hierarchy} | {peer} | {value:.4f} | {mean:.4f} "
                  f"| {found['bound']['gap_mean']:.4f} | {found['solve_seconds']:.2f} |", flush=True)
            if arguments.seed != 0:
                continue
            if arguments.effort == "thorough" and mean < value - TOLERANCE:
                below.append(f"{name} ({hierarchy}): {mean:.5f} is below {peer}'s {value:.5f}")
            if hierarchy in prototype:
                least, policy = prototype[hierarchy]
                compared += 1
                if mean < least - TOLERANCE:
                    below.append(f"{name} ({hierarchy}): {mean:.5f} is below the {least:.5f} that {policy} demands")
    print(f"{compared} rows compared with the prototype", file=sys.stderr)
    for line in below:
        print(line, file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
