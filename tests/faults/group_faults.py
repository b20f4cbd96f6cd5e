#!/usr/bin/env python3
"""Faults of three daemons with one etcd: does another daemon lead in time, and is the job sound?

  EPLB_BIN=build/release/bin EPLB_DATA=tests/data tests/faults/group_faults.py --faults 200 [--seed S] [--keep DIR]

One fault after the other. After each the clock runs: within --failover-seconds a daemon must lead with which every rank is
registered, and within --commit-seconds the ranks must commit a version that it proposed. At the end the job ends with exit
code 0, no training thread has waited for the session, the versions of all ranks rise, no version stands for two placements,
and the validator (`eplbctl report`) finds nothing. Exit code 0: all of this holds. 77: there is no /usr/bin/etcd.
"""

import argparse
import collections
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

import doors
import daemon_group

harness = daemon_group.harness
SKIPPED = 77


class Failed(Exception):
    """A promise that did not hold, as a sentence."""


class Faults:
    """Each method hurts the cluster, returns what lifts it, and names the daemon that must not lead while it lasts."""

    def __init__(self, cluster, draw):
        self.cluster = cluster
        self.random = draw

    def kill_leader(self, leader):
        leader.kill()
        return leader, leader.start

    def stop_leader(self, leader):
        """SIGTERM, as of a rolling restart."""
        leader.terminate()

        def start_again():
            leader.process.wait(30 * harness.PATIENCE)
            leader.start()
        return leader, start_again

    def freeze_leader(self, leader):
        leader.freeze()
        return leader, leader.thaw

    def cut_leader_from_etcd(self, leader):
        """Connections to etcd are refused."""
        for door in leader.to_etcd:
            door.refuse()
        return leader, lambda: [door.heal() for door in leader.to_etcd]

    def swallow_leaders_calls_of_etcd(self, leader):
        """No byte passes between the leader and etcd, and connections stay."""
        for door in leader.to_etcd:
            door.freeze()
        return leader, lambda: [door.heal() for door in leader.to_etcd]

    def cut_leader_from_everything(self, leader):
        for door in [*leader.to_etcd, leader.to_ranks]:
            door.refuse()
        return leader, lambda: [door.heal() for door in [*leader.to_etcd, leader.to_ranks]]

    def cut_leader_from_ranks(self, leader):
        """Ranks and eplbctl cannot connect to the leader, which reaches etcd."""
        leader.to_ranks.refuse()
        return leader, leader.to_ranks.heal

    def restore_older_etcd(self, leader):
        """Every daemon and every member ends, and etcd begins anew from a copy that is older than what the ranks have seen."""
        self.cluster.restore_etcd()
        return None, lambda: None

    def kill_etcd_leader(self, leader):
        member = self.cluster.etcd_leader() or self.cluster.members[0]
        member.kill()
        return None, member.start

    def freeze_etcd_leader(self, leader):
        member = self.cluster.etcd_leader() or self.cluster.members[0]
        member.freeze()
        return None, member.thaw

    def fill_disk_of_etcd_leader(self, leader):
        member = self.cluster.etcd_leader() or self.cluster.members[0]
        member.fill_disk()

        def start_again():
            member.kill()
            member.start()
        return None, start_again

    def kill_leader_and_etcd_leader(self, leader):
        member = self.cluster.etcd_leader() or self.cluster.members[0]
        member.kill()
        leader.kill()

        def start_both():
            member.start()
            leader.start()
        return leader, start_both

    def kill_standby(self, leader):
        standby = self.random.choice([daemon for daemon in self.cluster.daemons if daemon is not leader])
        standby.kill()
        return None, standby.start

    def shift_clocks(self, leader):
        """Wall clocks of leader and standbys jump by up to two hours, each its own way."""
        for daemon in self.cluster.daemons:
            daemon.shift_clock(self.random.choice([-7200, -3600, -60, 60, 3600, 7200]))
        return None, lambda: [daemon.shift_clock(0) for daemon in self.cluster.daemons]

    def break_connections_of_ranks(self, leader):
        leader.to_ranks.cut()
        return None, lambda: None


NAMES = [name for name in vars(Faults) if not name.startswith("_") and (name != "shift_clocks" or daemon_group.FAKETIME.exists())]
# Both an election of etcd and one of daemons, or one that waits for etcd's.
SLOW = {"kill_leader_and_etcd_leader", "restore_older_etcd"}


class Scenario:
    def __init__(self, directory, given):
        self.given = given
        self.random = random.Random(given.seed)
        self.doors = doors.Doors()
        self.cluster = daemon_group.Cluster(directory, self.doors, given.world)
        self.faults = Faults(self.cluster, self.random)
        self.failovers = collections.defaultdict(list)
        self.commits = []
        self.begin = time.monotonic()

    def say(self, *words):
        print(f"{time.monotonic() - self.begin:8.2f}", *words, flush=True)

    def await_leader(self, gone, seconds, what):
        """The daemon that leads, with all ranks; not `gone`, which may believe that it leads until its lease ends."""
        start = time.monotonic()
        while time.monotonic() < start + seconds * harness.PATIENCE:
            leader = self.cluster.healthy_leader()
            if leader is not None and leader is not gone:
                return leader, time.monotonic() - start
            time.sleep(0.05)
        states = {daemon.name: (daemon.get("/readyz"), daemon.job()) for daemon in self.cluster.daemons}
        raise Failed(f"{what}: no daemon leads with every rank within {seconds * harness.PATIENCE:.0f} s; {states}")

    def await_commit(self, since, what):
        start = time.monotonic()
        while time.monotonic() < start + self.given.commit_seconds * harness.PATIENCE:
            if len(self.cluster.commits()) > since:
                return time.monotonic() - start
            if any(rank.poll() is not None for rank in self.cluster.job.ranks):
                raise Failed(f"{what}: a rank ended: {[path.read_text()[-300:] for path in self.cluster.job.errors]}")
            time.sleep(0.05)
        raise Failed(f"{what}: no commit within {self.given.commit_seconds * harness.PATIENCE:.0f} s")

    def inject(self, name):
        leader, _ = self.await_leader(None, 60, f"before {name}")
        gone, lift = getattr(self.faults, name)(leader)
        hurt = time.monotonic()
        seconds = self.given.failover_seconds * (1.5 if name in SLOW else 1)
        successor, took = self.await_leader(gone, seconds, name)
        commits = len(self.cluster.commits())
        self.failovers[name].append(took)
        self.commits.append(self.await_commit(commits, name))
        time.sleep(max(0.0, hurt + self.random.uniform(0, 6) - time.monotonic()))
        lift()
        self.say(f"{name} of {leader.name}: {successor.name} leads after {took:.1f} s, a commit after {self.commits[-1]:.1f} s more")
        time.sleep(self.random.uniform(0, 2))

    def run(self):
        self.cluster.start()
        self.await_commit(0, "the start")
        self.cluster.copy_etcd()
        plan = list(self.given.begin_with)
        while len(plan) < self.given.faults:
            plan.append(self.random.choice(NAMES))
        for name in plan[:self.given.faults]:
            self.inject(name)
        leader, _ = self.await_leader(None, 60, "the end")
        self.await_commit(len(self.cluster.commits()), "the end")
        self.check_view(leader)
        codes = self.cluster.finish()
        if codes != [0] * self.given.world:
            raise Failed(f"ranks ended with {codes}: {[path.read_text()[-300:] for path in self.cluster.job.errors]}")
        self.check_history()

    def check_view(self, leader):
        """eplbctl finds the leader among all endpoints, and by a standby alone."""
        standby = next(daemon for daemon in self.cluster.daemons if daemon is not leader)
        for endpoints in (self.cluster.endpoints, standby.to_ranks.endpoint):
            done = daemon_group.subprocess.run([harness.BIN / "eplbctl", "status", "--endpoint", endpoints, "-o", "json"], capture_output=True,
                                           text=True, timeout=60 * harness.PATIENCE)
            if done.returncode != 0 or json.loads(done.stdout)["leader"] != leader.to_ranks.endpoint:
                raise Failed(f"eplbctl status --endpoint {endpoints}: {done.returncode} {done.stdout[:300]} {done.stderr}")
        done = self.cluster.ctl("doctor", "--all")
        if f"{leader.to_ranks.endpoint} leads with term" not in done.stdout or "stands by for" not in done.stdout:
            raise Failed(f"doctor does not say who leads: {done.stdout}{done.stderr}")

    def check_history(self):
        waits = self.cluster.job.report()["session_waits_over_1ms"]
        if waits != 0:
            raise Failed(f"training threads waited {waits} times for the session")
        commits = [[(line["version"], line["digest"]) for line in self.cluster.job.commits(rank)] for rank in range(self.given.world)]
        if commits.count(commits[0]) != self.given.world:
            raise Failed("ranks committed different versions")
        versions = [version for version, _ in commits[0]]
        if versions != sorted(set(versions)):
            raise Failed("versions do not rise")
        done = self.cluster.validator()
        if done.returncode != 0:
            raise Failed(f"eplbctl report: {done.stdout[-2000:]}{done.stderr}")
        reused = [line for daemon in self.cluster.daemons for line in daemon.events("version_reused")]
        if reused:
            raise Failed(f"versions were used twice: {reused[:3]}")
        behind = [line for daemon in self.cluster.daemons for line in daemon.events("store_behind")]
        if bool(behind) != bool(self.failovers.get("restore_older_etcd")):
            raise Failed(f"{len(behind)} events store_behind, {len(self.failovers.get('restore_older_etcd', []))} restored stores")
        self.say(f"{len(versions)} commits, versions {versions[0]}..{versions[-1]}")

    def summary(self):
        for name, seconds in sorted(self.failovers.items()):
            self.say(f"{name}: {len(seconds)} times, a healthy leader after {statistics.median(seconds):.1f} s in the median, "
                     f"{max(seconds):.1f} s at most")
        terms = [line["term"] for daemon in self.cluster.daemons for line in daemon.events("leading")]
        lost = [line["reason"] for daemon in self.cluster.daemons for line in daemon.events("lead_lost")]
        self.say(f"{len(terms)} terms, all different: {len(set(terms)) == len(terms)}; {len(lost)} leads lost")
        # A restored etcd counts its revisions anew; the terms of the job are above what ranks have seen all the same.
        if len(set(terms)) != len(terms) and not self.failovers.get("restore_older_etcd"):
            raise Failed(f"a term was led twice: {sorted(terms)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--begin-with", type=lambda text: text.split(","), default=[])
    parser.add_argument("--world", type=int, default=3)
    parser.add_argument("--failover-seconds", type=float, default=10)
    parser.add_argument("--commit-seconds", type=float, default=20)
    parser.add_argument("--keep", help="a directory that keeps the logs")
    given = parser.parse_args()
    if unknown := set(given.begin_with) - set(NAMES):
        parser.error(f"unknown faults {sorted(unknown)}, expected some of {NAMES}")
    if not daemon_group.ETCD.exists():
        print("skipped: /usr/bin/etcd is missing, install the package etcd-server")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="eplb-group-") as temporary:
        directory = pathlib.Path(given.keep or temporary)
        directory.mkdir(exist_ok=True)
        scenario = Scenario(directory, given)
        print(f"{given.faults} faults, seed {given.seed}, logs in {directory}", flush=True)
        if not daemon_group.FAKETIME.exists():
            print("no clock is shifted: install the package faketime", flush=True)
        try:
            scenario.run()
            scenario.summary()
        except Failed as failure:
            scenario.say(f"FAILED (seed {given.seed}): {failure}")
            return 1
        finally:
            scenario.cluster.end()
            scenario.doors.close()
    scenario.say("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
