"""python -m eplb.convert, eplb-convert: what engines and trainers record becomes one load file, by `eplbctl join`.

    python -m eplb.convert recorder_*.pt load.jsonl --first-layer 3               # one dump after the other
    python -m eplb.convert routed_experts.pt load.json --experts 256              # choices [tokens, layers, top-k]

`eplbctl help join` describes the flags and files.
"""

from eplb._programs import eplbctl


def main() -> None:
    eplbctl("join")


if __name__ == "__main__":
    main()
