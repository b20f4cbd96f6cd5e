"""The settings of a run, and its command line."""

from __future__ import annotations

import argparse
import importlib.util
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Optional, Sequence

from data import DEFAULT_TEXT
from model import ModelShape
from optimizer import AdamOptions


@dataclass(frozen=True)
class Settings:
    """One field for each flag; its help text is in _PARTS."""
    steps: int = 300
    seed: int = 1
    layers: int = 2
    experts: int = 16
    redundant: int = 0
    top_k: int = 2
    width: int = 48
    hidden: int = 96
    heads: int = 4
    length: int = 32
    sequences: int = 16
    dtype: str = "float32"
    learning_rate: float = 3e-3
    clip: float = 1.0
    auxiliary_loss: float = 0.001
    state_in_primary: bool = False
    text: str = DEFAULT_TEXT
    ranks: int = 4
    device: str = "cpu"
    backend: str = "auto"
    eplb: bool = False
    endpoint: str = ""
    job: str = "pytorch-moe"
    report_every: int = 10
    initial_placement: str = ""
    split: str = "equal"
    checkpoint_dir: str = "checkpoints"
    checkpoint_every: int = 0
    resume: str = ""
    log_json: str = ""
    plot: str = ""

    def model_shape(self) -> ModelShape:
        return ModelShape(self.layers, self.experts, self.top_k, self.width, self.hidden, self.heads, self.length,
                          self.dtype)

    def needs_client(self) -> bool:
        """Whether something in this run takes EPLB's client, be it without a daemon."""
        return self.eplb or self.redundant > 0 or self.split == "batch"

    def adam_options(self) -> AdamOptions:
        return AdamOptions(self.learning_rate, clip=self.clip, state_in_every_replica=not self.state_in_primary)


_PARTS = {
    "run": {
        "steps": "optimizer steps in all, those before --resume included",
        "seed": "of the first weights and of the order of the text",
        "ranks": "processes to start here, unless torchrun or the like started this one (RANK is set)",
        "device": "cpu or cuda",
        "backend": "of torch.distributed: gloo, nccl, or auto: nccl where each rank has a GPU",
        "text": "file, or directory of files, to learn from",
    },
    "model": {
        "layers": "blocks, each with attention and a mixture of experts",
        "experts": "of a layer",
        "redundant": "slots of a layer beyond one for each expert, for replicas (needs the Python package eplb)",
        "top_k": "experts of a token",
        "width": "of a token's vector",
        "hidden": "of an expert",
        "heads": "of the attention",
        "dtype": "float32 or float64",
    },
    "training": {
        "length": "tokens of a sequence",
        "sequences": "of a global batch, over all ranks",
        "learning_rate": "of Adam, after 20 steps",
        "clip": "largest norm of the gradient",
        "auxiliary_loss": "weight of the loss that makes the router use all experts; 0: none",
        "state_in_primary": "keep an expert's moments at its primary alone, not in every replica",
    },
    "balancer": {
        "eplb": "let EPLB place the experts (needs the Python package eplb)",
        "endpoint": "of eplbd: HOST:PORT or unix:PATH; empty: EPLB without a daemon",
        "job": "name of the job in eplbd",
        "report_every": "steps of a load window",
        "initial_placement": "a placement file, the placements.jsonl of a run, or static; empty: the daemon's, else static",
        "split": "of an expert's tokens over its replicas: equal, or batch: exactly, for each batch (needs the Python package eplb)",
    },
    "files": {
        "checkpoint_dir": "where checkpoints go",
        "checkpoint_every": "steps between checkpoints; the last step has one, too; 0: none",
        "resume": "a checkpoint to resume from",
        "log_json": "file for one JSON line a step",
        "plot": "PNG file for the curves of loss and balancedness",
    },
}


def parse(arguments: Optional[Sequence[str]] = None) -> Settings:
    """From the command line; ends the process with a message when it is wrong."""
    defaults = {field.name: field.default for field in fields(Settings)}
    parser = argparse.ArgumentParser(description="Trains a mixture-of-experts language model with expert parallelism.",
                                     usage="train.py [--FLAG VALUE ..]; train.py --help shows the flags",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for part, texts in _PARTS.items():
        flags = parser.add_argument_group(part)
        for name, text in texts.items():
            flag, default = "--" + name.replace("_", "-"), defaults[name]
            if isinstance(default, bool):
                flags.add_argument(flag, action="store_true", help=text)
            else:
                flags.add_argument(flag, type=type(default), default=default, help=text)
    settings = Settings(**vars(parser.parse_args(arguments)))
    try:
        settings.model_shape().check()
        for name in ("steps", "layers", "experts", "length", "sequences", "ranks"):
            if getattr(settings, name) < 1:
                raise ValueError(f"{name} is {getattr(settings, name)}, it must be at least 1")
        if settings.split not in ("equal", "batch"):
            raise ValueError(f"split is {settings.split}, it must be equal or batch")
        if settings.redundant < 0:
            raise ValueError(f"redundant is {settings.redundant}, it must be at least 0")
        ranks = int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else settings.ranks
        if settings.experts + settings.redundant < ranks:
            raise ValueError(f"{settings.experts} experts and {settings.redundant} redundant slots are fewer than the "
                             f"{ranks} ranks, and each needs a slot")
        if settings.plot and not Path(settings.plot).absolute().parent.is_dir():
            raise ValueError(f"--plot {settings.plot}: there is no directory {Path(settings.plot).absolute().parent}")
        if settings.plot and importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--plot needs the Python package matplotlib (Debian: python3-matplotlib), and it is not there")
        if settings.needs_client() and importlib.util.find_spec("eplb") is None:
            raise ValueError("--eplb, --redundant and --split batch need the Python package eplb, and it is not there: "
                             "install client/python, or put that directory into PYTHONPATH")
    except ValueError as error:
        parser.error(str(error))
    return settings
