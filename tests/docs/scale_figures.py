#!/usr/bin/env python3
"""The figures of docs/scale.md from their unit costs: a JSON object of texts that the page must have. Change a unit cost here,
then the page.
"""

import json

RANKS, PER_NODE = 100_000, 8
# Unit costs, as the page says where each is from.
REPORT_BYTES = 61 * 256 * 4
PLACEMENT_BYTES = 60e3
SESSION_BYTES = 47.5e3
REPORT_CPU_SECONDS = 0.55e-3
START_BYTES = 6e3
OPENED_PER_SECOND = 2000 / 5.5
HOP_SECONDS = 50e-6
FAN_OUT = 8
LINK_BYTES_PER_SECOND = 25e9 / 8
WINDOW_SECONDS = 50 * 10


def size(count):
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def height(ranks):
    levels, all_ranks = 0, 1
    while all_ranks < ranks:
        levels += 1
        all_ranks += FAN_OUT ** levels
    return levels


def main():
    nodes = RANKS // PER_NODE
    figures = {}
    for scheme, reports, streams in (("rank", RANKS, RANKS), ("root", 1, RANKS), ("node", nodes, nodes)):
        figures[scheme] = (f"| `{scheme}` | {streams:,} | {size(streams * SESSION_BYTES)} | {size(reports * REPORT_BYTES)} | "
                           f"{size(reports * REPORT_BYTES / WINDOW_SECONDS)}/s | {reports * REPORT_CPU_SECONDS:.3g} s | "
                           f"{size(streams * PLACEMENT_BYTES)} | {streams * PLACEMENT_BYTES / LINK_BYTES_PER_SECOND:.2g} s |")
    figures["vote"] = f"{height(RANKS)} levels, {2 * height(RANKS)} hops, {2 * height(RANKS) * HOP_SECONDS * 1e3:.1f} ms"
    figures["start of a rank"] = f"{size(RANKS * START_BYTES)} into each rank"
    figures["start in all"] = f"{size(RANKS * RANKS * START_BYTES)} out of the daemon"
    figures["start within its deadline"] = f"{(60 * LINK_BYTES_PER_SECOND / START_BYTES) ** 0.5:,.0f} ranks"
    figures["opening"] = f"{RANKS / OPENED_PER_SECOND:.0f} s"
    figures["reconnecting"] = f"{RANKS / 30:,.0f} connections a second"
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
