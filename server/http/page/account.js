// Seconds saved and spent, and whether predictions held.
"use strict";

eplb.account = (() => {
  const { el, tile, table, behind, panel } = eplb.dom;
  const { seconds, count, percent, balancedness, steps } = eplb.format;

  const create = () => {
    const { node, body } = panel("account", "The account",
      "Saved: the fullest GPUs' tokens under the static layout less those that ran, in the same windows, times cost.token_ns. Spent: pauses of switches, the longest of any rank.");
    const tiles = el("dl", { class: "tiles" });
    let predictions = [], candidates = [];
    const kept = behind("account", "Table of predictions", () => table("Predicted and seen, newest first", [
      { name: "plan", of: (one) => count(one.plan), number: true },
      { name: "switched at step", of: (one) => count(one.step), number: true },
      { name: "predicted", of: (one) => `${balancedness(one.predicted)} ± ${one.error.toFixed(3)}`, number: true },
      { name: "seen", of: (one) => balancedness(one.seen), number: true },
      { name: "within the error", of: (one) => one.held === null ? "not seen yet" : one.held ? "yes" : "no" },
    ], predictions.slice().reverse(), "No decision with a prediction has switched yet."));
    const tried = behind("candidates", "Table of candidates", () => table("Candidates of the back-test, as it is now", [
      { name: "policy/estimate/cadence", of: (one) => one.name + (one.in_use ? " (in use)" : "") },
      { name: "windows", of: (one) => count(one.windows), number: true },
      { name: "balancedness", of: (one) => balancedness(one.balancedness), number: true },
      { name: "net seconds", of: (one) => seconds(one.net_seconds), number: true },
      { name: "realised gain", of: (one) => percent(one.realized), number: true },
    ], candidates, "The policy in force does not choose among candidates."));
    body.append(tiles, kept.node, tried.node);
    const update = ({ job, plans }) => {
      predictions = eplb.series.predictions(plans);
      candidates = job.candidates ?? [];
      const judged = predictions.filter((one) => one.held !== null);
      const held = judged.filter((one) => one.held).length;
      const known = job.saved_seconds !== null && job.saved_seconds !== undefined;
      const moved = plans.reduce((sum, plan) => sum + (plan.received_bytes ?? 0), 0);
      tiles.replaceChildren(
        tile("saved", known ? seconds(job.saved_seconds) : "not known", known ? "against the static layout" : "set cost.token_ns for it"),
        tile("spent", seconds(job.spent_seconds), "pauses of switches"),
        tile("net", known ? seconds(job.saved_seconds - job.spent_seconds) : "not known", ""),
        tile("moved", eplb.format.bytes(moved), `by the ${count(plans.length)} newest decisions`),
        tile("predictions that held", judged.length ? `${held} of ${judged.length}` : "–",
          job.measured_last_step ? `figures of steps ${steps(job.measured_first_step, job.measured_last_step)}` : ""));
      kept.refresh();
      tried.refresh();
    };
    return { node, update };
  };
  return { create };
})();
