"""Rules of every trace of eplbctl for ui.perfetto.dev and chrome://tracing."""

import collections


def problems_of(trace):
    """Sentences on what is wrong with a trace's JSON; [] when nothing is."""
    events = trace["traceEvents"]
    found = []
    if trace.get("displayTimeUnit") not in ("ms", "ns"):
        found.append(f"displayTimeUnit is {trace.get('displayTimeUnit')!r}")
    for event in events:
        if event.get("ph") not in ("M", "X", "i"):
            found.append(f"ph is {event.get('ph')!r} in {event}")
        numbers = ["pid", "tid"] + {"X": ["ts", "dur"], "i": ["ts"]}.get(event.get("ph"), [])
        if not all(isinstance(event.get(key), int) and event[key] >= 0 for key in numbers):
            found.append(f"not all of {numbers} are whole numbers >= 0 in {event}")
    if found:
        return found
    names = [event for event in events if event["ph"] == "M"]
    timed = [event for event in events if event["ph"] != "M"]
    if events != names + timed:
        found.append("a name stands behind a span")
    if [event["ts"] for event in timed] != sorted(event["ts"] for event in timed):
        found.append("ts is not sorted")
    processes = collections.Counter(event["pid"] for event in names if event["name"] == "process_name")
    tracks = collections.Counter((event["pid"], event["tid"]) for event in names if event["name"] == "thread_name")
    for event in timed:
        if processes[event["pid"]] != 1:
            found.append(f"process {event['pid']} has {processes[event['pid']]} names")
        if event["ph"] == "X" and event["name"].startswith("round "):
            continue  # tracks beyond the first have the name of their number
        if tracks[event["pid"], event["tid"]] != 1:
            found.append(f"track {event['tid']} of process {event['pid']} has {tracks[event['pid'], event['tid']]} names")
    if len({tid for _, tid in tracks}) != len(tracks):
        found.append("two processes have a track of one number")
    return found + crossing(timed)


def crossing(events):
    """Spans of a track that neither lie in each other nor beside each other."""
    found, open_spans = [], collections.defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        stack = open_spans[event["pid"], event["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"]:
            stack.pop()
        if stack and event["ts"] + event["dur"] > stack[-1]["ts"] + stack[-1]["dur"]:
            found.append(f"{event} crosses the end of {stack[-1]}")
        stack.append(event)
    return found


def spans_of(trace, name=""):
    """The spans whose name begins with `name`, by time."""
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"].startswith(name)]


def holds(outer, inner, slack=0):
    """True if `inner` is in `outer`, up to `slack` microseconds at each end."""
    return (outer["ts"] - slack <= inner["ts"] and
            inner["ts"] + inner.get("dur", 0) <= outer["ts"] + outer["dur"] + slack)
