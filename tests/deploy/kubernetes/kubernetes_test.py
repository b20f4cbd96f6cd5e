"""The manifests of deploy/kubernetes: rendered as Kustomize does, checked against the API, and what they say of the daemon
against it.
"""

import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.request

import yaml

try:
    import api_schema
except ImportError:
    api_schema = None

ROOT = pathlib.Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
BIN = pathlib.Path(os.environ["EPLB_BIN"])
DEADLINE = 60


def render(folder):
    """returns: the resources, or None where no Kustomize is installed."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, folder], capture_output=True, text=True, timeout=DEADLINE, check=True)
            return list(yaml.safe_load_all(done.stdout))
    return None


def base_files():
    listed = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())["resources"]
    return [yaml.safe_load((KUBERNETES / "base" / name).read_text()) for name in listed]


def one(resources, kind, name="eplb"):
    found, = [resource for resource in resources if resource["kind"] == kind and resource["metadata"]["name"] == name]
    return found


class SchemaTest(unittest.TestCase):
    def setUp(self):
        if api_schema is None:
            self.skipTest("the package kubernetes is not installed: tests/environment")

    def test_the_base_is_of_the_api(self):
        for resource in base_files():
            api_schema.check_resource(resource)

    def test_what_is_applied_is_of_the_api(self):
        for folder in (KUBERNETES / "base", KUBERNETES / "overlays/ha"):
            resources = render(folder)
            if resources is None:
                self.skipTest("neither kustomize nor kubectl is installed")
            self.assertGreaterEqual(len(resources), 6)
            for resource in resources:
                api_schema.check_resource(resource)

    def test_mistakes_would_be_noticed(self):
        def changed(change):
            resource = copy.deepcopy(one(base_files(), "StatefulSet"))
            change(resource["spec"]["template"]["spec"], resource["spec"])
            return resource

        mistakes = {
            "containers[0].prots: V1Container has no such key": lambda pod, _: pod["containers"][0].update(prots=[]),
            "replicas is \"1\", expected int": lambda _, spec: spec.update(replicas="1"),
            "runAsNonRoot is \"yes\", expected bool": lambda pod, _: pod["securityContext"].update(runAsNonRoot="yes"),
            "`selector`": lambda _, spec: spec.pop("selector"),
            "memory is '4GiB', expected a quantity": lambda pod, _: pod["containers"][0]["resources"]["limits"].update(memory="4GiB"),
        }
        for message, change in mistakes.items():
            with self.assertRaisesRegex(ValueError, re.escape(message)):
                api_schema.check_resource(changed(change))
        monitor = copy.deepcopy(one(base_files(), "PodMonitor"))
        monitor["spec"]["podMetricsEndpoints"][0]["interval"] = "15"
        with self.assertRaisesRegex(ValueError, "interval"):
            api_schema.check_resource(monitor)


class DaemonTest(unittest.TestCase):
    """Promises of the manifests about the daemon."""

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="eplb-k8s-")))
        self.stateful = one(base_files(), "StatefulSet")
        self.pod = self.stateful["spec"]["template"]["spec"]
        self.container = self.pod["containers"][0]

    def write_configuration(self, source):
        """The file as it is mounted, with certificates where a test may write."""
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=eplb", "-days", "2", "-keyout", "tls.key",
                        "-out", "tls.crt"], cwd=self.directory, check=True, capture_output=True)
        shutil.copy(self.directory / "tls.crt", self.directory / "ca.crt")
        path = self.directory / "eplbd.toml"
        path.write_text(source.read_text().replace("/etc/eplb/tls/", f"{self.directory}/"))
        return path

    def flags(self, configuration):
        return [str(configuration) if flag == "/etc/eplb/config/eplbd.toml" else flag for flag in self.container["args"]]

    def test_the_daemon_takes_configuration_and_flags_and_its_probes_are_answered(self):
        flags = self.flags(self.write_configuration(KUBERNETES / "base/eplbd.toml"))
        check = subprocess.run([BIN / "eplbd", *flags, "--check-config"], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(check.returncode, 0, check.stderr)
        environment = {**os.environ, "STATE_DIRECTORY": str(self.directory), "RUNTIME_DIRECTORY": str(self.directory)}
        daemon = subprocess.Popen([BIN / "eplbd", *flags, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], env=environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(daemon.stdout.close)
        self.addCleanup(daemon.wait, DEADLINE)
        self.addCleanup(daemon.kill)
        http = json.loads(daemon.stdout.readline())["http"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = self.container[probe]["httpGet"]["path"]
            with urllib.request.urlopen(f"http://{http}{path}", timeout=DEADLINE) as answer:
                self.assertEqual(answer.status, 200, probe)
        # The health check of the image, on the socket.
        health = subprocess.run([BIN / "eplbctl", "status"], capture_output=True, text=True, timeout=DEADLINE,
                                env={**environment, "EPLB_ENDPOINT": f"unix:{self.directory}/eplbd.sock"})
        self.assertEqual(health.returncode, 0, health.stderr)
        grace = subprocess.run([BIN / "eplbd", *flags, "--print-config"], capture_output=True, text=True, timeout=DEADLINE).stdout
        seconds = float(re.search(r'^\[drain\]\n(?:.*\n)*?grace = "(\d+)s"', grace, flags=re.M)[1])
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"], seconds + 10)

    def test_the_overlay_differs_in_its_store_alone(self):
        path = self.write_configuration(KUBERNETES / "overlays/ha/eplbd.toml")
        container = yaml.safe_load((KUBERNETES / "overlays/ha/statefulset-patch.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
        advertised = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        environment = {**os.environ, **{name: value.replace("$(POD_NAME)", "eplb-0").replace("$(POD_NAMESPACE)", "train") for name, value in advertised.items()}}
        done = subprocess.run([BIN / "eplbd", "--check-config", "--config", path, "--insecure-network"], capture_output=True, text=True,
                              env=environment, timeout=DEADLINE)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_names_ports_and_accounts_agree(self):
        resources = base_files()
        mounts = {mount["name"] for mount in self.container["volumeMounts"]}
        volumes = {volume["name"] for volume in self.pod["volumes"]}
        claims = {claim["metadata"]["name"] for claim in self.stateful["spec"]["volumeClaimTemplates"]}
        self.assertEqual(mounts, volumes | claims)
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        configuration = (KUBERNETES / "base/eplbd.toml").read_text()
        for name, port in ports.items():
            self.assertRegex(configuration, rf'{name} = "0\.0\.0\.0:{port}"')
        labels = self.stateful["spec"]["template"]["metadata"]["labels"]
        for name in ("eplb", "eplb-peers"):
            service = one(resources, "Service", name)["spec"]
            self.assertEqual(service["selector"], labels)
            self.assertEqual([(port["name"], port["port"]) for port in service["ports"]], [("grpc", ports["grpc"])])
        self.assertEqual(self.stateful["spec"]["serviceName"], "eplb-peers")
        self.assertEqual(one(resources, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"], labels)
        self.assertEqual(one(resources, "PodMonitor")["spec"]["selector"]["matchLabels"], labels)
        image = (ROOT / "deploy/container/Containerfile").read_text()
        account = self.pod["securityContext"]["runAsUser"]
        self.assertIn(f"USER {account}:{account}", image)
        for name, mount in (("STATE_DIRECTORY", "/var/lib/eplb"), ("RUNTIME_DIRECTORY", "/run/eplb")):
            self.assertIn(f"{name}={mount}", image)
            self.assertIn(mount, [one["mountPath"] for one in self.container["volumeMounts"]])
        version = re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertIn(f'newTag: "{version}"', (KUBERNETES / "base/kustomization.yaml").read_text())

    def test_the_overlay_has_three_daemons_on_three_nodes_and_no_volume(self):
        resources = render(KUBERNETES / "overlays/ha")
        if resources is None:
            self.skipTest("neither kustomize nor kubectl is installed")
        stateful = one(resources, "StatefulSet")["spec"]
        self.assertEqual(stateful["replicas"], 3)
        self.assertNotIn("volumeClaimTemplates", stateful)
        self.assertIn("store", [volume["name"] for volume in stateful["template"]["spec"]["volumes"]])
        self.assertEqual(one(resources, "PodDisruptionBudget")["spec"]["maxUnavailable"], 1)
        configuration, = [r for r in resources if r["kind"] == "ConfigMap"]
        self.assertIn('backend = "etcd"', configuration["data"]["eplbd.toml"])


if __name__ == "__main__":
    unittest.main()
