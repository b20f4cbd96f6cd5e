"""TLS between processes: ranks, an asker and a stranger in front of a daemon that wants certificates."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import job as harness

CONFIG = """
[policy]
every_steps = 50
[tls]
cert = "{0}/server.pem"
key = "{0}/server.key"
ca = "{0}/ca.pem"
[tls.identity]
"spiffe://example.org/train/*" = {{ role = "member", jobs = ["demo"] }}
"spiffe://example.org/neighbour" = {{ role = "viewer", jobs = ["other"] }}
"""


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60 * harness.PATIENCE)


class Authority:
    """A certificate authority in a directory: NAME.pem and NAME.key of each name that it signed."""

    def __init__(self, directory):
        self.directory = directory
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 1,
                "-subj", f"/CN={directory.name}", "-keyout", directory / "ca.key", "-out", directory / "ca.pem")

    def sign(self, name, alternative_names, days=1):
        stem = self.directory / name
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", f"{stem}.key", "-out", f"{stem}.csr")
        pathlib.Path(f"{stem}.ext").write_text(f"subjectAltName={alternative_names}")
        openssl("x509", "-req", "-in", f"{stem}.csr", "-CA", self.directory / "ca.pem", "-CAkey",
                self.directory / "ca.key", "-CAcreateserial", "-days", days, "-extfile", f"{stem}.ext",
                "-out", f"{stem}.pem")

    def flags(self, name):
        return ["--tls-ca", self.directory / "ca.pem", "--tls-cert", self.directory / f"{name}.pem",
                "--tls-key", self.directory / f"{name}.key"]


class TlsTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.directory)
        self.authority.sign("server", "DNS:localhost,IP:127.0.0.1")
        self.authority.sign("rank", "URI:spiffe://example.org/train/any")
        self.authority.sign("neighbour", "URI:spiffe://example.org/neighbour")
        self.daemon = harness.Daemon(self.directory)
        self.daemon.config.write_text(CONFIG.format(self.directory))
        self.daemon.start()
        self.addCleanup(self.daemon.kill)

    def eplbctl(self, *arguments, environment=None):
        return subprocess.run([harness.BIN / "eplbctl", *map(str, arguments), "--endpoint", self.daemon.endpoint],
                              capture_output=True, text=True, timeout=60 * harness.PATIENCE,
                              env={**os.environ, **(environment or {})})

    def metric(self, name):
        text = self.daemon.get("metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
        self.assertIsNotNone(found, text)
        return float(found[1])

    def test_a_job_trains_over_tls(self):
        job = self.started_job(self.daemon.endpoint, world=2, steps=120,
                               extra=self.authority.flags("rank"))
        self.assertEqual(job.wait(120), [0, 0], [path.read_text() for path in job.errors])
        result = self.eplbctl("status", "-o", "json", *self.authority.flags("rank"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([job["job"] for job in json.loads(result.stdout)["jobs"]], ["demo"])
        self.assertGreater(self.metric("eplb_tls_cert_expiry_timestamp_seconds"), 1.7e9)

    def test_a_rank_of_another_job_is_refused_with_one_line(self):
        job = self.started_job(self.daemon.endpoint, world=1, steps=8,
                               extra=["--job", "other", *self.authority.flags("rank")])
        self.assertNotEqual(job.wait(60), [0])
        self.assertIn('spiffe://example.org/train/any: not allowed for job "other"', job.errors[0].read_text())
        self.assertGreater(self.metric('eplb_refusals_total{kind="denied"}'), 0)
        self.assertIn("not allowed", self.daemon.logged("refused")[0]["reason"])

    def test_a_viewer_sees_its_own_jobs_only(self):
        flags = self.authority.flags("neighbour")
        result = self.eplbctl("get", "placement", "--job", "demo", *flags)
        self.assertEqual(result.returncode, 4, result.stderr)
        self.assertIn('not allowed for job "demo"', result.stderr)
        self.assertEqual(self.eplbctl("get", "placement", "--job", "other", *flags).returncode, 5)

    def test_the_environment_names_the_files(self):
        ca, cert, key = [str(flag) for flag in self.authority.flags("neighbour")[1::2]]
        result = self.eplbctl("status", environment={"EPLB_TLS_CA": ca, "EPLB_TLS_CERT": cert, "EPLB_TLS_KEY": key})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_peer_without_a_good_certificate_gets_one_clear_line(self):
        stranger = Authority(pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-test-"))))
        stranger.sign("rank", "URI:spiffe://example.org/train/any")
        wrong_ca = self.authority.flags("rank")
        wrong_ca[1] = stranger.directory / "ca.pem"
        unknown = stranger.flags("rank")
        unknown[1] = self.directory / "ca.pem"
        missing = self.authority.flags("nobody")
        for flags, code, line in (([], 3, "does it want TLS?"), (wrong_ca, 3, "certificate verify failed"),
                                  (unknown, 3, "cannot reach"), (missing, 2, "nobody.pem: cannot be read"),
                                  (self.authority.flags("rank")[:4], 2, "the key is not set")):
            result = self.eplbctl("status", *flags)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(line, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        harness.wait_for(lambda: self.metric('eplb_refusals_total{kind="handshake"}') >= 3, 20, "handshakes are counted")
        self.assertEqual(self.eplbctl("status", *self.authority.flags("rank")).returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
