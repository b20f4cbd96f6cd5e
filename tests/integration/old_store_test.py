"""Stores of every earlier release under this daemon: tests/data/store/VERSION, made by record_release.py. What eplbctl said of
a store then it says now; keys may have been added. A store of a later release is refused and stays as it is."""

import hashlib
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile
import unittest

from record_release import QUESTIONS

BIN = pathlib.Path(os.environ["EPLB_BIN"])
RECORDED = sorted((pathlib.Path(os.environ["EPLB_DATA"]) / "store").iterdir())
DEADLINE = 60
# Values of a running daemon, or counted from its start.
VOLATILE = ("state_seconds", "stuck_seconds", "term")


def differences(then, now, where=""):
    """Places where an answer is not what it was, one text each."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [line for key, value in then.items() if key not in VOLATILE for line in
                (differences(value, now[key], f"{where}.{key}") if key in now else [f"{where}.{key} is gone"])]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [line for i, (a, b) in enumerate(zip(then, now)) for line in differences(a, b, f"{where}[{i}]")]
    if then == 0 and now is None:
        return []  # 0.1.0 had a 0 for a figure without a sample
    return [] if then == now else [f"{where} was {then!r}, is {now!r}"]


class OldStoreTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-store-")))

    def copy_of(self, release):
        path = self.directory / f"{release.name}.db"
        shutil.copyfile(release / "eplbd.db", path)
        path.chmod(0o600)
        return path

    def start(self, store):
        daemon = subprocess.Popen([BIN / "eplbd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", store, "--set",
                                   "listen.unix=none"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(daemon.stderr.close)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait, DEADLINE)
        self.addCleanup(daemon.kill)
        return daemon

    def test_they_say_what_they_said(self):
        self.assertTrue(RECORDED)
        for release in RECORDED:
            with self.subTest(release=release.name):
                daemon = self.start(self.copy_of(release))
                address = json.loads(daemon.stdout.readline())["grpc"]
                then = json.loads((release / "answers.json").read_text())
                self.assertEqual(len(then), len(QUESTIONS))
                for question, answer in zip(QUESTIONS, then):
                    done = subprocess.run([BIN / "eplbctl", *question, "--endpoint", address, "-o", "json"], capture_output=True,
                                          text=True, timeout=DEADLINE)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(differences(answer, json.loads(done.stdout)), [], " ".join(question))

    def test_a_store_of_a_later_release_is_refused_and_stays(self):
        path = self.copy_of(RECORDED[-1])
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
            database.execute("UPDATE leadership SET schema = 99")
        database.close()
        before = hashlib.sha256(path.read_bytes()).digest()
        daemon = self.start(path)
        _, said = daemon.communicate(timeout=DEADLINE)
        self.assertEqual(daemon.returncode, 1)
        self.assertIn("written by a newer eplbd (schema 99, this one knows", said)
        self.assertEqual(hashlib.sha256(path.read_bytes()).digest(), before)
        self.assertEqual([other.name for other in self.directory.glob("*corrupt*")], [])


class DifferencesTest(unittest.TestCase):
    def test_new_keys_are_none_and_lost_or_changed_ones_are_named(self):
        then = {"a": [{"b": 1, "term": 3}]}
        self.assertEqual(differences(then, {"a": [{"b": 1, "term": 4, "c": 2}], "d": 0}), [])
        self.assertEqual(differences(then, {"a": [{"b": 2}]}), [".a[0].b was 1, is 2"])
        self.assertEqual(differences(then, {"a": [{}]}), [".a[0].b is gone"])
        self.assertEqual(differences(then, {"a": [{"b": None}]}), [".a[0].b was 1, is None"])
        self.assertEqual(differences({"b": 0}, {"b": None}), [], "a figure without a sample")
        self.assertEqual(differences(then, {"a": []}), [".a was [{'b': 1, 'term': 3}], is []"])


if __name__ == "__main__":
    unittest.main()
