"""Draws the curves of one run, or of several to compare: plot.py RUN.jsonl [RUN.jsonl ..] --out CURVES.png."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Mapping, Sequence

# One step of a run, as --log-json writes it.
Record = Mapping[str, Any]


def read_log(path: str) -> list[Record]:
    """errors: OSError; ValueError naming file and line."""
    records = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return records


def draw(runs: Mapping[str, Sequence[Record]], file: str) -> None:
    """Writes a PNG: above the loss of each run, below its mean balancedness with a mark at each switch.

    A single run also has a dotted line: what the static placement would have made of the same tokens.
    """
    import matplotlib  # here, so that training without --plot does not need it
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(9, 7))
    for name, records in runs.items():
        steps = [record["step"] for record in records]
        above.plot(steps, [record["loss"] for record in records], label=name)
        line, = below.plot(steps, [record["mean_balancedness"] for record in records], label=name)
        for record in records:
            if record["switched"]:
                below.axvline(record["step"] + 0.5, color=line.get_color(), alpha=0.4, linewidth=0.8)
        if len(runs) == 1:
            static = [record["static_mean_balancedness"] for record in records]
            below.plot(steps, static, ":", color="gray", label="static placement, same tokens")
    above.set_ylabel("loss (nats per token)")
    below.set_ylabel("balancedness\n(mean / max tokens of a rank, mean of layers)")
    below.set_xlabel("step (vertical lines: experts moved)")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws loss and balancedness of runs from their --log-json files.")
    parser.add_argument("runs", nargs="+", metavar="RUN.jsonl")
    parser.add_argument("--out", default="curves.png", help="PNG file to write")
    arguments = parser.parse_args()
    draw({Path(path).stem: read_log(path) for path in arguments.runs}, arguments.out)


if __name__ == "__main__":
    main()
