#!/usr/bin/env python3
"""Trains a mixture-of-experts language model on text, byte by byte, and lets EPLB place its experts.

    train.py --steps 300                                    four processes on this machine, without EPLB
    train.py --steps 300 --endpoint 127.0.0.1:29610         the same training, attached to a daemon

Tokens travel to their experts by all-to-all and back, and none is dropped. The statements that call EPLB are marked "EPLB".
Losses are equal to the bit wherever the experts are. Each expert has its own matrix products over its tokens in a fixed order,
and sums over experts run in the order of experts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional


class AllToAll(torch.autograd.Function):
    """Sends rows to the ranks and returns the rows received, both in rank order. Gradients travel back the same way."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        context.sent, context.received = sent, received
        arrived = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
        return arrived

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return AllToAll.apply(gradient, context.received, context.sent), None, None


class Gate(nn.Linear):
    """The router: [tokens, width] -> weights and experts, [tokens, top_k] each, the best expert first.

    EPLB turns the experts that this module returns into slots and counts them. The module itself sees experts alone.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args.width, args.experts, bias=False)
        self.top_k = args.top_k

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        affinity = super().forward(x).softmax(dim=-1)
        weights, experts = affinity.topk(self.top_k, dim=-1)
        self.counts = functional.one_hot(experts, affinity.shape[-1]).sum(dim=(0, 1))
        # Smallest if all experts get equal numbers of tokens.
        self.auxiliary_loss = (self.counts / experts.numel() * affinity.mean(dim=0)).sum() * affinity.shape[-1]
        return weights / weights.sum(dim=-1, keepdim=True), experts


class Expert(nn.Module):
    """One expert. Its first weights follow from layer, number and seed, whichever rank holds it."""

    def __init__(self, layer: int, expert: int, args: argparse.Namespace) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(args.seed + 1000 * layer + expert)
            self.open, self.up = (nn.Linear(args.width, args.hidden, bias=False) for _ in range(2))
            self.down = nn.Linear(args.hidden, args.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.open(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Sends each token to its experts on any rank, and adds up what they return, the best expert first."""

    def __init__(self, layer: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.layer, self.rank, self.num_ranks, self.num_slots = layer, dist.get_rank(), args.ranks, args.slots
        self.gate = Gate(args)
        self.experts = self.make_experts(args)

    def make_experts(self, args: argparse.Namespace) -> nn.Module:
        local = args.experts // self.num_ranks
        return nn.ModuleList(Expert(self.layer, self.rank * local + slot, args) for slot in range(local))

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns weights and slots of the choices, [tokens, top_k] each. Without EPLB expert e is in slot e."""
        return self.gate(x)

    def compute(self, rows_of_slots: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Runs all local experts, also those without tokens: so every parameter has a gradient in every step."""
        return [expert(rows) for expert, rows in zip(self.experts, rows_of_slots)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, slots = self.route(x)
        counts = all_gather(functional.one_hot(slots.flatten(), self.num_slots).sum(dim=0))  # [source ranks, slots]
        by_rank = counts.view(self.num_ranks, self.num_ranks, -1)                            # [source, destination, slots]
        sent, received = by_rank[self.rank].sum(dim=1).tolist(), by_rank[:, self.rank].sum(dim=1).tolist()
        local = by_rank[:, self.rank]                                                        # [source, local slots]
        slot_of_row = torch.arange(local.shape[1], device=x.device).repeat(self.num_ranks).repeat_interleave(local.flatten())
        by_slot = slots.flatten().argsort(stable=True)      # choices leave ordered by slot, then by token
        by_source = slot_of_row.argsort(stable=True)        # rows are computed by local slot, then by source and token
        choices = x.unsqueeze(1).expand(-1, weights.shape[1], -1).flatten(0, 1)
        rows = AllToAll.apply(choices[by_slot], sent, received)[by_source]
        done = torch.cat(self.compute(rows.split(local.sum(dim=0).tolist())))
        back = AllToAll.apply(done[by_source.argsort()], received, sent)[by_slot.argsort()]
        self.tokens_of_slots = counts.sum(dim=0)
        return (back.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


class Block(nn.Module):
    """Causal attention and a mixture of experts, each added to its input."""

    def __init__(self, moe: MixtureOfExperts, args: argparse.Namespace) -> None:
        super().__init__()
        self.heads, self.moe = args.heads, moe
        self.norms = nn.ModuleList(nn.LayerNorm(args.width) for _ in range(2))
        self.inward, self.outward = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        self.register_buffer("later", torch.full((args.length, args.length), -math.inf).triu(diagonal=1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in self.inward(self.norms[0](x)).chunk(3, dim=-1))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + self.later
        x = x + self.outward((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
        return x + self.moe(self.norms[1](x).flatten(0, 1)).view(x.shape)


class LanguageModel(nn.Module):
    """The transformer. Dense parameters are equal on all ranks; a rank has the experts of its own slots only."""

    def __init__(self, args: argparse.Namespace, make_moe: Any = MixtureOfExperts) -> None:
        super().__init__()
        torch.manual_seed(args.seed)
        self.embedding, self.positions = nn.Embedding(256, args.width), nn.Embedding(args.length, args.width)
        self.blocks = nn.ModuleList(Block(make_moe(layer, args), args) for layer in range(args.layers))
        self.last_norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, 256)
        self.moes = [block.moe for block in self.blocks]
        self.dense = {name: each for name, each in self.named_parameters() if ".experts." not in name}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.last_norm(x))


def all_gather(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensors of all ranks, [ranks, ..]."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.stack(parts)


def read_text(args: argparse.Namespace) -> torch.Tensor:
    """Returns the bytes of a file, or of all files in a directory but links. errors: ValueError if they are too few."""
    path = Path(args.text)
    files = sorted(each for each in path.iterdir() if each.is_file() and not each.is_symlink()) if path.is_dir() else [path]
    text = b"\n".join(each.read_bytes() for each in files)
    if len(text) < args.length + 2:
        raise ValueError(f"--text {path} has {len(text)} bytes, a sequence needs {args.length + 2}")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch_of(text: torch.Tensor, step: int, args: argparse.Namespace) -> torch.Tensor:
    """Returns this rank's sequences of a step, [sequences, length + 1]. The global batch follows from seed and step."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - args.length, (args.sequences,), generator=generator).chunk(args.ranks)[dist.get_rank()]
    return torch.stack([text[start:start + args.length + 1] for start in starts.tolist()]).to(args.device, torch.int64)


def backward(model: LanguageModel, batch: torch.Tensor, args: argparse.Namespace) -> float:
    """Computes all gradients. Returns the mean loss of the global batch."""
    loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()) / args.ranks
    auxiliary_loss = sum(moe.gate.auxiliary_loss for moe in model.moes) / args.layers / args.ranks
    (loss + args.auxiliary_loss * auxiliary_loss).backward()
    # Gradients of experts are complete: the tokens came from all ranks.
    gradients = [each.grad for each in model.dense.values()]
    flat = torch.cat([each.flatten() for each in gradients] + [loss.detach().view(1)])
    dist.all_reduce(flat)
    for gradient, total in zip(gradients, flat[:-1].split([each.numel() for each in gradients])):
        gradient.copy_(total.view_as(gradient))
    return float(flat[-1])


def balancedness(tokens: torch.Tensor, num_ranks: int) -> float:
    """Returns mean / max tokens of a rank, averaged over layers. 1 is best. tokens: [layers, slots]."""
    ranks = tokens.view(len(tokens), num_ranks, -1).sum(dim=-1).double()
    return float((ranks.mean(dim=1) / ranks.max(dim=1).values).mean())


def report(model: LanguageModel, step: int, loss: float, seconds: float, boundary: Any, args: argparse.Namespace) -> None:
    """Prints lines for the terminal and appends one to --log-json, whose steps and load make it a trace for eplbctl."""
    load = torch.stack([moe.gate.counts for moe in model.moes])  # [layers, experts]
    dist.all_reduce(load)
    slots = torch.stack([moe.tokens_of_slots for moe in model.moes])
    ran, static = balancedness(slots, args.ranks), balancedness(load, args.ranks)
    if dist.get_rank() != 0:
        return
    moved = boundary is not None and boundary.switched
    if args.log_json:
        with open(args.log_json, "a" if step else "w", encoding="utf-8") as log:
            print(json.dumps({"step": step, "first_step": step, "last_step": step, "loss": loss, "load": load.tolist(),
                              "slot_tokens": slots.tolist(), "balancedness": ran, "switched": moved, "seconds": seconds}),
                  file=log)
    if moved:
        print(f"step {step}: experts moved in {boundary.pause_seconds * 1e3:.1f} ms: {boundary.reason}")
    if moved or step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:5d}  loss {loss:.4f}  balancedness {ran:.3f} (static {static:.3f})  {seconds * 1e3:.0f} ms", flush=True)


def save(path: Path, step: int, attached: Any, **parts: Any) -> None:
    """Writes this rank's part of a checkpoint. Collective."""
    file = path / f"rank-{dist.get_rank()}.pt"
    path.mkdir(parents=True, exist_ok=True)
    # EPLB carries each expert to its own slot meanwhile, so that state dicts are those of a training without EPLB.
    with contextlib.nullcontext() if attached is None else attached.static_order():
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"step": step, "ranks": dist.get_world_size(), **states}, f"{file}.partial")
    os.replace(f"{file}.partial", file)


def load(path: Path, **parts: Any) -> int:
    """Reads this rank's part of a checkpoint and returns its step. errors: ValueError for another number of ranks."""
    found = torch.load(path / f"rank-{dist.get_rank()}.pt", map_location="cpu")
    if found["ranks"] != dist.get_world_size():
        raise ValueError(f"--resume {path} was written by {found['ranks']} ranks, this run has {dist.get_world_size()}")
    for name, part in parts.items():
        part.load_state_dict(found[name])
    return int(found["step"])


def train(args: argparse.Namespace) -> None:
    """The training on one rank."""
    text, verified, attached, boundary = read_text(args), False, None, None
    model = LanguageModel(args).to(args.device, getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.99), foreach=False)
    first_step = load(Path(args.resume), model=model, optimizer=optimizer) if args.resume else 0
    if args.endpoint:
        import eplb.torch

        attached = eplb.torch.attach(model, optimizer, experts="*.experts", router="gate", endpoint=args.endpoint,
                                     job=args.job, report_every=args.report_every, first_step=first_step,
                                     check_batch=batch_of(text, first_step, args)[:, :-1])                    # EPLB
    for step in range(first_step, args.steps):
        begin = time.monotonic()
        loss = backward(model, batch_of(text, step, args), args)
        optimizer.step()
        optimizer.zero_grad()
        if attached is not None:
            boundary = attached.step_boundary(step)             # EPLB: the ranks vote, and sometimes experts move
            if boundary.switched and not verified:
                attached.check()                                # EPLB: no tensor of an expert was overlooked
                attached.check_experts()                        # EPLB: an expert computes the same in all slots
                verified = True
        report(model, step, loss, time.monotonic() - begin, boundary, args)
        if args.checkpoint_every and (step + 1) % args.checkpoint_every == 0:
            save(Path(args.checkpoint_dir) / f"step-{step + 1:06d}", step + 1, attached, model=model, optimizer=optimizer)
    if attached is not None:
        attached.close()                                        # EPLB


def run_rank(rank: int, train_rank: Any, args: argparse.Namespace, meeting: str) -> None:
    """Runs one rank. meeting: where the ranks meet, as torch.distributed names it."""
    torch.use_deterministic_algorithms(True)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    try:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo", meeting, rank=rank, world_size=args.ranks)
        train_rank(args)
        dist.destroy_process_group()
    except Exception as error:
        if not isinstance(error, (ImportError, OSError, ValueError)) and type(error).__module__ != "eplb.errors":
            raise
        sys.exit(f"rank {rank}: {error}")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, default, text in (
            ("steps", 300, "steps in all, including those before --resume"), ("seed", 1, "seed of first weights and batches"),
            ("ranks", 4, "processes to start; ignored under a launcher, which sets RANK and WORLD_SIZE"),
            ("layers", 2, "transformer blocks"), ("experts", 16, "experts of a layer"), ("top-k", 2, "experts of a token"),
            ("width", 48, "size of a token's vector"), ("hidden", 96, "inner size of an expert"), ("heads", 4, "attention heads"),
            ("length", 32, "tokens of a sequence"), ("sequences", 16, "sequences of a global batch"),
            ("learning-rate", 3e-3, "learning rate of AdamW"), ("auxiliary-loss", 0.001, "weight of the loss that evens the router"),
            ("dtype", "float32", "float32 or float64"), ("device", "cpu", "cpu or cuda"),
            ("text", "/usr/share/common-licenses", "file, or directory of files, to learn"),
            ("endpoint", "", "eplbd: HOST:PORT or unix:PATH; none: train without EPLB"), ("job", "pytorch-moe", "name of the job"),
            ("report-every", 10, "steps of a load window until the daemon asks for another length"),
            ("checkpoint-dir", "checkpoints", "directory of checkpoints"), ("checkpoint-every", 0, "steps; 0: no checkpoints"),
            ("resume", "", "checkpoint to continue from"), ("log-json", "", "file for one JSON line a step")):
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    return parser


def main(parser: argparse.ArgumentParser, train_rank: Any) -> None:
    """Checks the command line, and runs this rank or starts all ranks on this machine."""
    args = parser.parse_args()
    args.ranks, args.slots = int(os.environ.get("WORLD_SIZE", args.ranks)), getattr(args, "slots", args.experts)
    for wrong, text in ((not 1 <= args.top_k < args.experts, f"--top-k {args.top_k} of {args.experts} experts"),
                        (args.slots % args.ranks, f"{args.slots} slots do not divide over {args.ranks} ranks"),
                        (args.sequences % args.ranks, f"--sequences {args.sequences} do not divide over {args.ranks} ranks"),
                        (args.width % args.heads, f"--width {args.width} is no multiple of --heads {args.heads}")):
        if wrong:
            parser.error(text)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS then repeats itself to the bit
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), train_rank, args, "env://")
        return
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer imports much: once here, not in each rank
    with tempfile.TemporaryDirectory() as directory:
        try:
            multiprocessing.start_processes(run_rank, (train_rank, args, f"file://{directory}/ranks"), args.ranks,
                                            start_method="fork")
        except multiprocessing.ProcessExitedException as error:
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main(make_parser(), train)
