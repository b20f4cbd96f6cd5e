"""Hosts of a test: network namespaces with cables between them. Needs root.

A test is skipped with the reason where namespaces cannot be made; EPLB_REQUIRE_NETNS=1 makes that a failure.
"""

import os
import shutil
import subprocess


class Hosts:
    """Three network namespaces in a row. The middle one passes packets between the outer ones until `part`, which drops them
    without a word."""

    LEADER, MIDDLE, RANKS = range(3)
    # Links of the middle host to the leader's and the ranks' host, and between those two.
    INNER, OUTER = ("10.78.1.1", "10.78.2.1"), ("10.78.1.2", "10.78.2.2")

    def __init__(self, test):
        self.names = [f"eplb-{os.getpid()}-{name}" for name in ("leader", "middle", "ranks")]
        test.addCleanup(lambda: [self.run("ip", "netns", "delete", name) for name in self.names])
        commands = [("ip", "netns", "add", name) for name in self.names]
        commands += [("ip", "-n", name, "link", "set", "lo", "up") for name in self.names]
        for side, host in enumerate((self.LEADER, self.RANKS)):
            inner, outer = f"vi{os.getpid() % 100000}{side}", f"vo{os.getpid() % 100000}{side}"
            commands.append(("ip", "link", "add", inner, "netns", self.names[self.MIDDLE], "type", "veth", "peer", "name", outer,
                             "netns", self.names[host]))
            for name, link, address in ((self.names[self.MIDDLE], inner, self.INNER[side]), (self.names[host], outer, self.OUTER[side])):
                commands += [("ip", "-n", name, "addr", "add", f"{address}/24", "dev", link), ("ip", "-n", name, "link", "set", link, "up")]
            commands.append(("ip", "-n", self.names[host], "route", "add", "default", "via", self.INNER[side]))
        for command in commands:
            self.check(test, command)
        self.check(test, self.passes("1"))

    def run(self, *command):
        return subprocess.run(command, capture_output=True, text=True, timeout=20)

    def check(self, test, command):
        problem = "there is no program ip" if shutil.which("ip") is None else self.run(*command).stderr.strip()
        if problem and os.environ.get("EPLB_REQUIRE_NETNS") == "1":
            test.fail(f"{' '.join(command)}: {problem}")
        if problem:
            test.skipTest(f"{' '.join(command)}: {problem}")

    def passes(self, value):
        return ("ip", "netns", "exec", self.names[self.MIDDLE], "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/ip_forward")

    def part(self):
        self.run(*self.passes("0"))

    def start(self, test, host, words, log):
        with open(log, "a") as file:
            process = subprocess.Popen(["ip", "netns", "exec", self.names[host], *map(str, words)], stdout=file, stderr=file)
        test.addCleanup(lambda: (process.kill(), process.wait(10)))
        return process
