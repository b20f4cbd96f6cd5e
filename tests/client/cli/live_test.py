"""top and --watch on a terminal: their frames, their keys, and what is left of the terminal after them."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from command import DEADLINE, EPLBCTL, CommandTest

EPLBD = EPLBCTL.parent / "eplbd"
LEFT = "\x1b[?25h\x1b[?1049l"  # the cursor again, and the screen from before


class OnTerminal:
    """eplbctl on a pseudo-terminal of its own, as in a window of a user."""

    def __init__(self, *arguments, rows=24, columns=80):
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.execve(EPLBCTL, [str(EPLBCTL), *map(str, arguments)],
                      {**{name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")},
                       "TERM": "xterm", "HOME": "/nonexistent", "LANG": "C.UTF-8"})
        self.before = termios.tcgetattr(self.terminal)
        self.text = ""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds=0.05):
        """Reads what the terminal received. Returns False once it is closed."""
        try:
            while select.select([self.terminal], [], [], seconds)[0]:
                data = os.read(self.terminal, 65536)
                if not data:
                    return False
                self.text += data.decode(errors="replace")
                seconds = 0
        except OSError:  # the other side is closed
            return False
        return True

    def frame(self):
        """The lines of the newest whole frame, without colours."""
        frames = self.text.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;]*[mK]", "", frames).replace("\r", "").split("\n")

    def wait_for(self, condition, what):
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            self.read()
            if condition("\n".join(self.frame())):
                return self.frame()
        raise AssertionError(f"no frame {what}; the last:\n" + "\n".join(self.frame()))

    def press(self, keys):
        os.write(self.terminal, keys.encode())

    def end(self):
        """The status that the process ends with, everything it wrote read, and the seconds that it took."""
        begin = time.monotonic()
        while time.monotonic() < begin + DEADLINE:
            open_still = self.read()
            ended, status = os.waitpid(self.process, os.WNOHANG)
            if ended:
                if open_still:
                    self.read()
                return os.waitstatus_to_exitcode(status), time.monotonic() - begin
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        raise AssertionError("it does not end; its last frame:\n" + "\n".join(self.frame()))


class LiveTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.endpoint = f"unix:{self.directory}/eplbd.sock"
        self.start_daemon()

    def start_daemon(self):
        self.daemon = subprocess.Popen(
            [EPLBD, "--listen", self.endpoint, "--http", "127.0.0.1:0", "--store", self.directory / "eplbd.db"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.end_daemon, self.daemon)
        self.assertEqual(json.loads(self.daemon.stdout.readline())["event"], "listening")

    def end_daemon(self, daemon):
        daemon.send_signal(signal.SIGCONT)
        daemon.kill()
        daemon.wait(DEADLINE)
        daemon.stdout.close()

    def watch(self, *arguments, **window):
        screen = OnTerminal("status", "--watch", "--endpoint", self.endpoint, *arguments, **window)
        self.addCleanup(os.close, screen.terminal)
        return screen

    def assert_restored(self, screen):
        self.assertEqual(termios.tcgetattr(screen.terminal), screen.before)
        self.assertEqual(screen.text.count("\x1b[?1049h"), screen.text.count("\x1b[?1049l"))

    def test_a_daemon_that_goes_away_leaves_its_last_frame_with_the_error_above_it(self):
        screen = self.watch("--interval", "100ms")
        screen.wait_for(lambda text: "ready" in text, "of a daemon")
        self.daemon.kill()
        self.daemon.wait(DEADLINE)
        gone = screen.wait_for(lambda text: "cannot reach" in text, "with the error")
        self.assertRegex(" ".join(gone), r"\Acannot reach .*; the last answer is (less than )?\d+ s old eplbd .* ready")
        self.assertNotIn("\x1b[2J", screen.text)
        self.start_daemon()
        screen.wait_for(lambda text: text.startswith("eplbd "), "of the daemon that is back")
        screen.press("q")
        self.assertEqual(screen.end()[0], 0)
        self.assert_restored(screen)
        # The last frame stays in the window.
        self.assertRegex(screen.text.rpartition(LEFT)[2], r"\A.*eplbd .*ready")

    def test_ctrl_c_ends_it_by_the_signal(self):
        screen = self.watch()
        screen.wait_for(lambda text: "ready" in text, "of a daemon")
        self.assertNotEqual(termios.tcgetattr(screen.terminal), screen.before)  # keys without Enter
        screen.press("\x03")
        self.assertEqual(screen.end()[0], -signal.SIGINT)
        self.assert_restored(screen)

    def test_a_frame_fits_and_is_drawn_anew_for_a_window_of_another_size(self):
        screen = self.watch("--interval", "1h", rows=2, columns=20)
        small = screen.wait_for(lambda text: "more line" in text, "that is cut")
        self.assertEqual((len(small), small[-1]), (2, "... 2 more lines"))
        self.assertLessEqual(max(map(len, small)), 20)
        for keys, last in (("j", "... 1 line above, 1 "), ("\x1b[B", "... 2 lines above"), ("\x1b[5~", "... 1 line above, 1 "), ("G", "... 2 lines above"),
                           ("k", "... 1 line above, 1 "), ("g", "... 2 more lines"), (" ", "... 1 line above, 1 ")):
            screen.press(keys)
            screen.wait_for(lambda text: text.endswith("\n" + last), f"after {keys!r}")  # noqa: B023
        screen.resize(24, 80)
        large = screen.wait_for(lambda text: "more line" not in text, "for the larger window")
        self.assertEqual(large[-1], "no job has connected yet")
        screen.press("q")
        self.assertEqual(screen.end()[0], 0)
        self.assert_restored(screen)

    def test_keys_are_heard_while_a_daemon_does_not_answer(self):
        screen = self.watch("--interval", "100ms", "--timeout", "50s")
        screen.wait_for(lambda text: "ready" in text, "of a daemon")
        self.daemon.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # the question that will not be answered is asked
        screen.press("q")
        status, seconds = screen.end()
        self.assertEqual(status, 0)
        self.assertLess(seconds, 20)
        self.assert_restored(screen)

    def test_a_first_failure_and_a_last_frame_are_plain_output(self):
        screen = OnTerminal("status", "--watch", "--endpoint", f"unix:{self.directory}/nobody.sock")
        self.addCleanup(os.close, screen.terminal)
        self.assertEqual(screen.end()[0], 3)
        self.assertRegex(screen.text, r"\Aeplbctl: cannot reach unix:[^\n]*: no such file or directory\r\n\Z")
        once = self.watch("--count", "1")
        self.assertEqual(once.end()[0], 0)
        self.assertNotIn("\x1b[H", once.text)
        self.assertIn("ready", once.text)

    def test_json_on_a_terminal_is_lines(self):
        screen = self.watch("-o", "json", "--interval", "100ms", "--count", "3")
        self.assertEqual(screen.end()[0], 0)
        self.assertEqual([json.loads(line)["ready"] for line in screen.text.splitlines()], [True] * 3)


if __name__ == "__main__":
    unittest.main()
