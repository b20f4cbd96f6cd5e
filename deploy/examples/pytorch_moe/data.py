"""Global batches of text, byte by byte, from files that every Debian machine has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

VOCABULARY = 256  # a token is a byte
DEFAULT_TEXT = "/usr/share/common-licenses"


@dataclass(frozen=True)
class Batch:
    """A rank's part of a global batch: inputs and targets int64 [sequences, length], and the number of its first token
    among all tokens of the global batch."""
    inputs: torch.Tensor
    targets: torch.Tensor
    first_token: int


def read_text(path: str) -> bytes:
    """The bytes of a file, or of all regular files right in a directory, by name. Links are left out, for Debian's
    point at their neighbours.

    errors: FileNotFoundError when nothing is there; ValueError when nothing is in it.
    """
    where = Path(path)
    if where.is_dir():
        files = sorted(file for file in where.iterdir() if file.is_file() and not file.is_symlink())
    else:
        files = [where]
    text = b"\n".join(file.read_bytes() for file in files)
    if not text:
        raise ValueError(f"{path} holds no text")
    return text


class Batches:
    """The batch of every step: a function of text, seed and step, whatever the number of ranks.

    num_sequences: of a global batch, over all ranks. length: tokens of a sequence.
    errors: ValueError when the text is shorter than a sequence, or the ranks cannot have equal parts.
    """

    def __init__(self, text: bytes, seed: int, num_sequences: int, length: int) -> None:
        if len(text) < length + 2:
            raise ValueError(f"the text has {len(text)} bytes, a sequence needs {length + 2}")
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._seed = seed
        self.num_sequences = num_sequences
        self.length = length
        self.digest = hashlib.sha256(text).hexdigest()

    def part(self, step: int, rank: int, world_size: int, device: torch.device) -> Batch:
        """The sequences rank * n .. (rank + 1) * n - 1 of the step's global batch."""
        if self.num_sequences % world_size:
            raise ValueError(f"{self.num_sequences} sequences of a global batch do not part over {world_size} ranks")
        mine = self.num_sequences // world_size
        starts = self._starts(step)[rank * mine:(rank + 1) * mine]
        tokens = torch.stack([self._text[start:start + self.length + 1] for start in starts.tolist()])
        tokens = tokens.to(device=device, dtype=torch.int64)
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), rank * mine * self.length)

    def _starts(self, step: int) -> torch.Tensor:
        """Where the sequences of a step begin, int64 [num_sequences]: with a generator of its own for each step, so
        that a restart need not draw what went before."""
        name = hashlib.sha256(f"{self._seed}/{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(name[:7], "little"))
        return torch.randint(len(self._text) - self.length, (self.num_sequences,), generator=generator)
