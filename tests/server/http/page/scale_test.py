"""The page with a job of 512 GPUs, 61 layers and 256 experts: what it transfers, and how fluent it stays.

The documents are synthetic and come from a small server of this test, in the form of the API. Figures are printed; the two
limits are those of the page: less than 2 MB until it is drawn, more than 30 frames a second while the slider moves.
"""

import gzip
import http.server
import json
import pathlib
import random
import sys
import threading
import unittest
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import browser  # noqa: E402

PAGE = HERE.parents[3] / "server" / "http" / "page"
UPLOT = next(iter((HERE.parents[3] / "build").glob("*/npm/uplot-*/package/dist")), None)
FIGURES = next((path.parent for path in (HERE.parents[3] / "build").glob("*/server/http/page/figures.js")), None)
GPUS, LAYERS, EXPERTS, WINDOWS, PLANS = 512, 61, 256, 100, 100
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8"}
MISSING = browser.missing() or ("" if UPLOT and FIGURES else "no build tree has uPlot and figures.js: build page_assets first")


def documents():
    """By path, as functions of the query."""
    draw = random.Random(7)
    shape = {"num_layers": LAYERS, "num_logical_experts": EXPERTS, "num_slots": GPUS, "num_gpus": GPUS, "num_nodes": 64}
    ranks = [{"rank": rank, "connected": True, "running_version": 9, "prepared_version": 0, "step": 5000, "away_seconds": 0,
              "answer": "", "answer_seconds": draw.random() / 50, "pause_seconds": draw.random() / 20, "dropped_steps": 0,
              "library_version": "0.1.0", "state": "connected",
              "transport": {"name": "nccl", "fallback_reason": "", "device": 0, "device_name": "NVIDIA H100 80GB HBM3",
                            "nccl_version": "2.28.9", "nccl_library": "libnccl.so.2", "settings": {}}} for rank in range(GPUS)]
    status = {"job": "large", "run_id": "run-1", "state": "IDLE", "state_seconds": 1, "waiting_for": "", **shape, "world_size": GPUS,
              "connected_ranks": GPUS, "step": 5000, "version": 9, "balancedness": 0.9, "balancedness_static": 0.5, "balancedness_without_eplb": 0.55,
              "worse_reason": "", "commits": 9,
              "last_reason": "r" * 400, "ranks": [], "paused": False, "pause_reason": "", "policy": {"name": "auto"},
              "model_layers": [], "end_reason": "", "stuck_seconds": 0, "balancedness_predicted": 0.9, "balancedness_seen": 0.89,
              "measured_first_step": 4950, "measured_last_step": 4999, "layer_balancedness": [0.9] * LAYERS, "stalled": "",
              "stalled_reason": "", "step_seconds": 1, "refusal": "", "split": "equal", "gpu_speeds": [], "prediction_error": 0.02,
              "candidates": [], "saved_seconds": 900.5, "spent_seconds": 3.25}
    windows = [{"window": i + 1, "completed": "", "completed_unix_micros": (i + 1) * 50_000_000, "run_id": "run-1", "first_step": 50 * i,
                "last_step": 50 * i + 49, "versions": [i // 12], "coverage": 1, "step_seconds": 1, "tokens": 10**9, "split": "equal",
                "balancedness": 0.5 + 0.4 * i / WINDOWS, "balancedness_equal": 0.5 + 0.4 * i / WINDOWS, "balancedness_static": 0.5,
                "balancedness_without_eplb": 0.55, "has_loads": True} for i in range(WINDOWS)]
    plans = [{"plan": PLANS - i, "unix_micros": 10**9, "policy": "auto", "result": "committed", "base_version": 8, "first_version": 9,
              "last_version": 9, "decided_first_step": 50, "decided_last_step": 99, "balancedness_before": 0.6,
              "balancedness_predicted": 0.8, "peak_fall": 0.2, "net_gain_seconds": 9, "migration_seconds": 0.1, "transfers": 2000,
              "received_bytes": 10**11, "num_chunks": 1, "chunks_committed": 1, "solve_seconds": 0.3, "prepare_seconds": 0.02,
              "pause_seconds": 0.05, "switched_step": 50 * (PLANS - i), "reason": "s" * 600, "asked_by": "", "balancedness_seen": 0.79,
              "prediction_error": 0.03, "prediction_evidence": 5, "candidates": [{"name": f"policy/{k}", "in_use": False, "windows": 9, "balancedness": 0.8,
                                                        "net_seconds": 4.5, "realized": 0.8} for k in range(18)]} for i in range(PLANS)]

    def rows(seed, columns):
        source = random.Random(seed)
        return [[source.randrange(10_000, 90_000) for _ in range(columns)] for _ in range(LAYERS)]

    def gpu_loads(query):
        window = int(query.get("window", WINDOWS))
        return {"job": "large", "window": window, "first_step": 50 * window - 50, "last_step": 50 * window - 1, "versions": [8],
                "split": "equal", "gpu_loads": rows(window, GPUS), "gpu_loads_static": rows(-window, GPUS)}

    job = "/api/v1/jobs/large"
    return {
        "/api/v1/jobs": lambda query: {"jobs": [{**status, "job": name} for name in ["large", *(f"job-{i}" for i in range(19))]],
                                       "jobs_hidden": False, "refusals": [], "warnings": []},
        job: lambda query: {**status, "ranks": ranks},
        job + "/windows": lambda query: {"job": "large", "windows": [one for one in windows if one["window"] > int(query.get("after", 0))]},
        job + "/plans": lambda query: {"job": "large", "plans": plans},
        job + "/events": lambda query: {"job": "large", "events": [
            {"sequence": 900 - i, "unix_micros": 10**9 + i, "time": "", "job": "large", "name": "committed", "version": 9,
             "reason": f"version {i} was committed", "actor": "", "before": "", "after": ""} for i in range(900)]},
        job + "/gpu_loads": gpu_loads,
        job + "/load": lambda query: {"job": "large", "first_step": 0, "last_step": 49, "first_layer": 0, "load": rows(3, EXPERTS)[:1],
                                      "gpu_loads": [], "versions": []},
        job + "/placement": lambda query: {"job": "large", "version": 9, "digest": "", "layer": 0, "num_gpus": GPUS, "num_nodes": 64,
                                           "experts": [slot % EXPERTS for slot in range(GPUS)], "gpus": list(range(GPUS)),
                                           "primaries": list(range(EXPERTS))},
        job + "/traffic": lambda query: {"job": "large", "plan": PLANS, "base_version": 8, "last_version": 9, "num_gpus": GPUS,
                                         "num_nodes": 64, "transfers": 4000, "cross_node_transfers": 900, "received_bytes": 10**11,
                                         "gpus": [[i % GPUS, i * 7 % GPUS, 1] for i in range(4000)],
                                         "nodes": [[i % 64, i * 5 % 64, 62] for i in range(64)]},
    }


class Handler(http.server.BaseHTTPRequestHandler):
    answers = documents() if not MISSING else {}
    sent = 0
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def do_GET(self):  # noqa: N802, the base class's name
        path, _, query = self.path.partition("?")
        name = "index.html" if path == "/" else path.rsplit("/", 1)[-1]
        if path in self.answers:
            body, kind = json.dumps(self.answers[path](dict(urllib.parse.parse_qsl(query))), separators=(",", ":")).encode(), "application/json"
        else:
            folder = UPLOT if name.startswith("uPlot") else FIGURES if name == "figures.js" else PAGE
            real = {"uPlot.js": "uPlot.iife.min.js", "uPlot.css": "uPlot.min.css"}.get(name, name)
            body, kind = (folder / real).read_bytes(), TYPES[pathlib.Path(name).suffix]
        body = gzip.compress(body, 6)  # same as the daemon's library
        with Handler.lock:
            Handler.sent += len(body)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except BrokenPipeError:
            pass  # the page does not want a window any more


@unittest.skipIf(MISSING, MISSING)
class ScaleTest(unittest.TestCase):
    def test_a_large_job_is_light_and_fluent(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        one = browser.Browser()
        self.addCleanup(one.close)
        one.open(f"http://127.0.0.1:{server.server_port}/#/large")
        one.wait("eplb.main.data()?.job && document.querySelector('#heat canvas').width === 512")
        one.wait("document.querySelector('#layer svg') !== null && document.querySelector('#traffic canvas').width === 512")
        sent = Handler.sent
        # Windows that were fetched stay in the page: the second way over the slider draws without the network.
        one.value("""(async () => {
          const slider = document.querySelector('#heat input');
          for (let at = 60; at <= 99; ++at) {
            slider.value = String(at);
            slider.dispatchEvent(new Event('input'));
            await new Promise((resolve) => setTimeout(resolve, 60));
          }
        })()""")
        frames = one.value("""(async () => {
          const slider = document.querySelector('#heat input');
          const times = [];
          for (let at = 99; at >= 60; --at) {
            slider.value = String(at);
            slider.dispatchEvent(new Event('input'));
            times.push(await new Promise((resolve) => requestAnimationFrame(resolve)));
          }
          return 1000 * (times.length - 1) / (times[times.length - 1] - times[0]);
        })()""")
        print(f"transferred until drawn: {sent / 1e6:.2f} MB; slider: {frames:.0f} frames/s", file=sys.stderr)
        self.assertLess(sent, 2e6)
        self.assertGreater(frames, 30)
        self.assertEqual(one.ask("seen")["errors"], [])


if __name__ == "__main__":
    unittest.main()
