"""Daemons that share an etcd, when their files, their etcd or their callers misbehave.

Without /usr/bin/etcd the tests are skipped.
"""

import base64
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))

import doors  # noqa: E402
import raw_rank  # noqa: E402
import daemon_group  # noqa: E402
import network_hosts  # noqa: E402

harness = daemon_group.harness
LEADER_KEY = "/eplb/v1/leader"


def encoded(text):
    return base64.b64encode(text.encode()).decode()


@unittest.skipUnless(daemon_group.ETCD.exists(), "/usr/bin/etcd is missing: install the package etcd-server")
class EtcdGroupTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-etcd-")))
        self.doors = doors.Doors()
        self.addCleanup(self.doors.close)
        self.etcd = daemon_group.Member(0, self.directory, [(harness.free_port(), harness.free_port())])
        self.start(self.etcd)
        harness.wait_for(self.etcd.leads, 30, "etcd answers")

    def start(self, process):
        process.start()
        self.addCleanup(process.kill)
        return process

    def daemon(self, number, one_way=0.0):
        """A daemon whose bytes to and from etcd are late by so many seconds."""
        daemon = daemon_group.GroupDaemon(number, self.directory, self.doors, [self.etcd])
        for door in (*daemon.to_etcd, daemon.to_ranks):
            self.addCleanup(door.close)
        daemon.to_etcd[0].slow(one_way)
        return self.start(daemon)

    def daemons(self, number):
        """Daemons of which the first leads."""
        group = []
        for i in range(number):
            group.append(self.daemon(i))
            event = "standing_by" if i > 0 else "listening"
            harness.wait_for(lambda: group[0].leads() and group[i].events(event), 30, "the first daemon leads")
        return group

    def ask_etcd(self, path, **body):
        answer = self.etcd.ask(path, body)
        self.assertIsNotNone(answer, f"etcd does not answer {path}")
        return answer

    def take_lead(self, daemon):
        """The leader's key disappears: the daemon steps down."""
        lost = len(daemon.events("lead_lost"))
        self.ask_etcd("/v3/kv/deleterange", key=encoded(LEADER_KEY))
        harness.wait_for(lambda: len(daemon.events("lead_lost")) > lost, 10, "the daemon steps down")

    def doctor(self, *endpoints):
        """Exit code and what is printed, on one line."""
        done = subprocess.run([harness.BIN / "eplbctl", "doctor", "--timeout", "2s", "--endpoint", ",".join(endpoints)],
                              capture_output=True, text=True, timeout=60 * harness.PATIENCE)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def test_doctor_names_an_etcd_that_is_gone_at_every_daemon(self):
        group = self.daemons(2)
        endpoints = [daemon.to_ranks.endpoint for daemon in group]
        leader, standby = group
        self.assertEqual(self.doctor(*endpoints)[0], 0)
        self.etcd.kill()
        # The leader leads until its lease ends.
        harness.wait_for(lambda: "warning: etcd: unreachable since " in self.doctor(endpoints[0])[1], 5, "the leader names etcd")
        harness.wait_for(lambda: leader.events("lead_lost"), 20, "the leader steps down")
        for asked in (endpoints[:1], endpoints[1:], endpoints):
            harness.wait_for(lambda: self.doctor(*asked)[1].count("etcd: unreachable since ") == len(asked), 10, "etcd is named")
            code, text = self.doctor(*asked)
            self.assertEqual(code, 8, text)
            self.assertIn("etcd at 127.0.0.1", text)
        with self.assertRaises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"http://127.0.0.1:{standby.http_port}/readyz", timeout=10)
        self.assertIn("etcd: unreachable since ", refusal.exception.read().decode())
        self.start(self.etcd)
        harness.wait_for(lambda: self.doctor(*endpoints)[0] == 0, 30, "doctor is content again")

    def test_a_slow_etcd_costs_no_lead_and_is_named(self):
        group = [self.daemon(i, one_way=0.35) for i in range(2)]  # 0.7 s there and back, of a time-out of 1 s
        harness.wait_for(lambda: any(daemon.leads() for daemon in group), 40, "a daemon leads")
        leader = next(daemon for daemon in group if daemon.leads())
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.assertTrue(leader.leads(), leader.log.read_text()[-500:])
            time.sleep(0.2)
        code, text = self.doctor(leader.to_ranks.endpoint)
        self.assertEqual(code, 8, text)
        self.assertRegex(text, r"etcd: slow: a call takes \d\.\d\d s, and store\.etcd\.timeout is 1s")
        leader.to_etcd[0].heal()
        harness.wait_for(lambda: self.doctor(leader.to_ranks.endpoint)[0] == 0, 30, "doctor is content again")

    def test_an_etcd_that_becomes_slow_costs_no_lead(self):
        leader, standby = self.daemons(2)
        for daemon in (leader, standby):
            daemon.to_etcd[0].slow(0.35)
        time.sleep(20)
        self.assertEqual([], leader.events("lead_lost"))
        self.assertTrue(leader.leads())

    def test_a_strangers_hello_to_a_standby_leaves_the_lead(self):
        leader, standby = self.daemons(2)
        end, refused = time.monotonic() + 12, 0
        while time.monotonic() < end:
            rank = raw_rank.RawRank(standby.grpc_port, "stranger", "r", 0, 1, {}, None)
            refused += 1
            rank.ended.wait(10)
            rank.drop()
            time.sleep(0.2)
        self.assertGreater(refused, 20)
        self.assertEqual([], leader.events("lead_lost"))
        self.assertTrue(leader.leads())

    def test_a_damaged_row_pauses_its_job_and_ends_no_daemon(self):
        damaged = "nonsense that is long enough"
        self.ask_etcd("/v3/kv/put", key=encoded("/eplb/v1/job/broken/record"), value=encoded(damaged))
        daemon, = self.daemons(1)
        self.take_lead(daemon)  # the next leader does the same
        harness.wait_for(lambda: len(daemon.events("store_rows_damaged")) == 2 and daemon.leads(), 30,
                         "the daemon leads again and reports the row again")
        code, text = self.doctor(daemon.to_ranks.endpoint)
        self.assertEqual(code, 8, text)
        self.assertIn("failed broken decisions: paused: etcd key /eplb/v1/job/broken/record does not fit its checksum", text)
        self.assertIn('eplb_paused{training_job="broken"} 1', daemon.get("/metrics"))
        rank = raw_rank.RawRank(daemon.grpc_port, "sound", "r", 0, 1, {}, None)
        self.addCleanup(rank.drop)
        harness.wait_for(rank.welcomed.is_set, 10, "a rank of another job is welcomed")
        kept = self.ask_etcd("/v3/kv/range", key=encoded("/eplb/v1/job/broken/record"))
        self.assertEqual(base64.b64decode(kept["kvs"][0]["value"]).decode(), damaged)

    def test_a_leader_steps_down_while_its_configuration_is_edited(self):
        daemon, = self.daemons(1)
        sound = daemon.config.read_text()
        for text in ("[policy\n", "", "[policy]\nnam = 1\n", None, sound[:len(sound) // 2]):
            if text is None:
                daemon.config.unlink()
            else:
                daemon.config.write_text(text)
            elected = len(daemon.events("leading"))
            self.take_lead(daemon)
            # The process that steps down still answers until it begins anew.
            harness.wait_for(lambda: not daemon.lives() or (len(daemon.events("leading")) > elected and daemon.leads()), 30,
                             "the daemon leads again")
            self.assertTrue(daemon.lives(), f"{text!r}: exit {daemon.process.poll()}: {daemon.log.read_text()[-400:]}")


@unittest.skipUnless(daemon_group.ETCD.exists(), "/usr/bin/etcd is missing: install the package etcd-server")
class BlackHoleTest(unittest.TestCase):
    """Packets between the ranks and the leader vanish, and each of them reaches etcd's host."""

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-hole-")))
        self.hosts = network_hosts.Hosts(self)

    def start_daemon(self, number, host, listen, etcd):
        config = self.directory / f"eplbd-{number}.toml"
        config.write_text(f'{daemon_group.CONFIG}[listen]\ngrpc = "{listen}"\nhttp = "127.0.0.1:0"\nunix = "none"\n'
                          f'[store]\nbackend = "etcd"\n[store.etcd]\nendpoints = ["{etcd}"]\n')
        log = self.directory / f"eplbd-{number}.log"
        self.hosts.start(self, host, [harness.BIN / "eplbd", "--config", config, "--insecure-network"], log)
        return log

    def start_ranks(self, endpoints, world):
        rendezvous = f"127.0.0.1:{harness.free_port()}"
        for rank in range(world):
            words = [harness.TRAINER, "--rank", rank, "--world", world, "--endpoint", endpoints, "--rendezvous", rendezvous,
                     "--trace", harness.DATA / "moe64_aux.jsonl", "--steps", 10000000, "--slots", 64, "--step-ms", 20,
                     "--parameters", 2, "--log-dir", self.directory, "--report-every", 5, "--vote-every", 4]
            self.hosts.start(self, self.hosts.RANKS, words, self.directory / f"rank-{rank}.err")

    def commits(self):
        return sum(line["event"] == "commit" for line in harness.read_lines(self.directory / "rank-0.jsonl"))

    def test_commits_go_on_under_another_leader(self):
        port, peer, ports = harness.free_port(), harness.free_port(), [harness.free_port(), harness.free_port()]
        etcd = f"http://{self.hosts.INNER[0]}:{port}"
        local = f"http://127.0.0.1:{peer}"
        self.hosts.start(self, self.hosts.MIDDLE, [
            daemon_group.ETCD, "--name=one", f"--data-dir={self.directory}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={local}", f"--initial-advertise-peer-urls={local}",
            f"--initial-cluster=one={local}"], self.directory / "etcd.log")
        endpoints = [f"{self.hosts.OUTER[0]}:{ports[0]}", f"{self.hosts.INNER[1]}:{ports[1]}"]
        logs = [self.start_daemon(0, self.hosts.LEADER, endpoints[0], etcd)]
        harness.wait_for(lambda: '"leading"' in logs[0].read_text(), 30, "the first daemon leads")
        logs.append(self.start_daemon(1, self.hosts.MIDDLE, endpoints[1], etcd))
        harness.wait_for(lambda: '"standing_by"' in logs[1].read_text(), 30, "the second daemon stands by")
        self.start_ranks(",".join(endpoints), 2)
        harness.wait_for(lambda: self.commits() > 0, 60, "the ranks commit")
        self.hosts.part()
        hurt = time.monotonic()
        harness.wait_for(lambda: '"leading"' in logs[1].read_text(), 35, "the second daemon leads")
        led, before = time.monotonic() - hurt, self.commits()
        harness.wait_for(lambda: self.commits() > before, 30, "commits go on")
        print(f"led after {led:.1f} s, committed after {time.monotonic() - hurt:.1f} s")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
