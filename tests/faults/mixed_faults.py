#!/usr/bin/env python3
"""Mixed faults against two daemons and two runs of one job: is the job sound, and does it heal?

  EPLB_BIN=build/release/bin EPLB_DATA=tests/data tests/faults/mixed_faults.py --faults 300 [--seed S] [--keep DIR]

Faults come in bursts. Inside a burst they overlap: each is lifted after a moment of its own. Behind each burst the
clock runs: the newest run must own the job and commit again within --heal-seconds, counted from the end of the last
fault (for a new run: from the first line in the log of its last rank). At the end the newest run ends with exit
code 0, and the validator (`eplbctl report`) finds nothing in the logs of any run. Exit code 0: all of this holds.
"""

import argparse
import collections
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time

import cluster
import doors

harness = cluster.harness


class Failed(Exception):
    """A promise that did not hold, as a sentence."""


class Scenario:
    """Running processes, current faults, and the times at which they end."""

    def __init__(self, directory, seed, world, num_daemons, given):
        """given: names of faults to begin with; the others are drawn."""
        self.random = random.Random(seed)
        self.given = [getattr(Scenario, name) for name in given]
        self.directory = pathlib.Path(directory)
        self.world = world
        self.doors = doors.Doors()
        self.daemons = [cluster.FaultyDaemon(directory, name) for name in ("first", "second")[:num_daemons]]
        self.runs = []
        self.older_alive = None   # the run before the newest, while its processes live
        self.older_returned = False  # it hung and trains again
        self.told_to_wait = 0     # runs that waited for one that came back from hanging
        self.older_commits = {}   # run number: its commits when the next one had healed
        self.trusted = False      # the newest run has committed since the last fault against memory
        self.paused = None        # number of the run in which an operator paused the job
        self.pauses_apart = 0     # later runs that began with a daemon that had not heard of the pause
        self.may_be_paused = False  # a store was moved aside, or one daemon resumed: the job may come back paused
        self.lifts = []           # (when, what)
        self.last_lift = 0.0
        self.counts = collections.Counter()
        self.heals = []
        self.counts_apart = 0     # commits of older runs under a daemon that does not know the newest one

    @property
    def newest(self):
        return self.runs[-1]

    def say(self, *words):
        print(f"{time.monotonic() - self.begin:8.2f}", *words, flush=True)

    def start(self):
        self.begin = time.monotonic()
        self.daemons[0].start()
        self.start_run()

    def start_run(self, take_over=False):
        self.runs.append(cluster.Run(len(self.runs) + 1, self.directory, self.doors, self.daemons, self.world,
                                            take_over))
        self.trusted = False

    def after(self, seconds, what):
        self.lifts.append((time.monotonic() + seconds, what))

    def lift_due(self, everything=False):
        """Lifts what is due; with `everything` waits for all of it."""
        while self.lifts:
            self.lifts.sort(key=lambda lift: lift[0])
            left = self.lifts[0][0] - time.monotonic()
            if left > 0 and not everything:
                return
            time.sleep(max(0.0, left))
            self.lifts.pop(0)[1]()
            self.last_lift = time.monotonic()

    def between(self, least, most):
        return self.random.uniform(least, most)

    def some_daemon(self):
        return self.random.choice([daemon for daemon in self.daemons if daemon.lives()] or self.daemons)

    def serving(self):
        """The daemon that most ranks of the newest run are connected to, or None, and the job as it shows it."""
        best = (None, None)
        for daemon in self.daemons:
            job = daemon.job_status()
            if job is None or self.newest.log.read().run_id != job["run_id"]:
                continue
            if best[0] is None or job["connected_ranks"] > best[1]["connected_ranks"]:
                best = (daemon, job)
        return best

    # ---- daemons ----

    def restart(self, daemon, least=0.0, most=1.5):
        daemon.kill()
        self.after(self.between(least, most), daemon.start)

    def kill_daemon(self):
        """Also in the place of a fault that cannot be had at the moment. Returns its name, which is what is counted."""
        daemon = self.some_daemon()
        self.restart(daemon)
        if self.random.random() < 0.5:
            daemon.keep_copy()
        return "kill_daemon"

    def kill_daemon_twice(self):
        daemon = self.some_daemon()
        daemon.kill()
        daemon.start()
        time.sleep(self.between(0, 0.5))
        self.restart(daemon)

    def stop_daemon(self):
        daemon = self.some_daemon()
        daemon.freeze()
        self.after(self.between(0.3, 5), daemon.thaw)

    def fail_over(self):
        """The daemon is away long enough for the ranks to go to the other one, then returns."""
        if len(self.daemons) < 2:
            return self.kill_daemon()
        first, second = self.random.sample(self.daemons, 2)
        second.thaw()
        second.start()
        self.restart(first, 2, 6)

    def split_brain(self):
        """A second daemon on an empty, an old or its own store, and some ranks that cannot reach the first."""
        if len(self.daemons) < 2 or not self.trusted:
            return self.kill_daemon()
        serving = self.serving()[0] or self.daemons[0]
        other = self.daemons[1 - self.daemons.index(serving)]
        other.kill()
        self.random.choice((other.lose_store, other.restore_copy, lambda: None))()
        other.start()
        ranks = self.random.sample(range(self.world), self.random.randrange(1, self.world))
        for rank in ranks:
            self.newest.doors[rank][self.daemons.index(serving)].refuse()
        self.after(self.between(1, 4), lambda run=self.newest: self.heal_doors(run))

    # ---- stores ----

    def lose_store(self):
        return self.forgetful(lambda daemon: daemon.lose_store())

    def restore_copy(self):
        return self.forgetful(lambda daemon: daemon.restore_copy())

    def forgetful(self, what):
        """The daemon forgets. The ranks remember, once they have heard from a daemon that knew."""
        if not self.trusted:
            return self.kill_daemon()
        daemon = self.serving()[0] or self.some_daemon()
        daemon.kill()
        what(daemon)
        self.after(self.between(0, 1), daemon.start)

    def damage_store(self):
        """The job comes back paused, so that an operator looks at it: here he resumes it."""
        if not self.trusted:
            return self.kill_daemon()
        daemon = self.serving()[0] or self.daemons[0]
        daemon.kill()
        daemon.damage_store()
        daemon.start()
        self.may_be_paused = True

    def delete_store_of_running_daemon(self):
        if not self.trusted:
            return self.kill_daemon()
        daemon = self.serving()[0] or self.some_daemon()
        daemon.lose_store()
        self.after(self.between(0.2, 2), lambda: (daemon.kill(), daemon.start()))

    def pause(self):
        """An operator's pause outlives the daemon, with its store and without."""
        daemon, job = self.serving()
        if daemon is None or not self.trusted or self.paused is not None or job["connected_ranks"] < self.world:
            return self.kill_daemon()
        if daemon.ctl("pause", "--job", cluster.JOB, "--comment", "hands off").returncode != 0:
            return self.kill_daemon()
        self.paused = self.newest.number
        daemon.knows_pause = True
        time.sleep(1)  # the ranks hear of it
        self.random.choice((lambda: self.restart(daemon), self.lose_store))()

    # ---- connections ----

    def some_doors(self):
        """Connections of one, some or all ranks of a run that lives, to one daemon or to all."""
        run = self.random.choice([run for run in (self.older_alive, self.newest) if run is not None])
        ranks = self.random.sample(range(self.world), self.random.choice((1, self.world // 2, self.world)))
        daemons = self.random.choice([[index] for index in range(len(self.daemons))] + [range(len(self.daemons))])
        return run, [run.doors[rank][daemon] for rank in ranks for daemon in daemons]

    def heal_doors(self, run):
        for own in run.doors:
            for door in own:
                door.heal()

    def hurt_doors(self, what, least, most):
        run, hurt = self.some_doors()
        for door in hurt:
            what(door)
        self.after(self.between(least, most), lambda: self.heal_doors(run))

    def cut(self):
        for door in self.some_doors()[1]:
            door.cut()

    def refuse(self):
        self.hurt_doors(lambda door: door.refuse(), 0.5, 4)

    def black_hole(self):
        self.hurt_doors(lambda door: door.freeze(), 0.5, 6)

    def slow(self):
        seconds = self.between(0.05, 0.4)
        self.hurt_doors(lambda door: door.slow(seconds), 0.5, 4)

    # ---- ranks and runs ----

    def stop_rank(self):
        run = self.newest
        run.stop_ranks(self.random.sample(range(self.world), self.random.choice((1, 2))))
        self.after(self.between(0.3, 5), run.continue_ranks)

    def end_older(self):
        if self.older_alive is not None:
            self.older_alive.end()
            self.older_alive = None
        self.older_returned = False

    def continue_older(self, older):
        older.continue_ranks()
        self.older_returned |= older is self.older_alive

    def end_older_as_told(self):
        """The older run hung and came back before a daemon that restarted saw it stand still: it keeps the job, and
        the newest one is told to wait for its end. The operator does what that line says. Returns when; 0: not now."""
        if self.older_alive is None or not self.older_returned:
            return 0.0
        if any(job is not None and job["take_over_refused"] for job in (daemon.job_status() for daemon in self.daemons)):
            self.end_older()
            self.told_to_wait += 1
            return time.monotonic()
        return 0.0

    def relaunch(self, prepare, take_over=False):
        """A new run of the same name. `prepare` says what becomes of the one before."""
        if not self.trusted:  # a run that has not owned the job yet: one at a time
            return self.kill_daemon()
        self.end_older()
        before = self.newest
        prepare(before)
        self.start_run(take_over)
        self.older_alive = before if before.doors else None

    def relaunch_after_kill(self):
        return self.relaunch(lambda before: before.end())

    def relaunch_beside_hung(self):
        """The old run hangs in a vote: some of its ranks are stopped, the sessions of the others live on."""
        done = self.relaunch(lambda before: before.stop_ranks(
            self.random.sample(range(self.world), self.random.randrange(1, self.world + 1))))
        if done is None and self.random.random() < 0.5:
            older = self.older_alive
            self.after(self.between(4, 9), lambda: self.continue_older(older))
        return done

    def relaunch_and_take_over(self):
        """The old run trains on and is replaced because the new one says so."""
        return self.relaunch(lambda before: None, take_over=True)

    def relaunch_and_wait(self):
        """The new run waits while the old one trains, and owns the job once that is killed."""
        done = self.relaunch(lambda before: None)
        if done is None:
            older = self.older_alive
            self.after(self.between(2, 6), lambda: self.end_older() if older is self.older_alive else None)
        return done

    def kill_rank(self):
        def kill_one(before):
            before.job.ranks[self.random.randrange(self.world)].kill()
        return self.relaunch(kill_one)

    FAULTS = {  # weight
        kill_daemon: 10, kill_daemon_twice: 5, stop_daemon: 6, fail_over: 6, split_brain: 8, lose_store: 5, restore_copy: 5,
        damage_store: 3, delete_store_of_running_daemon: 3, pause: 4, cut: 12, refuse: 8, black_hole: 8, slow: 5,
        stop_rank: 8, relaunch_after_kill: 3, relaunch_beside_hung: 5, relaunch_and_take_over: 3, relaunch_and_wait: 3,
        kill_rank: 3}
    FORGETFUL = (split_brain, lose_store, restore_copy, damage_store, delete_store_of_running_daemon)

    def next_fault(self):
        if self.given:
            return self.given.pop(0)
        return self.random.choices(list(self.FAULTS), list(self.FAULTS.values()))[0]

    def hurt(self):
        fault = self.next_fault()
        done = fault(self) or fault.__name__
        self.say(done)
        self.counts[done] += 1
        self.last_lift = time.monotonic()
        if fault in self.FORGETFUL and done == fault.__name__:
            self.trusted = False

    # ---- what must hold ----

    def burst(self, num_faults):
        for _ in range(num_faults):
            self.hurt()
            end = time.monotonic() + self.between(0.05, 1.5)
            while time.monotonic() < end:
                self.lift_due()
                time.sleep(0.05)
        self.lift_due(everything=True)
        for daemon in self.daemons[:1]:
            daemon.start()  # one at least runs; whether the second one does is up to the faults

    def await_start(self):
        harness.wait_for(self.newest.has_started, 60, f"the ranks of run {self.newest.number} start: "
                         + "".join(path.read_text()[-300:] for path in self.newest.job.errors))

    def heal(self, seconds):
        """The newest run owns the job and commits; how long that took."""
        self.await_start()
        begin = max(self.last_lift, self.newest.started_at)
        if self.paused is not None or self.may_be_paused:
            begin = max(begin, self.resume(begin, seconds * harness.PATIENCE))
        commits = len(self.newest.log.read().commits)
        while len(self.newest.log.read().commits) < commits + 2:  # the first may have been agreed on before
            begin = max(begin, self.end_older_as_told())
            if time.monotonic() > begin + seconds * harness.PATIENCE:
                raise Failed(f"run {self.newest.number} has not committed {seconds} s after the last fault: "
                             + self.describe())
            if not self.newest.lives():
                raise Failed(f"run {self.newest.number} ended: {self.describe()}")
            time.sleep(0.05)
        self.heals.append(time.monotonic() - begin)
        self.check_owner()
        self.trusted = True

    def resume(self, begin, seconds):
        """The operator looks at the job and resumes it. Returns when that was done; 0 when it was not paused."""
        while time.monotonic() < begin + seconds:
            begin = max(begin, self.end_older_as_told())
            for daemon in self.daemons:
                job = daemon.job_status()
                if job is None or job["run_id"] != self.newest.log.read().run_id or job["state"] != "IDLE":
                    continue
                if not job["paused"]:
                    self.check_unpaused(daemon, job)
                    return 0.0
                if daemon.ctl("resume", "--job", cluster.JOB).returncode == 0:
                    if self.paused is not None:
                        self.may_be_paused = True  # the other daemon may know of the pause and not of its end
                        for one in self.daemons:
                            one.knows_pause = False
                    self.paused = None
                    return time.monotonic()
            time.sleep(0.1)
        raise Failed(f"the paused job is nowhere IDLE with run {self.newest.number}: {self.describe()}")

    def check_unpaused(self, daemon, job):
        """A pause is remembered by its daemon and by the ranks of that time. A later run that begins with another
        daemon, or with one that lost its store, brings no process that has heard of it."""
        if self.paused is None:
            return
        if self.paused == self.newest.number or daemon.knows_pause:
            raise Failed(f"the operator's pause was forgotten: {job}")
        self.paused = None
        self.pauses_apart += 1

    def check_owner(self):
        daemon, job = self.serving()
        if daemon is None:
            raise Failed(f"no daemon says that run {self.newest.number} owns the job: {self.describe()}")
        for run in self.runs[:-1]:
            commits = len(run.log.read().commits)
            before = self.older_commits.setdefault(run.number, commits)
            if commits != before and len(self.daemons) == 1:
                raise Failed(f"run {run.number} committed after run {self.newest.number} owned the job")
            # A second daemon on an old store has not heard of the newest run, and leads the one that it knows.
            self.counts_apart += commits - before
            self.older_commits[run.number] = commits

    def describe(self):
        shown = [f"{daemon.name}: {daemon.job_status() if daemon.lives() else 'down'}" for daemon in self.daemons]
        errors = "".join(path.read_text()[-300:] for path in self.newest.job.errors[:2])
        return f"run {self.newest.log.read().run_id}; " + "; ".join(shown) + "; " + errors

    def finish(self):
        """Exit codes and the validator."""
        self.end_older()
        codes = self.newest.finish()
        if codes != [0] * self.world:
            raise Failed(f"the newest run ended with exit codes {codes}: {self.describe()}")
        for run in self.runs:
            problems = run.problems(ended_well=run is self.newest)
            if problems:
                raise Failed(f"the validator finds in run {run.number}: {problems}")

    def close(self):
        for run in self.runs:
            if run.doors:
                run.end()
        for daemon in self.daemons:
            daemon.kill()
        self.doors.close()

    def summary(self):
        commits = sum(len(run.log.read().commits) for run in self.runs)
        steps = sum(run.log.last_step + 1 for run in self.runs)
        print(f"faults     {sum(self.counts.values())}: "
              + ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items())))
        print(f"runs       {len(self.runs)}, {steps * self.world} rank-steps, {commits * self.world} rank-commits")
        if self.counts_apart > 0:
            print(f"apart      {self.counts_apart} commits of older runs under a second daemon on an old store")
        if self.pauses_apart > 0:
            print(f"unpaused   {self.pauses_apart} runs that began with a daemon that had not heard of the pause")
        if self.told_to_wait > 0:
            print(f"ended      {self.told_to_wait} hung runs by hand, which trained again before a daemon saw them hang")
        if self.heals:
            print(f"healed     {len(self.heals)} times, median {statistics.median(self.heals):.1f} s, longest "
                  f"{max(self.heals):.1f} s after the last fault")


def run(scenario, faults, burst, heal_seconds):
    scenario.start()
    scenario.last_lift = time.monotonic()
    scenario.heal(60)  # the first commit
    scenario.heals.clear()
    while faults > 0:
        scenario.burst(min(burst, faults))
        faults -= burst
        scenario.heal(heal_seconds)
        scenario.say(f"healed in {scenario.heals[-1]:.1f} s")
    scenario.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--burst", type=int, default=5, help="faults between two looks at the job")
    parser.add_argument("--world", type=int, default=8, help="ranks of a run")
    parser.add_argument("--daemons", type=int, choices=(1, 2), default=2)
    parser.add_argument("--heal-seconds", type=float, default=10)
    parser.add_argument("--begin-with", default="", metavar="A,B,..",
                        help="these faults first: " + ", ".join(fault.__name__ for fault in Scenario.FAULTS))
    parser.add_argument("--keep", type=pathlib.Path, help="directory for logs and stores; default: a temporary one")
    arguments = parser.parse_args()
    given = [name for name in arguments.begin_with.split(",") if name]
    known = [fault.__name__ for fault in Scenario.FAULTS]
    for name in given:
        if name not in known:
            parser.error(f"--begin-with: {name} is no fault; expected some of {', '.join(known)}")
    print(f"{arguments.faults} faults, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="eplb-mixed-") as temporary:
        directory = arguments.keep or pathlib.Path(temporary)
        os.makedirs(directory, exist_ok=True)
        scenario = Scenario(directory, arguments.seed, arguments.world, arguments.daemons, given)
        failed = ""
        try:
            run(scenario, arguments.faults, arguments.burst, arguments.heal_seconds)
        except (Failed, AssertionError) as error:
            failed = str(error)
        finally:
            scenario.close()
        scenario.summary()
    if failed:
        print(f"FAILED     {failed}\n           replay the same choices with --seed {arguments.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
