"""Draws the curves of one run, or of several to compare: plot.py RUN.jsonl [RUN.jsonl ..] --out CURVES.png."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One step of a run, as --log-json writes it.
Record = Mapping[str, Any]
SMOOTHED_STEPS = 10
_FIELDS = ("step", "loss", "mean_balancedness", "static_mean_balancedness", "switched")
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # told apart also by those who see fewer colours


def read_log(path: str) -> list[Record]:
    """errors: OSError; ValueError naming file and line."""
    records = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
        missing = [field for field in _FIELDS if field not in records[-1]]
        if missing:
            raise ValueError(f"{path}:{number}: no {missing[0]}, is it a file of train.py --log-json?")
    return records


def moving_mean(values: Sequence[float], switched: Sequence[bool]) -> np.ndarray:
    """Of each value and the SMOOTHED_STEPS - 1 before it, but of none before a switch: a jump stays a jump.

    switched: whether experts moved after the value's step. returns: float [values].
    """
    means, begin = [], 0
    for end in range(1, len(values) + 1):
        means.append(np.mean(values[max(begin, end - SMOOTHED_STEPS):end]))
        if switched[end - 1]:
            begin = end
    return np.array(means)


def draw(runs: Mapping[str, Sequence[Record]], file: str) -> None:
    """Writes a PNG: above the loss of each run, below its balancedness with a mark at each switch.

    A single run also has a dotted line: what the static placement would have made of the same tokens.
    errors: ValueError for a run without a step.
    """
    figure_of(runs).savefig(file, dpi=120)


def figure_of(runs: Mapping[str, Sequence[Record]]) -> Figure:
    """What draw writes. errors: as draw."""
    from matplotlib.figure import Figure  # here, so that training without --plot does not need it; and no pyplot, which
    from matplotlib.ticker import MaxNLocator  # would look for a display

    for name, records in runs.items():
        if not records:
            raise ValueError(f"run {name} has no steps to draw")
    figure = Figure(figsize=(9.6, 7.6), constrained_layout=True)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2, 3]})
    _draw_loss(above, runs)
    _draw_balancedness(below, runs)
    below.set_xlabel("optimizer step")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    return figure


def _draw_loss(axes: Axes, runs: Mapping[str, Sequence[Record]]) -> None:
    for number, (name, records) in enumerate(runs.items()):
        # Equal curves lie on each other: an earlier one is broader and pale, so that both are seen.
        first = number < len(runs) - 1
        axes.plot(_steps(records), _values(records, "loss"), color=_COLORS[number % len(_COLORS)], label=name,
                  linewidth=5 if first else 1.4, alpha=0.35 if first else 1)
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(_comparison(list(runs.values())), loc="left", fontsize="medium")
    axes.legend(loc="upper right")


def _draw_balancedness(axes: Axes, runs: Mapping[str, Sequence[Record]]) -> None:
    switches = {name: [record["step"] for record in records if record["switched"]] for name, records in runs.items()}
    begin = min((steps[0] + 1 for steps in switches.values() if steps), default=0)

    def line(name: str, values: list[float], switched: list[bool], color: str, style: str) -> None:
        counted = [value for step, value in zip(steps, values) if step >= begin] or values
        axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
        axes.plot(steps, moving_mean(values, switched), style, color=color, linewidth=1.8,
                  label=f"{name}: {np.mean(counted):.3f}")

    for number, (name, records) in enumerate(runs.items()):
        steps, color = _steps(records), _COLORS[number % len(_COLORS)]
        line(name, _values(records, "mean_balancedness"), _values(records, "switched"), color, "-")
        if switches[name]:
            at = np.array(switches[name]) + 0.5
            axes.vlines(at, 0, 1, color=color, linewidth=0.8, linestyles="dashed", alpha=0.6)
            axes.plot(at, np.ones(len(at)), "v", color=color, clip_on=False,
                      label=f"{name}: experts moved ({len(at)} time{'s' * (len(at) != 1)})")
        if len(runs) == 1:
            static = _values(records, "static_mean_balancedness")
            line("static placement, same tokens", static, [False] * len(static), "dimgray", ":")
    last = max(_steps(records)[-1] for records in runs.values())
    axes.set_ylim(0, 1)
    axes.set_ylabel("balancedness: mean / max tokens of a rank\n(mean of the layers; 1 is best)")
    axes.set_title(f"how even the ranks' work is: each step, and the mean of {SMOOTHED_STEPS} steps", loc="left",
                   fontsize="medium")
    axes.legend(loc="lower right", ncol=2, title=f"mean of steps {begin}..{last}")


def _comparison(runs: Sequence[Sequence[Record]]) -> str:
    """What the losses of several runs have to do with each other, in the steps that all have."""
    losses = [dict(zip(_steps(records), _values(records, "loss"))) for records in runs]
    shared = sorted(set.intersection(*map(set, losses)))
    if len(runs) == 1 or not shared:
        return "loss of the global batch"
    most = max(abs(each[step] - losses[0][step]) for each in losses for step in shared)
    if most == 0:
        return f"loss of the global batch: equal in every bit, in all {len(shared)} steps"
    return f"loss of the global batch: at most {most:.1e} apart, in {len(shared)} steps"


def _steps(records: Sequence[Record]) -> list[int]:
    return _values(records, "step")


def _values(records: Sequence[Record], field: str) -> list[Any]:
    return [record[field] for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws loss and balancedness of runs from their --log-json files.")
    parser.add_argument("runs", nargs="+", metavar="RUN.jsonl")
    parser.add_argument("--out", default="curves.png", help="PNG file to write")
    arguments = parser.parse_args()
    try:
        draw({Path(path).stem: read_log(path) for path in arguments.runs}, arguments.out)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
