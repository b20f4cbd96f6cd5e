"""`eplbctl doctor` exits 8 and names the cause, case by case, wherever balancing has stopped or is in danger.

Each case provokes one fault at a daemon of its own and asks doctor, status and explain. All cases run at once.

  doctor_cases_test.py DoctorCasesTest --only hung,twin : these cases alone, by their names
"""

import concurrent.futures
import contextlib
import json
import pathlib
import re
import sys
import tempfile
import time
import unittest

import job as harness
import raw_rank

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))

import doors  # noqa: E402

ONLY = []
SETTLED = 7  # seconds; a stall is told after 5
# A decision each window; deadlines so short that a stall is told within seconds.
DEADLINES = """[limits]
prepare_deadline = "1s"
voting_deadline = "1s"
cancel_deadline = "1s"
session_grace = "{grace}"
"""


class Case:
    """The daemons and jobs of one case, and what eplbctl says about them."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir()
        self.stack = contextlib.ExitStack()
        self.daemons = []

    def daemon(self, grace="2s", config=""):
        name = f"eplbd-{len(self.daemons)}"
        daemon = harness.Daemon(self.directory, 10, name, f"[report]\nevery_steps = 10\n{DEADLINES.format(grace=grace)}{config}")
        daemon.start()
        self.stack.callback(daemon.kill)
        self.daemons.append(daemon)
        return daemon

    def job(self, daemon, name, run_id="run-1", **options):
        job = raw_rank.RawJob(daemon.grpc_port, name, run_id, **options)
        self.stack.callback(job.close)
        return job

    def trained(self, name, run_id="run-1", grace="2s", **options):
        """A daemon, and a job that trains there and is well."""
        daemon = self.daemon(grace)
        job = self.job(daemon, name, run_id, **options).connect().train()
        self.expect_well(daemon, name)
        return daemon, job

    def ctl(self, daemon, *words):
        return harness.eplbctl(*words, "--endpoint", daemon.endpoint, "--timeout", "20s")

    def doctor(self, daemon, job):
        """Exit code, and the checks that failed as "check: detail"."""
        done = self.ctl(daemon, "doctor", *(("--job", job) if job else ()), "-o", "json")
        if done.returncode not in (0, 8):
            return done.returncode, [done.stderr]
        checks = json.loads(done.stdout)["checks"]
        return done.returncode, [f"{one['check']}: {one['detail']}" for one in checks if one["result"] == "failed"]

    def wait_for(self, what, seconds, condition):
        """Polls once a second: all cases share the processors. condition: returns None once it holds, or what is there instead."""
        deadline = time.monotonic() + seconds * harness.PATIENCE
        while (instead := condition()) is not None:
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}; instead: {instead}")
            time.sleep(1)

    def expect_well(self, daemon, job, seconds=20):
        def look():
            code, failed = self.doctor(daemon, job)
            return None if code == 0 else (code, failed)

        self.wait_for("doctor exits 0", seconds, look)

    def expect_sick(self, daemon, job, check, cause, seconds=20, views=("status", "explain")):
        """doctor exits 8, and a failed check that begins with `check` goes on with `cause`, which the other views say, too."""
        def look():
            code, failed = self.doctor(daemon, job)
            return None if code == 8 and any(re.match(check + cause, one) for one in failed) else (code, failed)

        self.wait_for(f"doctor exits 8 for: {check}{cause}", seconds, look)
        self.expect_said(daemon, "doctor", job, check + cause)
        for view in views:
            self.expect_said(daemon, view, job, cause)

    def wait_until_connected(self, daemon, job, count):
        """Until so many ranks of the job are connected; returns the job as `get jobs` shows it."""
        def look():
            found = [one for one in json.loads(self.ctl(daemon, "get", "jobs", "-o", "json").stdout)["jobs"] if one["job"] == job]
            shown.extend(found)
            return None if found and found[0]["connected_ranks"] == count else found

        shown = []
        self.wait_for(f"{count} ranks are connected", 20, look)
        return shown[-1]

    def expect_said(self, daemon, view, job, pattern):
        """The reason, in a view for people, within seconds: what doctor says at once may settle in the other views."""
        def look():
            said = " ".join(self.ctl(daemon, view, *(("--job", job) if job else ())).stdout.split())
            return None if re.search(pattern, said) else said

        self.wait_for(f"{view} says: {pattern}", 10, look)


STALLED = r"balancing: stalled \({}\): "
NO_WINDOW = r"no load window is complete since step \d+, \d+ windows ago: "


def silent_rank(case):
    """A rank whose stream is open reports no more: nothing is decided."""
    daemon, job = case.trained("silent", world=4)
    job.silent = {1}
    case.expect_sick(daemon, "silent", STALLED.format("windows"), NO_WINDOW + r"rank 1 is \d+ steps behind with its reports")
    job.silent = set()
    case.expect_well(daemon, "silent")


def rank_far_ahead(case):
    """Reports of steps far ahead beside a rank's own hurt no rank; a rank that sends nothing else is the one that is named."""
    daemon, job = case.trained("ahead", world=4)
    for far in range(1 << 20, (1 << 20) + 40, 10):
        job.ranks[1].report(far, far + 9, job.counts)
    time.sleep(SETTLED)
    case.expect_well(daemon, "ahead", 1)
    job.ahead = {1}
    case.expect_sick(daemon, "ahead", STALLED.format("windows"), NO_WINDOW + r"rank 1 is \d+ steps behind with its reports")
    job.ahead = set()
    case.expect_well(daemon, "ahead")


def lost_rank(case):
    """A rank's process is away for longer than the grace, and the others train on."""
    daemon, job = case.trained("lost", world=4, grace="1s")
    job.drop([2])
    case.expect_sick(daemon, "lost", STALLED.format("lost"),
                     r"the run is lost and 3 of 4 ranks train on here, at step \d+: rank 2 was lost")
    job.connect([2], keep=True)
    case.expect_well(daemon, "lost")


def absent_rank(case):
    """Within a long grace, the rank that is not connected is named."""
    daemon, job = case.trained("absent", world=4, grace="1h")
    job.drop([3])
    case.expect_sick(daemon, "absent", STALLED.format("windows"),
                     NO_WINDOW + r"rank 3 is \d+ steps behind with its reports; rank 3 is not connected")
    job.connect([3], keep=True)
    case.expect_well(daemon, "absent")


def frozen_uplink(case):
    """The real trainer: bytes of one rank's stream arrive nowhere, and training goes on."""
    daemon = case.daemon(grace="1h")
    own = doors.Doors()
    case.stack.callback(own.close)
    door = own.open(daemon.grpc_port)
    case.stack.callback(door.close)
    job = harness.Job(case.directory, daemon.endpoint, world=3, steps=1000000, step_ms=10, slots=66, parameters=2,
                      endpoints={2: door.endpoint},
                      extra=("--job", "uplink", "--report-every", "10", "--rendezvous", f"127.0.0.1:{harness.free_port()}"))
    case.stack.callback(job.kill_all)
    harness.wait_for(job.commits, 60, "a commit")
    door.freeze()
    case.expect_sick(daemon, "uplink", STALLED.format("(windows|state)"), r".*\brank 2 (is \d+ steps behind|to )", 40)
    door.heal()
    door.cut()
    case.expect_well(daemon, "uplink", 40)


def votes_far_apart(case):
    """The real trainer: votes further apart than limits.voting_deadline. The deadline follows them, and chunks commit."""
    daemon = case.daemon()
    job = harness.Job(case.directory, daemon.endpoint, world=2, steps=1000000, step_ms=20, slots=66, parameters=2,
                      extra=("--job", "votes", "--report-every", "10", "--vote-every", "100"))
    case.stack.callback(job.kill_all)
    harness.wait_for(lambda: len(job.commits()) > 3, 60, "commits")
    case.expect_well(daemon, "votes", 1)


def withdrawn_proposals(case):
    """All ranks are PREPARED and none ever votes: every proposal is withdrawn."""
    daemon = case.daemon()
    case.job(daemon, "withdrawn", uneven=True, on_proposal=raw_rank.ready_alike).connect().train()
    case.expect_sick(daemon, "withdrawn", STALLED.format("withdrawn"),
                     r"\d+ of the newest \d+ proposals were withdrawn, the newest: .*within \S+ it still waited for all 2 ranks "
                     r"to report version \d+ as Applied", 40)


def hung_launch_and_the_next(case):
    """A run hangs in a collective. The next one gets the job, and keeps it when its network or the daemon goes away."""
    daemon, old = case.trained("hung", "run-a", grace="1h")
    old.hang()
    case.expect_sick(daemon, "hung", STALLED.format("hung"),
                     r"no rank reported a step after \d+ for .*2 of 2 ranks are connected", 60)
    new = case.job(daemon, "hung", "run-b").connect().train()
    case.expect_well(daemon, "hung")
    new.drop()
    old.drop()
    case.wait_until_connected(daemon, "hung", 0)
    old.connect(keep=True)
    new.connect(keep=True)
    case.expect_well(daemon, "hung")
    daemon.kill()
    new.drop()
    old.drop()
    daemon.start()
    old.connect(keep=True)
    new.connect(keep=True)
    case.expect_well(daemon, "hung")
    job = case.wait_until_connected(daemon, "hung", 2)
    assert job["run_id"] == "run-b", job


def launch_that_gathers(case):
    """A newer run misses a rank for longer than limits.start_deadline, while the current one looks well. A third run is named."""
    daemon = case.daemon(grace="1h", config='start_deadline = "10s"\n')
    case.job(daemon, "gathers").connect().train()
    case.job(daemon, "gathers", "run-b").connect([0])
    case.expect_well(daemon, "gathers")
    case.expect_sick(daemon, "gathers", "candidate: ",
                     r"a newer run, run-b, is not balanced: 1 of 2 ranks are registered after .*; it waits for rank 1 to "
                     r"register; limits.start_deadline is 10", 15)
    case.job(daemon, "gathers", "run-c").connect()
    case.expect_sick(daemon, "gathers", "candidate: ",
                     r"a newer run, run-c, is not balanced: 2 of 2 ranks are registered after .*; it waits for the end of "
                     r"run 1 \(run-1\), whose steps advance", 5)


def twin(case):
    """A second run of one rank under the name of a job whose steps advance is named, and does not hurt the job."""
    daemon, job = case.trained("twin", world=4)
    other = case.job(daemon, "twin", "run-b", world=1).connect()
    case.expect_sick(daemon, "twin", "candidate: ",
                     r"a newer run, run-b, is not balanced: 1 of 1 ranks are registered after .*; it waits for the end of "
                     r"run 1 \(run-1\), whose steps advance")
    other.drop()
    case.expect_well(daemon, "twin")
    assert not any(rank.ended.is_set() for rank in job.ranks.values()), "ranks of the job in force were sent away"


def same_name_after_a_finish(case):
    """The name of a run that finished comes again, and trains unbalanced."""
    daemon = case.daemon()
    case.job(daemon, "again").connect().train().finish()
    case.expect_well(daemon, "again")
    case.job(daemon, "again").connect()
    case.expect_sick(daemon, "again", STALLED.format("refused"),
                     "rank [01] was refused: run run-1 of job again has ended")


def same_name_after_a_kill(case):
    """Returns the same after all processes were killed."""
    daemon, job = case.trained("killed", grace="1h")
    job.drop()
    case.wait_until_connected(daemon, "killed", 0)
    case.job(daemon, "killed").connect()
    case.expect_sick(daemon, "killed", STALLED.format("refused"),
                     "rank [01] was refused: another process spoke for rank [01] of run run-1; a restarted rank needs a "
                     "new run")


def full_table(case):
    """A job that finds no place is named although the daemon does not know it; jobs that were killed make room."""
    daemon = case.daemon(grace="1s", config="max_jobs = 2\n")
    held = [case.job(daemon, f"held-{number}").connect().train() for number in range(2)]
    case.expect_well(daemon, "")
    case.job(daemon, "third").connect()
    case.expect_sick(daemon, "third", "refused: the daemon does not serve this job: ",
                     "rank [01] was refused: the daemon already knows 2 jobs whose ranks are connected, its limit; raise "
                     "limits.max_jobs", views=("status",))
    held[0].drop()
    time.sleep(5)  # the grace, on a busy machine
    case.job(daemon, "third").connect().train()
    case.expect_well(daemon, "third")


def full_daemon(case):
    """No stream is left for a job: nothing but a limit tells of it, since the daemon never reads its ranks' Hello."""
    for limit in ("max_sessions", "max_sessions_per_peer"):
        daemon = case.daemon(config=f"{limit} = 2\n")
        case.job(daemon, "first").connect().train()
        case.expect_well(daemon, "")
        case.job(daemon, "second").connect()
        case.expect_sick(daemon, "", "warning: ",
                         rf"\d+ streams? found no place, the newest .* ago, and their ranks are not balanced: limits.{limit} = 2",
                         views=("status",))


def quarantine(case):
    """Two ranks have different plans: QUARANTINE, with its cause, also after the daemon was killed."""
    daemon = case.daemon()
    job = case.job(daemon, "plans", uneven=True, on_proposal=raw_rank.ready_with_a_plan_of_its_own).connect().train()
    sick = ("plans", "state: QUARANTINE for .*", r"rank [01] computed the plan \w+ for version \d+, another rank \w+")
    case.expect_sick(daemon, *sick)
    time.sleep(SETTLED)  # by then it is stuck, which is an event of its own
    case.expect_sick(daemon, *sick, 2)
    daemon.kill()
    job.drop()
    daemon.start()
    case.expect_sick(daemon, *sick)
    job.connect(keep=True)
    case.expect_sick(daemon, *sick)
    for rank in job.ranks.values():
        rank.on_proposal = raw_rank.ready_alike
    assert case.ctl(daemon, "resume", "--job", "plans").returncode == 0
    case.expect_well(daemon, "plans")


def lost_store(case):
    """The store is moved aside, and no record tells whether an operator had paused the job: it waits for one."""
    daemon, job = case.trained("store")
    daemon.kill()
    job.drop()
    daemon.damage_store()
    daemon.start()
    job.connect(keep=True)
    case.expect_sick(daemon, "store", "decisions: paused: ", "the store was moved aside")


def replaced_store(case):
    """An old copy over the live database: nothing is proposed, and the daemon says why."""
    daemon, _ = case.trained("replaced")
    copy = case.directory / "copy"
    copy.write_bytes(daemon.store.read_bytes())
    copy.replace(daemon.store)
    case.expect_sick(daemon, "", "ready: no proposals can be made: ", ".*deleted or replaced under the daemon", views=("status",))
    case.expect_sick(daemon, "replaced", STALLED.format("store"), ".*deleted or replaced under the daemon")


def full_disk(case):
    """No file of the store may grow."""
    daemon = case.daemon()
    case.job(daemon, "disk", uneven=True, on_proposal=raw_rank.ready_alike).connect().train()
    daemon.fill_disk()
    case.expect_sick(daemon, "disk", STALLED.format("store"), "nothing is proposed, the job cannot be stored", 30)
    daemon.free_disk()
    case.wait_for("the store is written again", 30, lambda: None if daemon.ready()[0] == 200 else daemon.ready())


def two_daemons(case):
    """The ranks of one run are at two daemons, and no rank can reach both: each daemon names whom it misses."""
    first, second = case.daemon(grace="1s"), case.daemon(grace="1s")
    job = case.job(second, "split", world=4).connect().train()
    case.expect_well(second, "split")
    job.drop([3])
    job.port = first.grpc_port
    job.connect([3])
    case.expect_sick(second, "split", STALLED.format("lost"), "the run is lost and 3 of 4 ranks train on here")
    case.expect_sick(first, "split", STALLED.format("state"),
                     r"RECOVERING for .*, waiting for ranks 0, 1, 2 to register; the job trains on, at step \d+")


def rank_refused_for_its_numbers(case):
    """A rank comes back with a version far above all that were given out."""
    daemon, job = case.trained("numbers", grace="1h")
    job.drop([1])
    case.wait_until_connected(daemon, "numbers", 1)
    job.connect([1], hello={13: 1 << 61}, keep=True)
    case.expect_sick(daemon, "numbers", STALLED.format("windows"),
                     NO_WINDOW + r".*rank 1 is not connected; rank 1 was refused: hello: highest_version is \d+")


CASES = (silent_rank, rank_far_ahead, lost_rank, absent_rank, frozen_uplink, votes_far_apart, withdrawn_proposals,
         hung_launch_and_the_next, launch_that_gathers, twin, same_name_after_a_finish, same_name_after_a_kill, full_table,
         full_daemon, quarantine, lost_store, replaced_store, full_disk, two_daemons, rank_refused_for_its_numbers)


def run(case, directory):
    with (one := Case(directory)).stack:
        case(one)


class DoctorCasesTest(unittest.TestCase):
    def test_doctor_exits_8_and_names_the_cause_in_every_case(self):
        directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-doctor-")))
        cases = [case for case in CASES if not ONLY or any(word in case.__name__ for word in ONLY)]
        with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
            results = {case.__name__: pool.submit(run, case, directory / case.__name__) for case in cases}
        for name, result in results.items():
            with self.subTest(case=name):
                result.result()


if __name__ == "__main__":
    if "--only" in sys.argv:
        at = sys.argv.index("--only")
        ONLY = sys.argv[at + 1].split(",")
        del sys.argv[at:at + 2]
    sys.exit(unittest.main(verbosity=2))
