"""eplb.torch on CUDA tensors: trainings with EPLB and without it, side by side in two processes on one GPU, equal to the bit.

  attach_step.py [CASE..]       default: all; exit 77 with the reason if there is no torch or no GPU
  EPLB_TORCH_DEVICE=cpu         the same on host tensors, without what needs a GPU

Prints a line for each case and a line of its figures in JSON, as the benches do. The cases stand in order of worth. Each has a
deadline, at which its processes are killed. The whole step takes at most LIMIT seconds. Needs EPLB_LIBRARY, EPLB_BIN, EPLB_DATA
and the package eplb, as tests/gpu/run.sh sets them.
"""

import collections
import contextlib
import dataclasses
import datetime
import faulthandler
import functools
import json
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings

BEGAN = time.monotonic()
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA in the parent would break it in forked ranks
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "client/python"), str(HERE.parent / "frameworks")]

DEVICE = os.environ.get("EPLB_TORCH_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
os.environ.setdefault("TORCHINDUCTOR_EMULATE_PRECISION_CASTS", "1")  # otherwise it rounds by what it fuses
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4" if ON_GPU else "1")
LIMIT, LANES, SKIPPED = 140, 3 if ON_GPU else 1, 77
LAYERS, PHASE_STEPS, SWITCHES = 4, 15, 3
NCCL = "cpu:gloo,cuda:nccl"

try:
    import eplb
    import eplb.torch
    import numpy as np
    import ranks
    import torch
    import torch.distributed as dist
    import torch_trainer as trainers
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError as lacking:
    if lacking.name != "torch":
        raise
    print(f"the attach step is skipped: there is no torch: {lacking}")
    sys.exit(SKIPPED)


@dataclasses.dataclass(frozen=True)
class Size:
    tokens: int
    width: int
    hidden: int
    experts: int
    top_k: int = 2


SMALL = Size(256, 128, 256, 16) if ON_GPU else Size(40, 16, 32, 8)
LARGE = Size(1024, 256, 512, 64, 4) if ON_GPU else SMALL


# ---- a trainer ----

class Gate(nn.Linear):
    """(weights, indices), [tokens, top_k] each."""

    def __init__(self, size):
        super().__init__(size.width, size.experts, bias=False)
        self.top_k = size.top_k

    def forward(self, x):
        return super().forward(x).float().softmax(dim=1).topk(self.top_k, dim=1)


class Experts(nn.Module):
    """The local experts in two stacks."""

    def __init__(self, size):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(size.experts, size.width, size.hidden) * 0.3)
        self.w2 = nn.Parameter(torch.randn(size.experts, size.hidden, size.width) * 0.3)

    def forward(self, rows):
        w1, w2 = (each.to_local() if hasattr(each, "to_local") else each for each in (self.w1, self.w2))
        return torch.bmm(nn.functional.gelu(torch.bmm(rows, w1)), w2)


class Block(nn.Module):
    """Tokens travel by slot number. No sum depends on the order of slots, and no index occurs twice."""

    def __init__(self, size, is_checkpointed):
        super().__init__()
        self.size, self.is_checkpointed, self.ep = size, is_checkpointed, dist.get_world_size()
        self.norm, self.gate, self.experts = nn.LayerNorm(size.width), Gate(size), Experts(size)

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if self.is_checkpointed else self.body(x)

    def body(self, x):
        tokens, width, experts, top_k = len(x), self.size.width, self.size.experts, self.size.top_k
        weights, slots = self.gate(self.norm(x))
        slots = slots.reshape(-1, 1)
        place = nn.functional.one_hot(slots[:, 0], experts).cumsum(dim=0).gather(1, slots) - 1
        at = (slots * tokens + place)[:, 0]
        leaving = x.new_zeros(experts * tokens, width).index_copy(0, at, x.repeat_interleave(top_k, dim=0))
        arrived = self.exchange(leaving).view(self.ep, experts // self.ep, tokens, width).transpose(0, 1)
        done = self.experts(arrived.reshape(experts // self.ep, self.ep * tokens, width)).to(x.dtype)
        back = self.exchange(done.view(experts // self.ep, self.ep, tokens, width).transpose(0, 1).reshape(leaving.shape))
        return x + (back.index_select(0, at).view(tokens, top_k, width) * weights.unsqueeze(2)).sum(dim=1)

    def exchange(self, rows):
        return rows if self.ep == 1 else trainers.AllToAll.apply(dist.group.WORLD, rows)


class Trainer:
    def __init__(self, case):
        torch.manual_seed(5)
        self.case, self.attached, self.losses = case, None, []
        self.model = nn.Sequential(*(Block(case.size, case.is_checkpointed) for _ in range(case.layers)))
        self.model = self._sharded() if case.is_sharded else self._spread().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, **case.adam)

    def attach(self, endpoint):
        self.attached = eplb.torch.attach(
            self.model, self.optimizer, experts="*.experts", router="gate", endpoint=endpoint, job=self.case.name, vote_every=4,
            report_every=4, check_batch=lambda: self.forward(batch(self.case.size, 9000)[0]), transport=self.case.transport)

    def compile(self):
        for block in self.model if self.case.backend else ():
            block.compile(backend=self.case.backend, fullgraph=True)

    def forward(self, x):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.case.is_autocast):
            return self.model(x)

    def step(self, x, target):
        self.optimizer.zero_grad()
        loss = (self.forward(x).float() - target).square().mean()
        loss.backward()
        if not self.case.is_sharded and self.case.world > 1:
            shared = [each.grad for name, each in self.model.named_parameters() if ".experts." not in name]
            whole = torch.cat([each.flatten() for each in shared])
            dist.all_reduce(whole)
            for each, part in zip(shared, whole.split([each.numel() for each in shared])):
                each.copy_(part.view_as(each))
        self.optimizer.step()
        self.losses.append(loss.detach())

    def tensors(self):
        """{name: its bits} of losses, parameters and optimizer state."""
        found = {"losses": torch.stack(self.losses)}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter
            found.update((f"{name}/{key}", value) for key, value in self.optimizer.state[parameter].items())
        return {name: bits_of(each.to_local() if hasattr(each, "to_local") else each) for name, each in found.items()}

    def expect_equal(self, other):
        mine, others = self.tensors(), other.tensors()
        assert torch.stack(self.losses).isfinite().all() and mine.keys() == others.keys(), (mine.keys() ^ others.keys())
        wrong = [name for name in mine if not torch.equal(mine[name], others[name])]
        first = next((step for step, pair in enumerate(zip(self.losses, other.losses)) if not torch.equal(*pair)), "none")
        assert not wrong, f"{len(wrong)} of {len(mine)} tensors differ, such as {wrong[:3]}; first loss that differs: {first}"
        return len(mine)

    def _spread(self):
        local = self.case.size.experts // self.case.world
        for block in self.model:
            for name, stack in list(block.experts.named_parameters()):
                setattr(block.experts, name, nn.Parameter(stack.detach()[dist.get_rank() * local:][:local].clone()))
        return self.model

    def _sharded(self):
        """FSDP2 over expert parallelism, as torchtitan applies them."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh(DEVICE, (1, self.case.world), mesh_dim_names=("efsdp", "ep"))
        everyone = init_device_mesh(DEVICE, (self.case.world,), mesh_dim_names=("fsdp",))
        for block in self.model.to(DEVICE):
            for name, stack in list(block.experts.named_parameters()):
                stack = distribute_tensor(stack.data, mesh["ep"], [Shard(0)], src_data_rank=None)
                setattr(block.experts, name, nn.Parameter(stack))
            fully_shard(block.experts, mesh=mesh["efsdp"])
            fully_shard(block, mesh=everyone)
        return fully_shard(self.model, mesh=everyone)


def bits_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def batch(size, step):
    """(input, target) [tokens, width]: the kinds of tokens change by phases, so that other experts are hot."""
    generator = torch.Generator().manual_seed(17 + step // PHASE_STEPS)
    centres = torch.randn(3, size.width, generator=generator) * 2
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    kinds = torch.randint(3, (size.tokens,), generator=generator)
    x = centres[kinds] + torch.randn(size.tokens, size.width, generator=generator) * 0.3
    return x.to(DEVICE), x.roll(1, dims=1).to(DEVICE)


# ---- figures ----

def wait():
    if ON_GPU:
        torch.cuda.synchronize()


@contextlib.contextmanager
def syncs(found, kind):
    """Counts torch's operations that make the host wait for the device, by their lines of Python. found: {kind: [Counter]}."""
    if not ON_GPU:
        yield
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    found.setdefault(kind, []).append(collections.Counter(f"{pathlib.Path(each.filename).name}:{each.lineno}" for each in waits))


def described(found):
    """{kind: {"calls", "most" of one call, "lines": {line: count}}}."""
    return {kind: {"calls": len(each), "most": max(one.total() for one in each),
                   "lines": dict(sum(each, collections.Counter()).most_common(8))} for kind, each in found.items()}


def median(values, scale=1e3):
    return round(scale * statistics.median(values), 4) if values else None


# ---- cases ----

def compare(case, endpoint, figures):
    """Trains without EPLB and with it, step by step in turn; counts waits for the device in the first half, times the second."""
    plain, moved = Trainer(case), Trainer(case)
    began = time.perf_counter()
    moved.attach(endpoint)
    figures["attach_seconds"] = round(time.perf_counter() - began, 2)
    plain.compile(), moved.compile()
    switches, pauses, waits, times = 0, [], {}, collections.defaultdict(list)
    for step in range(4 * case.steps):
        if step >= case.steps and (switches >= SWITCHES or case.world == 1):
            break
        x, target = batch(case.size, step)
        is_counted, pair = step < case.steps // 2, {}
        for trainer in (plain, moved)[::1 if step % 2 else -1]:
            count = functools.partial(syncs, waits) if is_counted else lambda _: contextlib.nullcontext()
            wait()
            began = time.perf_counter()
            with count("step with" if trainer.attached else "step without") if case.world == 1 else contextlib.nullcontext():
                trainer.step(x, target)
            kind = "without"
            if trainer.attached:
                kind, at = "vote" if step % 4 == 3 else "between votes", time.perf_counter()
                with count(f"boundary, {kind}"):
                    boundary = trainer.attached.step_boundary()
                kind = "switch" if boundary.switched else kind
                pair[f"boundary, {kind}"] = time.perf_counter() - at
            wait()
            pair[kind] = time.perf_counter() - began
        for kind, seconds in pair.items() if not is_counted else ():
            times[kind].append(seconds)
        if not is_counted and "between votes" in pair:
            times["difference between votes"].append(pair["between votes"] - pair["without"])
        if boundary.switched:
            switches += 1
            pauses.append(boundary.pause_seconds)
        if case.world > 1:
            time.sleep(0.01 if switches >= SWITCHES else 0.1 if switches else 0.3)  # a daemon decides beside the steps
        if step == case.steps // 2:
            with moved.attached.static_order():
                moved.expect_equal(plain)
    figures.update(switches=switches, transport=moved.attached.client.transport, pause_ms=median(pauses),
                   syncs=described(waits), ms={kind: median(each) for kind, each in sorted(times.items())})
    if case.backend:
        figures["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    if case.after is not None:
        case.after(moved, plain, figures)
    if case.world > 1:
        assert switches >= SWITCHES, f"{switches} switches in {step + 1} steps: {boundary.reason}"
        assert case.transport in ("auto", figures["transport"]), figures["transport"]
    moved.attached.check()
    moved.attached.detach()
    figures["equal_tensors"] = moved.expect_equal(plain)


def follow(trainer, _plain, _figures):
    """A forward follows experts that move, and is counted once; on a GPU one that a CUDA graph has captured."""
    x, _ = batch(trainer.case.size, 9001)
    trainer.forward(x)
    run = functools.partial(trainer.forward, x)
    if ON_GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = trainer.forward(x)
        run = lambda: (graph.replay(), found)[1]  # noqa: E731
    before = trainer.attached.tokens_per_expert()
    run()
    counted = (trainer.attached.tokens_per_expert() - before).sum(dim=1).tolist()
    assert counted == [len(x) * trainer.case.size.top_k] * trainer.case.layers, counted
    trainer.attached.check_forward(run)


def check_experts(trainer, _plain, _figures):
    """Each expert computes the same in all places."""
    stacks = [block.experts for block in trainer.model]
    x = torch.ones(1, trainer.case.size.width, device=DEVICE)
    trainer.attached.check_experts(lambda layer, slot: (x @ stacks[layer].w1[slot] @ stacks[layer].w2[slot]).detach())


def save(trainer, plain, figures):
    """torch.distributed.checkpoint of experts that are moved, at once and by a thread."""
    import compare as digests
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    assert any(trainer.attached._moved(layer) is not None for layer in trainer.attached.layers), "experts are not moved"
    found = []
    for number, (each, is_async) in enumerate(((plain, False), (trainer, False), (trainer, True))):
        model, optimizer = get_state_dict(each.model, each.optimizer)
        path = f"{os.environ['EPLB_CASE_FOLDER']}/saved{number}"
        saved = (dcp.async_save if is_async else dcp.save)({"model": model, "optim": optimizer}, checkpoint_id=path)
        if is_async:
            saved.result(timeout=30)
        dist.barrier()
        found.append(digests.digests_of_checkpoint(dcp.FileSystemReader(path)))
    for other in found[1:]:
        wrong = [name for name in found[0].keys() | other.keys() if found[0].get(name) != other.get(name)]
        assert found[0] and not wrong, f"{len(wrong)} of {len(found[0])} saved tensors differ, such as {sorted(wrong)[:3]}"
    figures["saved"] = len(found[0])


def watch(case, _endpoint, figures):
    """Cost and figures of eplb.torch.watch, and of the operators, for the choices of a layer."""
    tokens, experts, top_k = (4096, 256, 8) if ON_GPU else (512, 64, 8)
    size = Size(tokens, 256, 0, experts, top_k)
    model = nn.Sequential(*(Gate(size) for _ in range(LAYERS))).to(DEVICE)
    batches = [torch.randn(tokens, 256, device=DEVICE) + 0.2 * step for step in range(20)]
    watcher = eplb.torch.watch(model, "[0-9]", num_gpus=8, num_experts=experts, every=20)
    waits, expected = {}, torch.zeros(LAYERS, experts, dtype=torch.int64, device=DEVICE)
    with syncs(waits, "control"):
        expected.sum().item()
    assert not ON_GPU or waits.pop("control")[0].total() == 1, "a wait for the device was not seen"
    for step in range(60):
        with syncs(waits, "forward"):
            chosen = [gate(batches[step % 20])[1] for gate in model]
        expected += torch.stack([torch.bincount(each.flatten(), minlength=experts) for each in chosen])
        with syncs(waits, "a window's end" if step % 20 == 19 else "step within a window"):
            report = watcher.step()
    assert (sum(load for _, _, load in watcher.windows) == expected.cpu().numpy()).all(), "counts differ from torch.bincount"
    figures.update(report=report, syncs=described(waits),
                   would_gain={name: round(each.gain, 4) for name, each in watcher.would_gain(num_slots=experts + 32).items()})
    ids, columns = chosen[0], eplb.torch.SlotColumns("watch", experts, torch.device(DEVICE))
    columns.set_slots(np.random.default_rng(1).permutation(experts))
    slots, ones = columns._table[1:-1].clone(), torch.ones(ids.numel(), dtype=torch.int64, device=DEVICE)
    ways = {"count": lambda: torch.ops.eplb.count(ids, columns.ledger, 1, 2), "turn": lambda: columns.count_and_turn(ids),
            "torch_count": lambda: torch.zeros_like(slots).scatter_add_(0, ids.flatten(), ones),
            "torch_turn": lambda: slots.index_select(0, ids.flatten())}
    figures["us"] = {name: microseconds(call) for name, call in ways.items()}
    watcher.close()


def microseconds(call, rounds=200):
    """[of the host for each call, of the device for each in a replayed graph]."""
    for _ in range(20):
        call()
    wait()
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    of_host = (time.perf_counter() - began) / rounds * 1e6
    if not ON_GPU:
        return [round(of_host, 1), None]
    wait()
    graph, ends = torch.cuda.CUDAGraph(), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    graph.replay()
    ends[0].record()
    for _ in range(10):
        graph.replay()
    ends[1].record()
    wait()
    return [round(of_host, 1), round(ends[0].elapsed_time(ends[1]) * 1e3 / 200, 1)]


@dataclasses.dataclass(frozen=True)
class Case:
    """is_alone: no other case runs beside it. seconds: its deadline. group: backend of torch's collectives."""

    name: str
    run: object = compare
    after: object = None
    world: int = 2
    seconds: int = 45
    is_alone: bool = False
    steps: int = 60
    layers: int = LAYERS
    size: Size = SMALL
    group: str = "gloo"
    transport: str = "auto"
    adam: dict = dataclasses.field(default_factory=dict)
    backend: str = ""
    is_autocast: bool = False
    is_checkpointed: bool = False
    is_sharded: bool = False
    needs_gpu: bool = False


CASES = (
    Case("adamw", after=check_experts, seconds=60, is_alone=True, steps=200),
    Case("one_rank", after=follow, world=1, is_alone=True, steps=80, size=LARGE),
    Case("watch", watch, world=1, is_alone=True),
    Case("nccl", is_alone=True, group=NCCL, needs_gpu=True),
    Case("inductor", backend="inductor", layers=2, seconds=80),
    Case("fsdp", after=save, is_sharded=True),
    Case("aot_eager", backend="aot_eager", layers=2, is_checkpointed=True),
    Case("autocast", is_autocast=True, is_checkpointed=True),
    Case("fused", adam={"fused": True, "amsgrad": True}),
    Case("capturable", adam={"capturable": True}, needs_gpu=True),
    Case("host", transport="host", adam={"foreach": False}),
    Case("rows_by_nccl", is_alone=True, group=NCCL, transport="nccl", needs_gpu=True))


# ---- processes ----

def run_rank(case, rank, folder, endpoint):
    """A process of a case; its result is a file."""
    log = os.open(f"{folder}/{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    faulthandler.dump_traceback_later(case.seconds * ranks.PATIENCE - 2)
    result = {"result": "pass", "why": "", "figures": {}}
    os.environ.update(EPLB_CASE_FOLDER=folder, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(case.world))
    try:
        if case.group == NCCL:  # which takes two ranks of one device only as ranks of two hosts
            import trainer_gpu_test
            os.environ.update(trainer_gpu_test.NCCL_ENVIRONMENT, NCCL_HOSTID=f"eplb-r{rank}")
        if ON_GPU:
            torch.cuda.set_device(0)
        if case.group == NCCL:  # whose trainers have streams of their own
            torch.cuda.set_stream(torch.cuda.Stream())
        dist.init_process_group(case.group, f"file://{folder}/group", rank=rank, world_size=case.world,
                                timeout=datetime.timedelta(seconds=case.seconds))
        case.run(case, endpoint, result["figures"])
        dist.barrier()
    except BaseException as error:
        traceback.print_exc()
        result.update(result="FAIL", why=f"{type(error).__name__}: {error}".partition("\n")[0])
    sys.stdout.flush()
    pathlib.Path(f"{folder}/{rank}.new").write_text(json.dumps(result))
    os.rename(f"{folder}/{rank}.new", f"{folder}/{rank}.json")
    os._exit(0)


class Run:
    """The processes of a case."""

    def __init__(self, case, directory, endpoint):
        self.case, self.folder = case, pathlib.Path(directory) / case.name
        self.folder.mkdir()
        self.began, self.ended, self.left = time.monotonic(), None, {}
        for rank in range(case.world):
            pid = os.fork()
            if pid == 0:
                os.setsid()
                run_rank(case, rank, str(self.folder), endpoint)
            self.left[pid] = rank

    def has_ended(self, is_late):
        """Kills what is left at the deadline, and 5 s after a rank has ended."""
        for pid in list(self.left):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.left[pid]
                self.ended = self.ended or time.monotonic()
        now = time.monotonic()
        is_late = is_late or now - self.began > self.case.seconds * ranks.PATIENCE or now - (self.ended or now) > 5
        for pid in list(self.left) if is_late else ():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self.left[pid]
        return not self.left

    def report(self):
        """Prints the lines of the case. returns: its result."""
        seconds = round(time.monotonic() - self.began, 1)
        found = [self._result(rank) for rank in range(self.case.world)]
        told = next((each for name in ("FAIL", "late", "pass") for each in found if each["result"] == name))
        verdict = "FAIL" if told["result"] == "late" else told["result"]
        if verdict == "FAIL":
            for rank in range(self.case.world):
                with contextlib.suppress(FileNotFoundError):
                    text = (self.folder / f"{rank}.log").read_text(errors="replace")
                    print(f"--- {self.case.name}, rank {rank}:\n{text[-4000:]}")
        figures = {key: value for key, value in found[0]["figures"].items() if not isinstance(value, dict)}
        print(f"{verdict} {self.case.name} {seconds} s {told['why'] or figures}")
        print(json.dumps({"bench": "attach", "case": self.case.name, "result": verdict, "why": told["why"], "seconds": seconds,
                          **found[0]["figures"]}), flush=True)
        return verdict

    def _result(self, rank):
        path = self.folder / f"{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {
            "result": "late", "why": f"rank {rank} died or was killed at its deadline of {self.case.seconds} s", "figures": {}}


def has_gpu():
    """Asks in a process of its own, because a fork of one that has asked could not use the GPU."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if torch.cuda.is_available() else 1)
    return os.waitpid(pid, 0)[1] == 0


def main():
    if ON_GPU and not has_gpu():
        print(f"the attach step is skipped: torch {torch.__version__} has no usable CUDA device")
        return SKIPPED
    unknown = set(sys.argv[1:]) - {case.name for case in CASES}
    if unknown:
        sys.exit(f"attach_step.py: there is no case {min(unknown)}: {', '.join(case.name for case in CASES)}")
    waiting = [case for case in CASES if case.name in (sys.argv[1:] or [case.name]) and (ON_GPU or not case.needs_gpu)]
    running, results = [], []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"torch {torch.__version__} on {DEVICE}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory(prefix="eplb-attach-", ignore_cleanup_errors=True) as directory:
        daemon = ranks.harness.Daemon(directory, policy_every=4, config="min_gain = 0.01\nhorizon_steps = 100000\n")
        daemon.start()
        try:
            while waiting or running:
                is_late = time.monotonic() - BEGAN > LIMIT * ranks.PATIENCE
                for run in [each for each in running if each.has_ended(is_late)]:
                    running.remove(run)
                    results.append(run.report())
                if waiting and is_late:
                    print("\n".join(f"skip {case.name} 0 s no time is left" for case in waiting))
                    waiting = []
                is_alone = any(run.case.is_alone for run in running)
                if waiting and not is_alone and len(running) < (1 if waiting[0].is_alone else LANES):
                    running.append(Run(waiting.pop(0), directory, daemon.endpoint))
                time.sleep(0.05)
        finally:
            for run in running:
                run.has_ended(True)
            daemon.kill()
    print(f"{results.count('pass')} cases passed, {results.count('FAIL')} failed in {time.monotonic() - BEGAN:.0f} s")
    return 0 if "pass" in results and "FAIL" not in results else 1


if __name__ == "__main__":
    sys.exit(main())
