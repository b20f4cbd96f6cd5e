"""Every shell script of the repository under shellcheck."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LEFT_OUT = ("build", ".git")
SHELLS = ("#!/bin/sh", "#!/bin/bash", "#!/usr/bin/env bash", "#!/usr/bin/env sh")


def is_script(path):
    if path.suffix == ".sh":
        return True
    try:
        with path.open("rb") as file:
            return file.readline(64).decode("ascii", "replace").strip() in SHELLS
    except OSError:
        return False


def scripts(root):
    return sorted(path for top in root.iterdir() if top.name not in LEFT_OUT
                  for path in ([top] if top.is_file() else top.rglob("*")) if path.is_file() and is_script(path))


@unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed: deploy/setup.sh --tests")
class ShellTest(unittest.TestCase):
    def check(self, *paths):
        return subprocess.run(["shellcheck", "--severity=warning", "--external-sources", "--source-path", ROOT, *paths],
                              capture_output=True, text=True, timeout=240)

    def test_every_script_is_clean(self):
        found = scripts(ROOT)
        names = {str(path.relative_to(ROOT)) for path in found}
        self.assertGreaterEqual(names, {"deploy/demo.sh", "deploy/setup.sh", "deploy/slurm/eplb.sbatch", "deploy/torchrun/eplb-torchrun",
                                        "deploy/launch/daemon_loop.sh", "deploy/container/rootfs.sh", "tests/run.sh", "tests/tidy/all"})
        done = self.check(*found)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_a_mistake_would_be_noticed(self):
        bad = self.enterContext(tempfile.TemporaryDirectory())
        path = pathlib.Path(bad) / "bad.sh"
        path.write_text("#!/usr/bin/env bash\ncd $1; a= b\n")
        self.assertEqual(self.check(path).returncode, 1)


if __name__ == "__main__":
    unittest.main()
