"""eplbd and a client under a limit of threads: a good start or one line that names the limit, each within seconds."""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import unittest

import job as harness

BIN = pathlib.Path(os.environ["EPLB_BIN"])
DATA = pathlib.Path(os.environ["EPLB_DATA"])
USER = 65531  # user of no other process: the limit counts all of a user's
DEADLINE = 10 * harness.PATIENCE


def limited(threads):
    """Becomes another user, for whom the limit holds, with room for so many threads."""
    def demote():
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    return demote


@unittest.skipUnless(os.geteuid() == 0, "only root can become a user of no other process")
class StartLimitsTest(unittest.TestCase):
    def test_a_daemon_starts_or_names_the_limit(self):
        started = 0
        for threads in (1, 2, 5, 10, 20, 32, 40):
            with self.subTest(threads=threads):
                daemon = subprocess.Popen([BIN / "eplbd", "--store", "memory", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"],
                                          preexec_fn=limited(threads), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                said = daemon.stdout.readline()
                if '"listening"' in said:
                    started += 1
                    daemon.terminate()
                errors = daemon.communicate(timeout=DEADLINE)[1]
                self.assertEqual(daemon.returncode, 0 if said else 1, errors)
                if not said:
                    self.assertRegex(errors, rf"\Aeplbd: only \d+ of \d+ threads can be started: .* \(ulimit -u is {threads} .*\)\n\Z")
        self.assertGreater(started, 0)

    def test_a_client_starts_or_names_the_limit(self):
        with tempfile.TemporaryDirectory(prefix="eplb-limits-") as directory:
            os.chmod(directory, 0o755)
            for threads in (2, 6, 12):
                with self.subTest(threads=threads):
                    rank = subprocess.run(
                        [BIN / "eplb-trainer", "--rank", "0", "--world", "1", "--slots", "64", "--launch-id", "x", "--steps", "1",
                         "--endpoint", "127.0.0.1:9", "--rendezvous", f"127.0.0.1:{harness.free_port()}", "--trace",
                         DATA / "moe64_aux.jsonl"], preexec_fn=limited(threads), capture_output=True, text=True, timeout=DEADLINE)
                    self.assertEqual(rank.returncode, 1, rank.stderr)
                    self.assertIn("threads can be started: ", rank.stderr)
                    self.assertIn(f"ulimit -u is {threads} ", rank.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
