"""Files that `cmake --install` puts below a prefix, which may be moved: pages whose links lead somewhere, manuals,
completions, the unit, Python.
"""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import links

BUILD = pathlib.Path(os.environ["EPLB_BUILD"])
DEADLINE = 90


class InstalledTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="eplb-installed-")))
        cls.asked_for = folder / "first"
        cls.install(cls.asked_for)
        cls.prefix = folder / "moved"
        cls.asked_for.rename(cls.prefix)
        cls.docs = cls.prefix / "share/doc/eplb"

    @staticmethod
    def install(prefix, *more):
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix, *more], capture_output=True, text=True, timeout=DEADLINE)
        if done.returncode != 0:
            raise AssertionError(done.stdout[-2000:] + done.stderr[-2000:])

    def test_no_link_of_the_pages_is_dead(self):
        pages = links.pages_below(self.docs)
        self.assertEqual(links.dead_links(self.docs), [])
        self.assertGreaterEqual(len(pages), 30)
        self.assertTrue((self.docs / "docs/page.png").exists())

    def test_files_that_the_installing_page_names_are_there(self):
        for path in ("etc/eplb/eplbd.toml", "lib/systemd/system/eplbd.service", "lib/sysusers.d/eplbd.conf", "share/eplb/prometheus/alerts.yml",
                     "share/eplb/grafana/dashboard.json", "share/doc/eplb/deploy/examples/c/trainer.c",
                     "share/doc/eplb/tests/data/moe64_aux.jsonl", "include/eplb.h", "bin/eplb-convert"):
            self.assertTrue((self.prefix / path).exists(), path)
        self.assertEqual([str(path) for path in self.prefix.rglob("__pycache__")], [])

    def test_the_manuals_have_what_the_programs_print(self):
        for page, command in (("man8/eplbd.8.gz", ["eplbd", "--man"]), ("man1/eplbctl.1.gz", ["eplbctl", "man"])):
            text = gzip.decompress((self.prefix / "share/man" / page).read_bytes()).decode()
            said = subprocess.run([self.prefix / "bin" / command[0], command[1]], capture_output=True, text=True, timeout=DEADLINE, check=True)
            self.assertEqual(text, said.stdout)

    def test_the_unit_names_the_program_and_the_configuration_of_its_prefix(self):
        unit = (self.prefix / "lib/systemd/system/eplbd.service").read_text()
        self.assertIn(f"ExecStart={self.asked_for}/bin/eplbd --config {self.asked_for}/etc/eplb/eplbd.toml\n", unit)
        self.assertNotIn("@eplbd", unit)

    def test_another_installation_keeps_a_configuration_that_was_changed(self):
        prefix = self.prefix.parent / "twice"
        self.install(prefix, "--component", "eplbd")
        config = prefix / "etc/eplb/eplbd.toml"
        config.write_text(config.read_text() + "# mine\n")
        self.install(prefix, "--component", "eplbd")
        self.assertTrue(config.read_text().endswith("# mine\n"))

    def test_bash_and_fish_complete_and_zsh_does_at_the_first_key(self):
        bash = self.prefix / "share/bash-completion/completions/eplbctl"
        done = subprocess.run(["bash", "-c", f"source {bash}; complete -p eplbctl"], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.stdout, "complete -o filenames -F _eplbctl eplbctl\n")
        zsh = (self.prefix / "share/zsh/site-functions/_eplbctl").read_text()
        self.assertTrue(zsh.startswith("#compdef eplbctl\n"))
        self.assertIn("complete -c eplbctl", (self.prefix / "share/fish/vendor_completions.d/eplbctl.fish").read_text())
        if not shutil.which("zsh"):
            self.skipTest("no zsh here")
        terminal = ("zmodload zsh/zpty; zpty t zsh -f -i; zpty -w t $'fpath=(" f"{self.prefix}/share/zsh/site-functions" " $fpath); PS1=; "
                    "autoload -U compinit; compinit -u -D; print -r -- rea\"\"dy'; zpty -r -m t line '*ready*' ; zpty -n -w t $'eplbctl comple\\t'; "
                    "zpty -r -m t line '*eplbctl completion*'; print -r -- found; zpty -d t")
        done = subprocess.run(["zsh", "-f", "-c", terminal], capture_output=True, text=True, timeout=DEADLINE,
                              env={**os.environ, "HOME": str(self.prefix), "TERM": "dumb",
                                   "PATH": f"{self.prefix / 'bin'}:{os.environ['PATH']}"})
        self.assertIn("found", done.stdout, done.stderr)

    def test_python_finds_the_library_of_its_prefix(self):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.prefix / "lib/python3/dist-packages")}
        code = "import eplb._library as library; print(library.load()._name)"
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=DEADLINE, env=environment)
        self.assertEqual(done.stdout.strip(), str(self.prefix / "lib/libeplb.so.0"), done.stderr)
        del environment["PYTHONPATH"]
        done = subprocess.run([sys.executable, "-B", self.prefix / "bin/eplb-convert", "--help"], capture_output=True, text=True,
                              timeout=DEADLINE, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Usage: eplbctl join ", done.stdout)
        environment["PYTHONPATH"] = str(self.prefix / "lib/python3/dist-packages")
        done = subprocess.run([sys.executable, "-B", "-m", "eplb.demo", "--sample"], capture_output=True, text=True, timeout=DEADLINE,
                              env=environment)
        self.assertEqual(done.stdout.strip(), str(self.docs / "tests/data/moe64_aux.jsonl"), done.stderr)

    def test_a_program_in_c_is_compiled_by_pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config here")
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "eplb"], capture_output=True, text=True, timeout=DEADLINE, check=True,
                               env={**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}).stdout.split()
        self.assertTrue(any(re.search(r"/moved/", flag) for flag in flags), flags)
        program = self.prefix / "trainer"
        done = subprocess.run(["cc", "-std=c99", "-o", program, self.docs / "deploy/examples/c/trainer.c", *flags], capture_output=True,
                              text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
