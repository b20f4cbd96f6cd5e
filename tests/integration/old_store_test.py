"""Stores of every earlier release under this daemon: tests/data/store/VERSION, made by record_release.py. What eplbctl said of
a store then it says now; keys may have been added. A store of a later release is refused and stays as it is."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import unittest

import job as harness
from record_release import QUESTIONS

RECORDED = sorted((harness.DATA / "store").iterdir())
# Values of a running daemon, or counted from its start.
VOLATILE = ("state_seconds", "stuck_seconds", "term")
# Pauses of a release whose savings no longer count.
DROPPED = ("spent_seconds",)
# Values with which a release showed that it did not know a figure of a job without ranks.
UNKNOWN = {"num_gpus": 1, "measured_split": "", "not_measured_reason": "no rank has registered since the daemon started",
           **dict.fromkeys(("num_layers", "num_logical_experts", "num_slots", "measured_first_step", "measured_last_step",
                            "last_window_first_step", "last_window_last_step"), 0),
           **dict.fromkeys(("balancedness", "balancedness_static", "balancedness_without_eplb", "coverage"))}


def differences(then, now, where=""):
    """Places where an answer is not what it was, one text each."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [line for key, value in then.items() if key not in VOLATILE + DROPPED and (key, value) not in UNKNOWN.items() for line in
                (differences(value, now[key], f"{where}.{key}") if key in now else [f"{where}.{key} is gone"])]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [line for i, (a, b) in enumerate(zip(then, now)) for line in differences(a, b, f"{where}[{i}]")]
    if then == 0 and now is None:
        return []  # 0.1.0 had a 0 for a figure without a sample
    return [] if then == now else [f"{where} was {then!r}, is {now!r}"]


class OldStoreTest(harness.DaemonTest):
    def copy_of(self, release):
        path = self.directory / f"{release.name}.db"
        shutil.copyfile(release / "eplbd.db", path)
        path.chmod(0o600)
        return path

    def test_they_say_what_they_said(self):
        self.assertTrue(RECORDED)
        for release in RECORDED:
            with self.subTest(release=release.name):
                _, listening = self.spawned("--store", self.copy_of(release), stderr=subprocess.DEVNULL)
                then = json.loads((release / "answers.json").read_text())
                self.assertEqual(len(then), len(QUESTIONS))
                for question, answer in zip(QUESTIONS, then):
                    done = harness.eplbctl(*question, "--endpoint", listening["grpc"], "-o", "json")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(differences(answer, json.loads(done.stdout)), [], " ".join(question))

    def test_a_store_of_a_later_release_is_refused_and_stays(self):
        path = self.copy_of(RECORDED[-1])
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
            database.execute("UPDATE leadership SET schema = 99")
        database.close()
        before = hashlib.sha256(path.read_bytes()).digest()
        log = self.directory / "log"
        daemon, _ = self.spawned("--store", path, stderr=self.enterContext(log.open("w")))
        self.assertEqual(daemon.wait(60 * harness.PATIENCE), 1)
        self.assertIn("written by a newer eplbd (schema 99, this one knows", log.read_text())
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
