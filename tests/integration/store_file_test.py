"""The database under a running daemon: deleted, or opened by a second daemon by another name."""

import os
import subprocess
import unittest

import job as harness


class StoreFileTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon()
        self.store = self.directory / "eplbd.db"

    def run_program(self, *command):
        return subprocess.run([harness.BIN / command[0], *map(str, command[1:])], capture_output=True, text=True,
                              timeout=60 * harness.PATIENCE, check=False)

    def test_a_deleted_database_makes_the_daemon_unready_and_doctor_names_it(self):
        self.assertEqual(self.daemon.ready()[0], 200)
        for path in self.directory.glob("eplbd.db*"):
            path.unlink()
        harness.wait_for(lambda: self.daemon.ready()[0] == 503, 20, "/readyz says 503")
        self.assertIn("deleted or replaced under the daemon", self.daemon.ready()[1])
        self.assertEqual(len(self.daemon.logged("store_takes_no_writes")), 1)
        doctor = self.run_program("eplbctl", "doctor", "--endpoint", self.daemon.endpoint)
        self.assertEqual(doctor.returncode, 8, doctor.stdout + doctor.stderr)
        self.assertIn("deleted", doctor.stdout)

    def test_a_second_daemon_by_a_link_is_refused(self):
        symbolic, hard = self.directory / "symbolic.db", self.directory / "hard.db"
        symbolic.symlink_to(self.store)
        os.link(self.store, hard)
        for link in (symbolic, hard):
            second = self.run_program("eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", link)
            self.assertEqual(second.returncode, 1, second.stderr)
            self.assertIn("another eplbd has this store open", second.stderr)
        self.assertEqual(self.daemon.ready()[0], 200)

    def test_nobody_else_may_read_the_store(self):
        for path in self.directory.glob("eplbd.db*"):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)


if __name__ == "__main__":
    unittest.main()
