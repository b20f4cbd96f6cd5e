"""The HTTP API beside a running job: every path and parameter of /api/v1/openapi.json answers as it is described there, and
every path of the daemon is in it."""

import contextlib
import http.client
import json
import pathlib
import re
import unittest

import jsonschema

import job as harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
DESCRIPTION = {}  # served by the daemon under test
NO_NUMBER = "9x"
# A path without a parameter of this name does not accept it.
UNKNOWN = "colour"


def check(schema, document):
    """Raises with the place of what does not fit."""
    jsonschema.Draft202012Validator(schema, resolver=jsonschema.RefResolver.from_schema(DESCRIPTION)).validate(document)


def resolved(node):
    """Returns the target of a reference of the file; anything else is itself."""
    while isinstance(node, dict) and "$ref" in node:
        target = DESCRIPTION
        for key in node["$ref"].removeprefix("#/").split("/"):
            target = target[key]
        node = target
    return node


class HttpApiTest(harness.DaemonTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.started_daemon(20, "eplbd", "[report]\nevery_steps = 10\n[cost]\ntoken_ns = 50\n")
        DESCRIPTION.update(self.ask("/api/v1/openapi.json")[1])

    def start_job(self):
        job = self.started_job(self.daemon.endpoint, world=4, steps=1000000, step_ms=5,
                               extra=("--job", "train", "--report-every", "10", "--stop-file", self.directory / "stop"))
        harness.wait_for(lambda: any(plan["chunks_committed"] for plan in self.plans()), 120, "a decision that moved experts")
        harness.wait_for(lambda: len(self.ask("/api/v1/jobs/train/windows")[1]["windows"]) > 3, 60, "four windows")
        return job

    def ask(self, target, method="GET"):
        """Status and document; the type is checked too."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.daemon.http_port,
                                                           timeout=30 * harness.PATIENCE)) as connection:
            connection.request(method, target)
            answer = connection.getresponse()
            text = answer.read().decode()
        if method == "HEAD":
            return answer.status, text
        self.assertEqual(answer.headers["Content-Type"], "application/json", target)
        self.assertEqual((text[-1], text.count("\n")), ("\n", 1) if not target.startswith("/api/v1/openapi") else ("\n", text.count("\n")))
        return answer.status, json.loads(text)

    def plans(self):
        status, document = self.ask("/api/v1/jobs/train/plans?limit=1000")
        return document["plans"] if status == 200 else []

    def checked(self, path, target, status=200):
        """The answer, which is what the file says of this status."""
        got, document = self.ask(target)
        self.assertEqual(got, status, f"{target}: {document}")
        responses = DESCRIPTION["paths"][path]["get"]["responses"]
        self.assertIn(str(status), responses, target)
        try:
            check(resolved(responses[str(status)])["content"]["application/json"]["schema"], document)
        except jsonschema.ValidationError as error:
            self.fail(f"{target}: at {list(error.absolute_path)}: {error.message[:500]}")
        return document

    def values(self):
        """A good value of each parameter, as they are now."""
        moved = next(plan for plan in self.plans() if plan["chunks_committed"])
        window = self.ask("/api/v1/jobs/train/windows")[1]["windows"][-1]["window"]
        return {"version": moved["last_version"], "layer": 1, "window": window, "plan": moved["plan"], "after": 1, "limit": 2, "ranks": 0}

    def test_every_path_answers_as_it_is_described(self):
        self.assertEqual(self.checked("/api/v1/jobs", "/api/v1/jobs")["jobs"], [])
        self.start_job()
        for path, item in DESCRIPTION["paths"].items():
            target = path.replace("{job}", "train")
            with self.subTest(path=path):
                self.checked(path, target)
                self.wrong_requests(path, target, [resolved(one) for one in item["get"]["parameters"]])
        job = self.checked("/api/v1/jobs/{job}", "/api/v1/jobs/train")
        self.assertEqual(job, {**job, "world_size": 4, "connected_ranks": 4, "split": "equal"})
        self.assertIsNotNone(job["saved_seconds"])
        self.figures_agree()

    def wrong_requests(self, path, target, parameters):
        query = {one["name"]: one["schema"] for one in parameters if one["in"] == "query"}
        values = self.values()
        for name, schema in query.items():
            self.checked(path, f"{target}?{name}={values[name]}")
            self.checked(path, f"{target}?{name}={NO_NUMBER}", 400)
            self.checked(path, f"{target}?{name}=-1", 400)
            self.checked(path, f"{target}?{name}={schema['maximum'] + 1}", 400)
            self.checked(path, f"{target}?{name}=1&{name}=2", 400)
        if query:
            self.checked(path, target + "?" + "&".join(f"{name}={values[name]}" for name in query))
        self.checked(path, f"{target}?{UNKNOWN}=1", 400)
        if "{job}" in path:
            self.checked(path, path.replace("{job}", "other"), 404)
        for name in {"version", "window", "plan"} & set(query):
            self.checked(path, f"{target}?{name}=900000", 404)
        if "layer" in query:
            self.checked(path, f"{target}?layer=900000", 400)
        self.assertEqual(self.ask(target, "HEAD")[0], 200)
        self.assertEqual(self.ask(target, "POST")[0], 405)

    def figures_agree(self):
        """Two paths show one window, or one decision, alike."""
        values = self.values()
        window = values["window"]
        figures = next(one for one in self.ask("/api/v1/jobs/train/windows?limit=4096")[1]["windows"] if one["window"] == window)
        load = self.ask(f"/api/v1/jobs/train/load?window={window}")[1]
        gpus = self.ask(f"/api/v1/jobs/train/gpu_loads?window={window}")[1]
        tokens = sum(map(sum, load["load"]))
        self.assertEqual(figures["tokens"], tokens)
        self.assertAlmostEqual(sum(map(sum, gpus["gpu_loads"])), tokens, delta=1e-6 * tokens)
        self.assertAlmostEqual(sum(map(sum, gpus["gpu_loads_static"])), tokens, delta=1e-6 * tokens)
        mean = sum(sum(row) / len(row) / max(row) for row in gpus["gpu_loads"]) / len(gpus["gpu_loads"])
        self.assertAlmostEqual(figures["balancedness"], mean, places=9)
        traffic = self.ask(f"/api/v1/jobs/train/traffic?plan={values['plan']}")[1]
        plan = next(one for one in self.plans() if one["plan"] == values["plan"])
        self.assertEqual(traffic["last_version"], plan["last_version"])
        if plan["result"] == "committed":
            self.assertEqual(traffic["transfers"], plan["transfers"])
        layer = self.ask(f"/api/v1/jobs/train/placement?version={values['version']}&layer=1")[1]
        whole = self.ask(f"/api/v1/jobs/train/placement?version={values['version']}")[1]
        self.assertEqual(layer["experts"], whole["placement"]["physical_to_logical_map"][1])
        self.assertEqual(layer["primaries"], [slots[0] for slots in whole["placement"]["logical_to_physical_map"][1]])

    def events_after(self, sequence):
        """All events of the job above `sequence`, oldest first, asked for in pages of two."""
        events = []
        while page := self.ask(f"/api/v1/jobs/train/events?after={sequence}&limit=2")[1]["events"]:
            events += reversed(page)
            sequence = events[-1]["sequence"]
        return events

    def test_a_reader_that_asks_on_misses_no_event_and_a_forgotten_job_keeps_its_log(self):
        job = self.start_job()
        seen = self.events_after(1)
        (self.directory / "stop").touch()
        self.assertEqual(job.wait(120), [0, 0, 0, 0])
        forgotten = harness.eplbctl("forget", "train", "--endpoint", self.daemon.endpoint)
        self.assertEqual(forgotten.returncode, 0, forgotten.stderr)
        seen += self.events_after(seen[-1]["sequence"])
        stored = self.checked("/api/v1/jobs/{job}/events", "/api/v1/jobs/train/events?limit=1000")["events"]
        self.assertEqual(seen, [one for one in stored[::-1] if one["sequence"] > 1])
        self.assertLessEqual({"committed", "forget"}, {one["name"] for one in seen})
        self.checked("/api/v1/jobs/{job}/windows", "/api/v1/jobs/train/windows", 404)

    def test_the_file_has_every_path_and_parameter_of_the_daemon_and_no_other(self):
        source = (ROOT / "server" / "http" / "api.cc").read_text(encoding="utf-8")
        table = re.search(r"kRoutes\[\] = \{(.*?)\};", source, re.S)[1]
        names = re.findall(r'\{"([a-z_]*)", ', table)
        self.assertGreater(len(names), 7)
        described = {f"/api/v1/jobs/{{job}}/{name}" if name else "/api/v1/jobs/{job}" for name in names}
        self.assertEqual(described | {"/api/v1/jobs", "/api/v1/openapi.json"}, set(DESCRIPTION["paths"]))
        for path, item in DESCRIPTION["paths"].items():
            parameters = [resolved(one)["name"] for one in item["get"]["parameters"] if resolved(one)["in"] == "query"]
            said = self.ask(path.replace("{job}", "x") + f"?{UNKNOWN}=1")[1]["error"]
            self.assertEqual(said, f'unknown parameter "{UNKNOWN}", expected {", ".join(parameters) or "none"}', path)

    def test_its_schemas_are_strict_and_explained(self):
        schemas = DESCRIPTION["components"]["schemas"]
        for name, schema in schemas.items():
            jsonschema.Draft202012Validator.check_schema(schema)
            self.assertGreater(len(schema["description"]), 10, name)
            if schema["type"] != "object":
                continue
            self.assertIs(schema["additionalProperties"], False, name)
            optional = {"slots_per_gpu"} if name == "Placement" else set()
            self.assertEqual(set(schema["properties"]) - set(schema["required"]), optional, name)
            for key, value in schema["properties"].items():
                self.assertTrue({"description", "const", "$ref"} & set(value), f"{name}.{key}")
        for path, item in DESCRIPTION["paths"].items():
            for parameter in map(resolved, item["get"]["parameters"]):
                self.assertGreater(len(parameter["description"]), 5, f"{path} {parameter['name']}")
        # A check that finds nothing would check nothing.
        for wrong in ({}, {"error": ""}, {"error": 1}, {"error": "x", "more": 1}):
            with self.assertRaises(jsonschema.ValidationError):
                check(schemas["Error"], wrong)


if __name__ == "__main__":
    unittest.main()
