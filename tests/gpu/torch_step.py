"""PyTorch's CUDA tensors as experts of libeplb.so: two processes on one GPU, over peer and host, the bits of every row checked.

  torch_step.py                 all cases; exit 77 with the reason where there is no torch or no GPU
  EPLB_TORCH_DEVICE=cpu         tensors in host memory, transport host alone: what a machine without a GPU can show

Each case starts a daemon and two ranks. A rank trains until experts have moved. It checks each row before it writes the next
value, and replays a graph that was captured before the first switch: its slots must follow the placement. Needs EPLB_LIBRARY,
EPLB_BIN, EPLB_DATA and the package eplb, as tests/gpu/run.sh sets them.
"""

import ctypes
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "client/python"))

WORLD, LAYERS, EXPERTS, TOKENS, TOP_K = 2, 2, 8, 512, 2
ROW = 1 << 18  # elements: rows of 512 KiB and 1 MiB
STEPS, ENOUGH_SWITCHES = 400, 2
SECONDS = 60  # limit of a case, times EPLB_TEST_PATIENCE
SKIPPED = 77
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def device_type():
    return os.environ.get("EPLB_TORCH_DEVICE", "cuda")


def why_skipped():
    """"" where the cases can run."""
    try:
        import torch
    except ImportError as error:
        return f"there is no torch: {error}"
    if device_type() == "cpu" or torch.cuda.is_available():
        return ""
    return f"torch {torch.__version__} has no usable CUDA device"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    transport: str
    environment: dict = dataclasses.field(default_factory=dict)


CASES = [Case("peer", "peer"), Case("host", "host"), Case("peer_expandable", "peer", EXPANDABLE),
         Case("host_expandable", "host", EXPANDABLE)]


# ---- a rank ----

class Experts:
    """Stacked tensors whose rows are a function of layer, expert and the number of updates."""

    def __init__(self, client, device):
        import torch
        self.placement, self.updates, self.tensors = client.placement, 0, []
        for layer in range(LAYERS):
            for name, dtype, role in (("weight", torch.bfloat16, "weight"), ("moment", torch.float32, "state")):
                tensor = torch.zeros((self.placement.num_local_slots, ROW), dtype=dtype, device=device)
                client.register(tensor, name=f"layers.{layer}.{name}", layer=layer, role=role)
                self.tensors.append((layer, tensor))
        self._ramp = torch.arange(ROW, device=device) % 127
        self._fill()

    def update(self):
        self.verify()
        self.updates += 1
        self._fill()

    def verify(self):
        """Bits are compared as integers, so that -0 is not 0 and NaN is itself."""
        import torch
        for layer, tensor in self.tensors:
            integers = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
            for slot, expert in enumerate(self.placement.local_experts(layer).tolist()):
                expected = self._row(layer, expert, tensor.dtype)
                assert torch.equal(tensor[slot].view(integers), expected.view(integers)), (layer, slot, expert, self.updates)

    def _row(self, layer, expert, dtype):
        return (self._ramp + 128 * (expert + EXPERTS * layer) + 3 * (self.updates % 16)).to(dtype)

    def _fill(self):
        for layer, tensor in self.tensors:
            for slot, expert in enumerate(self.placement.local_experts(layer).tolist()):
                tensor[slot] = self._row(layer, expert, tensor.dtype)


class Routing:
    """The choices of each layer, routed and counted: on a GPU by one graph that is captured once, else by calls."""

    def __init__(self, client, device):
        import torch
        self.client, self.runs = client, 0
        generator = torch.Generator().manual_seed(client.options.rank)
        self.ids = torch.randint(0, EXPERTS, (TOKENS, TOP_K), generator=generator).to(device)
        self.slots = [torch.full_like(self.ids, -1) for _ in range(LAYERS)]
        self.counters = torch.zeros(EXPERTS + 1, dtype=torch.int64, device=device)
        self.graph = None
        if device.type == "cpu":
            return
        self._route()  # loads the kernels, which a capture may not
        torch.cuda.synchronize()
        self.counters.zero_()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._route()

    def replay(self):
        """Routes once more and checks each slot and the counts. returns: the slots [layers, tokens, top_k]."""
        import torch
        for slots in self.slots:
            slots.fill_(-1)
        if self.graph is None:
            self._route()
        else:
            self.graph.replay()
        self.runs += 1
        placement = self.client.placement
        held = torch.as_tensor(placement.physical_to_logical_map.tolist())
        routed, ids = torch.stack(self.slots).cpu(), self.ids.cpu()
        for layer in range(LAYERS):
            assert torch.equal(held[layer][routed[layer]], ids), f"slots of version {placement.version}, layer {layer}"
        counts = LAYERS * self.runs * torch.bincount(ids.flatten(), minlength=EXPERTS + 1)
        assert torch.equal(self.counters.cpu(), counts), f"counts after {self.runs} runs"
        return routed

    def _route(self):
        for layer, slots in enumerate(self.slots):
            self.client.route_tokens(layer, self.ids, slots=slots, counters=self.counters)


def run_rank(rank, directory, endpoint, transport):
    import ranks
    import torch
    device = torch.device("cpu") if device_type() == "cpu" else torch.device("cuda", 0)
    with ranks.connect(pathlib.Path(directory), rank, WORLD, endpoint=endpoint, require_daemon=True, job="torch",
                       transport=transport) as client:
        experts = Experts(client, device)
        client.finish_registration()
        assert client.transport == transport, f"rows go by {client.transport}"
        routing = Routing(client, device)
        before = routing.replay()
        switches, moved, pauses = 0, 0, []
        for step in range(STEPS):
            experts.update()
            for layer in range(LAYERS):
                client.record(layer, ranks.skewed(client.placement, layer, rank))
            boundary = client.step_boundary(step)
            moved += boundary.received_bytes
            if boundary.switched:
                switches += 1
                pauses.append(1e3 * boundary.pause_seconds)
                after = routing.replay()
                assert not torch.equal(before, after), f"the switch to version {boundary.version} changed no slot"
                before = after
            if switches == ENOUGH_SWITCHES:
                break
            time.sleep(0.01)
        experts.verify()
        assert switches == ENOUGH_SWITCHES, f"{switches} switches in {STEPS} steps"
        print(f"rank {rank}: {switches} switches, {moved / 1e6:.1f} MB received, longest pause {max(pauses):.2f} ms, "
              f"{routing.runs} {'calls' if routing.graph is None else 'replays of one graph'}")


def run_host_rank(directory):
    """A rank whose experts are host tensors: the library may make no context on the GPU."""
    import ranks
    import torch
    with ranks.connect(pathlib.Path(directory), 0, 1) as client:
        for layer in range(LAYERS):
            client.register(torch.zeros(client.placement.num_local_slots, 64), name=f"layers.{layer}", layer=layer)
        client.finish_registration()
        driver = ctypes.CDLL("libcuda.so.1")
        flags, active = ctypes.c_uint(), ctypes.c_int()
        code = driver.cuInit(0) or driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
        assert (code, active.value) == (0, 0), f"the driver gives {code}, and device 0 has {active.value} contexts"
        print("host tensors: no context on device 0")


# ---- the cases ----

def run_processes(commands, environment):
    """Runs them side by side. returns: "" or what went wrong; prints what they print."""
    processes = [subprocess.Popen([sys.executable, __file__, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, env={**os.environ, **environment}) for command in commands]
    wrong = []
    deadline = time.monotonic() + SECONDS * float(os.environ.get("EPLB_TEST_PATIENCE", "1"))
    try:
        for rank, process in enumerate(processes):
            text = process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0]
            print(text, end="", flush=True)
            if process.returncode != 0:
                wrong.append(f"rank {rank} ended with {process.returncode}")
    except subprocess.TimeoutExpired:
        wrong.append(f"rank {rank} has not ended in time")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                print(process.communicate()[0], end="", flush=True)
    return ", ".join(wrong)


def run_case(case):
    import ranks
    with tempfile.TemporaryDirectory(prefix="eplb-torch-") as directory:
        daemon = ranks.harness.Daemon(directory, policy_every=4, config="min_gain = 0.01\nhorizon_steps = 100000\n")
        daemon.start()
        try:
            return run_processes([("--rank", rank, directory, daemon.endpoint, case.transport) for rank in range(WORLD)],
                                 case.environment)
        finally:
            daemon.kill()


def run_host_case():
    with tempfile.TemporaryDirectory(prefix="eplb-torch-") as directory:
        return run_processes([("--host-rank", directory)], {})


def main():
    if why := why_skipped():
        print(f"the torch step is skipped: {why}")
        return SKIPPED
    on_cpu = device_type() == "cpu"
    failed = []
    runs = [(case.name, lambda case=case: run_case(case)) for case in CASES if not on_cpu or case.name == "host"]
    runs += [] if on_cpu else [("host_tensors", run_host_case)]
    for name, run in runs:
        begin = time.monotonic()
        wrong = run()
        print(f"{'FAIL' if wrong else 'ok'} {name} {time.monotonic() - begin:.1f} s {wrong}".rstrip(), flush=True)
        if wrong:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"{len(runs)} cases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), *sys.argv[3:])
    elif sys.argv[1:2] == ["--host-rank"]:
        run_host_rank(*sys.argv[2:])
    else:
        sys.exit(main())
