"""The demonstration job with its experts in GPU memory: daemon, two ranks on one GPU, every byte verified after each switch.

Skips without a GPU, and fails where EPLB_REQUIRE_GPU=1 says that there must be one. EPLB_TRAINER names another trainer; with
EPLB_FAKE_CUDA=1 that is one on the stand-in for CUDA, which needs no GPU and has no NCCL.
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))

import job as harness  # noqa: E402

ON_FAKE_CUDA = os.environ.get("EPLB_FAKE_CUDA") == "1"
# NCCL takes two ranks of one device only as ranks of two hosts.
NCCL_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": "AF_INET", "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0", "NCCL_RAS_ENABLE": "0", "NCCL_PROTO": "Simple", "NCCL_MAX_CTAS": "4", "NCCL_DEBUG": "WARN"}


def why_no_gpu():
    """"" when the driver has a device."""
    if ON_FAKE_CUDA:
        return ""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver: {error}"
    count = ctypes.c_int(0)
    result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if result == 0 and count.value > 0 else f"the CUDA driver says {result} and has {count.value} devices"


class TrainerOnGpuTest(harness.DaemonTest):
    def setUp(self):
        if why := why_no_gpu():
            if os.environ.get("EPLB_REQUIRE_GPU") == "1":
                self.fail(f"EPLB_REQUIRE_GPU=1: {why}")
            self.skipTest(why)
        super().setUp()
        self.daemon = self.started_daemon()

    def run_job(self, transport, extra, **options):
        """A job that ends well, switched at least once and moved its rows over `transport`."""
        job = self.started_job(self.daemon.endpoint, extra=extra, **options)
        self.assertEqual(job.wait(240), [0] * job.world, [path.read_text()[-2000:] for path in job.errors])
        for path in job.errors:
            self.assertNotIn("rows go by", path.read_text(), "the transport was given up for another")
        report = job.report()
        self.assertEqual(report["transport"], transport)
        self.assertGreater(report["bytes_verified"], 0)
        self.assertGreater(len(job.commits()), 0)
        pauses = sorted(1e3 * switch["pause_seconds"] for switch in report["switches"])
        moved = sum(switch["bytes_moved"] for switch in report["switches"])
        print(f"{transport}: {len(pauses)} switches, {moved / 1e6:.1f} MB moved, {report['bytes_verified'] / 1e6:.1f} MB "
              f"verified, median pause {pauses[len(pauses) // 2]:.2f} ms", flush=True)

    def test_rows_go_over_cuda_ipc(self):
        self.run_job("peer", ("--transport", "peer"), world=2, steps=240, step_ms=5, slots=66, parameters=1024)

    def test_auto_takes_peer_for_gpu_memory(self):
        self.run_job("peer", ("--expert-memory", "gpu"), world=4, steps=240, step_ms=8, slots=72)

    def test_rows_of_a_gpu_go_over_the_host_where_that_is_asked_for(self):
        self.run_job("host", ("--transport", "host", "--expert-memory", "gpu"), world=2, steps=240, step_ms=8, slots=66)

    def test_a_device_that_is_not_there_is_exit_2_naming_the_variable(self):
        result = subprocess.run(
            [harness.TRAINER, "--rank", "0", "--world", "1", "--steps", "1", "--rendezvous", "127.0.0.1:1", "--trace",
             harness.DATA / "moe64_aux.jsonl", "--expert-memory", "gpu"], env={**os.environ, "EPLB_TRAINER_DEVICE": "99"},
            capture_output=True, text=True, timeout=60 * harness.PATIENCE)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertRegex(result.stderr, '^eplb-trainer: rank 0: EPLB_TRAINER_DEVICE is "99", expected a device of 0..*\n$')

    @unittest.skipIf(ON_FAKE_CUDA, "NCCL brings its own CUDA")
    def test_rows_go_over_nccl(self):
        self.run_job("nccl", ("--transport", "nccl"), world=2, steps=240, step_ms=8, slots=66, environment=NCCL_ENVIRONMENT,
                     rank_environment={rank: {"NCCL_HOSTID": f"eplb-r{rank}"} for rank in range(2)})


if __name__ == "__main__":
    unittest.main()
