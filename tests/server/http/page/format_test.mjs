// Numbers and sentences of the page, without a browser: node --test format_test.mjs
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const { format, series } = createRequire(import.meta.url)(path.join(here, "../../../../server/http/page/format.js"));

test("seconds have three digits and a unit that fits", () => {
  const cases = [[0, "0 s"], [0.0058, "5.80 ms"], [0.0585, "58.5 ms"], [0.585, "585 ms"], [1.25, "1.25 s"], [75, "1.25 min"],
    [5400, "1.50 h"], [-0.326, "−326 ms"], [2e-6, "2.00 µs"], [null, "–"], [NaN, "–"], [Infinity, "–"]];
  for (const [value, text] of cases) assert.equal(format.seconds(value), text);
  assert.equal(format.savedText({ saved_seconds: 5 }), "5.00 s");
  assert.equal(format.savedText({ saved_seconds: 5, saved_is_assumed: true }), "≈ 5.00 s");
  assert.equal(format.savedText({ saved_seconds: null }), null);
});
test("bytes have the units of the command line", () => {
  for (const [value, text] of [[0, "0 B"], [999, "999 B"], [1000, "1.00 kB"], [329700, "330 kB"], [3e9, "3.00 GB"], [null, "–"]]) {
    assert.equal(format.bytes(value), text);
  }
});
test("a balancedness that is not known is a dash, not a zero", () => {
  assert.equal(format.balancedness(0), "–");
  assert.equal(format.balancedness(0.8614), "0.861");
});
test("a figure has the form of its unit, its range and its error", () => {
  const cases = [[{ unit: "COUNT" }, 1234, "1,234"], [{ unit: "RATIO" }, 0.8614, "0.861"], [{ unit: "PERCENT" }, 0.5, "50.0 %"], [{ unit: "SECONDS" }, 0.5, "500 ms"],
    [{ unit: "BYTES" }, 1024, "1.02 kB"], [{ unit: "UNIX_MICROS" }, 1.5e15, "2017-07-14 02:40:00"], [{ unit: "RATIO" }, null, "–"], [{}, 1234, "1234"], [{}, "idle", "idle"],
    [{}, "", "–"], [{}, [3, 4], "3, 4"], [{}, [], "–"], [{}, { name: "nccl" }, "nccl"], [{}, null, "–"], [{}, true, "yes"], [{}, 0, "0"], [{ zero_is_none: true }, 0, "–"],
    [{ to: "last" }, 10, "10..19"], [{ to: "none" }, 10, "10"], [{ to: "last" }, null, "–"], [{ unit: "RATIO", error: "error" }, 0.8, "0.800 ± 0.030"],
    [{ unit: "RATIO", digits: 4 }, 0.8614, "0.8614"], [{ unit: "PERCENT", digits: 2 }, 0.5, "50.00 %"], [{ unit: "RATIO", error: "none" }, 0.8, "0.800 (computed)"], [{ unit: "RATIO", error: "error" }, null, "–"]];
  for (const [field, value, text] of cases) assert.equal(format.figure({ key: "it", ...field }, { it: value, last: 19, error: 0.03, none: null }), text);
});
test("one is singular, and long lists end in a number", () => {
  assert.equal(format.counted(1, "rank"), "1 rank");
  assert.equal(format.counted(1200, "rank"), "1,200 ranks");
  assert.equal(format.listed([0, 1, 2, 3, 4], "rank"), "ranks 0, 1, 2 and 2 more");
  assert.equal(format.listed([7], "rank"), "rank 7");
});

const JOB = { state: "IDLE", stuck_seconds: 0, stalled: "", stalled_reason: "", refusal: "", paused: false, pause_reason: "", end_reason: "",
  waiting_for: "", world_size: 4, connected_ranks: 4, step: 99, balancedness: 0.9, balancedness_without_eplb: 0.6, worse_reason: "" };
test("trouble comes before figures", () => {
  assert.deepEqual(format.sentence(JOB), { kind: "good", text: "No rebalance in flight" });
  const cases = [[{ state: "QUARANTINE", waiting_for: "an operator" }, "bad", "QUARANTINE"], [{ stalled: "coverage", stalled_reason: "rank 3 is silent" }, "bad", "rank 3 is silent"],
    [{ stuck_seconds: 90, waiting_for: "rank 2" }, "bad", "Stuck for 1.50 min: waits for rank 2"], [{ connected_ranks: 3 }, "busy", "1 rank of 4 not connected"],
    [{ paused: true, pause_reason: "paused by an operator: for a test" }, "busy", "for a test"], [{ state: "FAILED", end_reason: "rank 1 failed" }, "bad", "rank 1 failed"],
    [{ state: "FINISHED", end_reason: "" }, "ended", "finished at step 99"], [{ balancedness: null }, "good", "No complete load window yet"],
    [{ balancedness: null, not_measured_reason: "no tokens were counted in steps 0..9" }, "good", "no tokens were counted in steps 0..9"],
    [{ not_counting_reason: "rank 1 has counted no token since step 0", stalled: "decisions" }, "bad", "NOT_COUNTING: rank 1 has counted no token"],
    [{ balancedness: 0.851, balancedness_without_eplb: 0.876 }, "busy", "than without EPLB"], [{ saved_seconds: -1 }, "busy", "than without EPLB"],
    [{ saved_seconds: -1, last_switched_step: 90, step_seconds: 1 }, "good", "No rebalance"], [{ saved_seconds: -1, last_switched_step: 9, step_seconds: 20 }, "busy", "than without EPLB"],
    [{ saved_seconds: -1, last_switched_step: null, step_seconds: 1 }, "busy", "than without EPLB"], [{ saved_seconds: -1, state: "FINISHED" }, "ended", "finished"],
    [{ refusal: "rank 0 is older" }, "busy", "A rank was refused"], [{ candidate: { run_id: "b2" }, state: "FINISHED" }, "busy", "A newer run, b2"],
    [{ balancedness_without_eplb: null }, "good", "No rebalance"], [{ worse_reason: "less even than" }, "busy", "less even than"],
    [{ state: "PREPARING", waiting_for: "rank 3" }, "good", "Rebalancing: waits for rank 3"],
    [{ state: "RECOVERING", waiting_for: "the ranks to register", world_size: null, connected_ranks: 0, step: null }, "busy", "Waits for the ranks to register"],
    [{ policy: { mode: "observe" } }, "good", "No rebalance in flight; observes only"]];
  for (const [change, kind, text] of cases) {
    const shown = format.sentence({ ...JOB, ...change });
    assert.equal(shown.kind, kind);
    assert.ok(shown.text.includes(text), shown.text);
  }
});

test("a line has at most 72 characters and ends with a clause, or with a word", () => {
  const cases = [["short", "short"], ["x".repeat(72), "x".repeat(72)], ["x".repeat(73), `${"x".repeat(71)}…`],
    [`${"a".repeat(40)}. ${"b".repeat(40)}`, `${"a".repeat(40)}…`], [`${"a".repeat(40)}, ${"b".repeat(40)}`, `${"a".repeat(40)}…`], [`a, ${"b".repeat(60)} ${"c".repeat(20)}`, `a, ${"b".repeat(60)}…`]];
  for (const [text, line] of cases) assert.equal(format.brief(text), line);
});
test("a long name is cut in the middle", () => {
  const name = `prod-moe-${"x".repeat(50)}-run-01`;
  assert.equal(format.briefName("short"), "short");
  assert.equal(format.briefName(name).length, 48);
  assert.match(format.briefName(name), /^prod-moe-x+…x+-run-01$/);
});
test("an event stands at the step of its time", () => {
  const windows = [{ first_step: 0, last_step: 9, completed_unix_micros: 100 }, { first_step: 10, last_step: 19, completed_unix_micros: 200 }];
  for (const [micros, step] of [[50, 0], [150, 14], [200, 19], [900, 19]]) assert.equal(series.stepAt(windows, micros), step);
  assert.equal(series.stepAt([{ first_step: 0, last_step: 9, completed_unix_micros: null }], 50), null);
  assert.equal(series.stepAt([], 50), null);
});
test("windows of an earlier run and steps that go back are left out", () => {
  const window = (run_id, last_step) => ({ run_id, last_step });
  assert.deepEqual(series.ofNewestRun([window("a", 9), window("a", 19), window("b", 9), window("b", 9), window("b", 29)]).map((one) => one.last_step), [9, 29]);
  assert.deepEqual(series.ofNewestRun([10, 30, 20, 25, 40].map((step) => window("a", step))).map((one) => one.last_step), [10, 30, 40]);
  assert.deepEqual(series.ofNewestRun([]), []);
});
test("windows that are missing leave an empty place in the chart", () => {
  const window = (first_step, balancedness) => ({ first_step, last_step: first_step + 9, balancedness });
  assert.deepEqual(series.columns([window(0, 0.5), window(10, null), window(20, 0.6), window(70, 0.7)], ["balancedness"]),
    [[9, 19, 29, 30, 79], [0.5, null, 0.6, null, 0.7]]);
  assert.deepEqual(series.columns([], ["balancedness"]), [[], []]);
});
test("a prediction held when what was seen lies within its error", () => {
  const plan = (predicted, error, seen, evidence = 1) => ({ plan: 1, chunks_committed: 1, result: "committed", switched_step: 9, seen_last_step: 29,
    balancedness_predicted: predicted, prediction_error: error, prediction_evidence: evidence, balancedness_seen: seen });
  const computed = plan(0.8, null, 0.8, null);
  assert.deepEqual(series.predictions([plan(0.8, 0.05, 0.84), plan(0.8, 0.05, 0.7), plan(0.8, 0.05, null), plan(0.8, null, 0.8, 0), computed])
    .map((one) => one.held), [null, null, false, true]);
});
test("a prediction stands at the window that it was of, once that is known", () => {
  const plan = { plan: 1, chunks_committed: 1, result: "committed", switched_step: 9, seen_last_step: 29, balancedness_predicted: 0.8, prediction_error: 0.1, prediction_evidence: 1 };
  assert.deepEqual(series.predictions([{ ...plan, balancedness_seen: null }, { ...plan, balancedness_seen: 0.8 }]).map((one) => one.step), [29, 9]);
  assert.deepEqual(series.predictions([{ ...plan, result: "partial", balancedness_seen: 0.8 }]), []);
  assert.equal(series.predictions([{ ...plan, result: "rebalanced", balancedness_seen: 0.8 }])[0].held, true, "a replay's");
});
test("a time of another day has its date", () => {
  const noon = new Date(2026, 10, 25, 12).getTime();
  assert.equal(format.clock(noon * 1000, noon), "12:00:00");
  assert.equal(format.clock((noon - 86400000) * 1000, noon), "2026-11-24 12:00:00");
});
test("ratios are of the layer's mean, and a layer without tokens has none", () => {
  assert.deepEqual(series.ratios([[2, 4, 6], [0, 0, 0]]), [[0.5, 1, 1.5], [null, null, null]]);
  assert.equal(series.peak([[0.5, 1.5], [null, null]]), 1.5);
  assert.equal(series.least([[0.5, 1.5], [null, null]]), 0.5);
  assert.equal(series.least([[null, null]]), 0);
});
