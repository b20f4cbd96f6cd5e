#!/usr/bin/env python3
"""Records what a release puts on the wire and into its store, for the tests of later ones: tests/integration/record_release.py
VERSION

Writes tests/data/wire/VERSION: descriptors.binpb (the protos), up.bin and down.bin (messages of sessions that switch
placements), and connections.json (the bytes of two ranks' connections to a daemon that observes). Writes
tests/data/store/VERSION: the database of the daemon that switched, and answers.json, what eplbctl said of it. EPLB_BIN is the
folder of the release's programs.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import recorded_connection

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["EPLB_BIN"])
RANKS = 2
DEADLINE = 120
# Answers that a later daemon must give from the same store.
QUESTIONS = (["get", "jobs"], ["get", "plans"], ["get", "events"], ["get", "placement", "--version", "1"])


def record(mode, steps, directory, store="memory"):
    """A job of two ranks and a daemon with policy.mode `mode`; returns the connections."""
    daemon = subprocess.Popen([BIN / "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", store, "--set",
                               f"policy.mode={mode}", "--set", "policy.name=incremental", "--set", "policy.every_steps=10", "--set",
                               "report.every_steps=10", "--set", "listen.unix=none"], stdout=subprocess.PIPE, text=True, cwd=directory)
    proxy = recorded_connection.Proxy(json.loads(daemon.stdout.readline())["grpc"])
    try:
        ranks = [subprocess.Popen([BIN / "eplb-trainer", "--job", "recorded", "--launch-id", "recorded", "--rank", str(rank), "--world",
                                   str(RANKS), "--endpoint", proxy.address, "--trace", ROOT / "tests/data/moe64_aux.jsonl", "--steps",
                                   str(steps), "--step-ms", "10", "--slots", "64", "--report-every", "10"], cwd=directory)
                 for rank in range(RANKS)]
        if codes := [rank.wait(DEADLINE) for rank in ranks if rank.wait(DEADLINE) != 0]:
            raise SystemExit(f"ranks ended with {codes}")
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE)
        daemon.stdout.close()
        proxy.close()
    return proxy.connections


def main(version):
    target = ROOT / "tests/data/wire" / version
    target.mkdir(parents=True, exist_ok=True)
    protos = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto/eplb/v1").glob("*.proto"))
    subprocess.run(["protoc", "-I", "proto", "--include_imports", f"--descriptor_set_out={target / 'descriptors.binpb'}", *protos],
                   cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as directory:
        switching = record("apply", 60, directory)
        for name, by_rank in (("up.bin", True), ("down.bin", False)):
            (target / name).write_bytes(b"".join(recorded_connection.messages(one, stream, by_rank) for one in switching
                                                 for stream in recorded_connection.calls_of(one, b"/eplb.v1.Balancer/Session")))
        recorded_connection.save(record("observe", 40, directory), target / "connections.json")


def record_store(version):
    target = ROOT / "tests/data/store" / version
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        database = pathlib.Path(directory) / "eplbd.db"
        record("apply", 60, directory, store=database)
        shutil.copy(database, target / "eplbd.db")  # a daemon that ended has put its write-ahead log into it
        daemon = subprocess.Popen([BIN / "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", database, "--set",
                                   "listen.unix=none"], stdout=subprocess.PIPE, text=True, cwd=directory)
        address = json.loads(daemon.stdout.readline())["grpc"]
        answers = [json.loads(subprocess.run([BIN / "eplbctl", *question, "--endpoint", address, "-o", "json"], check=True,
                                             capture_output=True).stdout) for question in QUESTIONS]
        daemon.terminate()
        daemon.wait(DEADLINE)
        daemon.stdout.close()
    (target / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
    record_store(sys.argv[1])
