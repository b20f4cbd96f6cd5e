// Seconds saved and spent, and whether predictions held.
"use strict";

eplb.account = (() => {
  const { el, redraw, tile, columns, table, behind, panel } = eplb.dom;
  const { isNumber, seconds, savedText, lostTime, count } = eplb.format;
  const PREDICTION = ["plan", "balancedness_predicted", "balancedness_seen", "switched_step"];

  // Sources of the figures.
  const WORDS = {
    daemon: {
      help: "Gross: the fullest GPUs' tokens without EPLB, one slot per expert, less those that ran, in the same windows, times the time of a token. Spent: pauses of switches, the longest of any rank.",
      spent: "pauses of switches", unspent: "no switch was measured yet",
      predictions: "No decision with a prediction has switched yet.", candidates: "The current policy does not choose among candidates.",
    },
    run: {
      help: "Gross: what all steps would have lasted without EPLB, one slot per expert (predicted), less what they lasted, without boundaries. Spent: boundaries, with votes and switches. Both by rank 0's clock. Where the run's directory has job.json, both are the daemon's: over its windows, and pauses of switches alone.",
      spent: "all boundaries", unspent: "the run has no timed step",
      predictions: "A run's directory has predictions in the reasons of its decisions alone.", candidates: "A run's directory does not have them.",
    },
    trace: {
      help: "Computed, as nothing ran. Gross: the fullest GPUs' tokens without EPLB, one slot per expert, less those under the replay's placements, times --token-ns. Spent: migrations and more replicas.",
      spent: "migrations and replicas", unspent: "give --expert-bytes for it",
      predictions: "No decision with a prediction moved anything.", candidates: "The policy does not choose among candidates.",
    },
  };

  // The one figure of a job: time saved, net of pauses, or, by the log of a run alone, of all boundaries. note: its basis.
  const saved = (job, note) => tile(job.account_from_log ? "time saved, by the log" : "time saved", savedText(job) ?? "not known", note, job.saved_basis,
    lostTime(job) ? "busy" : "");

  const create = (context) => {
    const words = WORDS[context.kind];
    const spentOn = (job) => (job.account_from_log === false ? WORDS.daemon : words).spent;
    const { node, body } = panel("account", "The account", words.help);
    const tiles = el("dl", { class: "tiles" }), basis = el("p", { class: "note" });
    let predictions = [], candidates = [];
    const kept = behind("account", "Table of predictions", () => table("Predicted and seen, newest first", [
      ...columns("Plan").filter((one) => PREDICTION.includes(one.key)),
      { name: "within the error", of: (one) => one.balancedness_seen === null ? "not seen yet" : one.held === null ? "no error yet" : one.held ? "yes" : "no" },
    ], predictions.slice().reverse(), words.predictions));
    const tried = behind("candidates", "Table of candidates", () => table("Candidates of the back-test, as it is now",
      columns("TriedCandidate", candidates), candidates, words.candidates));
    body.append(basis, tiles, kept.node, tried.node);
    const update = ({ job, plans }) => {
      predictions = eplb.series.predictions(plans);
      candidates = job.candidates ?? [];
      const judged = predictions.filter((one) => one.held !== null);
      const held = judged.filter((one) => one.held).length;
      const known = isNumber(job.saved_seconds), spent = isNumber(job.spent_seconds);
      const moved = plans.reduce((sum, plan) => sum + (plan.received_bytes ?? 0), 0);
      const weighed = plans.some((plan) => isNumber(plan.received_bytes)) || context.kind !== "trace";
      basis.textContent = job.saved_basis ? `Time saved: ${job.saved_basis}.` : "";
      redraw(tiles, saved(job, ""),
        tile("gross", known ? seconds(job.saved_seconds + (job.spent_seconds ?? 0)) : "–", "before what was spent"),
        tile("spent", spent ? seconds(job.spent_seconds) : "–", spent ? spentOn(job) : words.unspent),
        tile("moved", weighed ? eplb.format.bytes(moved) : "not known", `by the ${count(plans.length)} newest decisions`),
        tile("predictions that held", judged.length ? `${held} of ${judged.length}` : "–",
          `within the error, of the ${count(plans.length)} newest decisions`));
      kept.refresh();
      tried.refresh();
    };
    return { node, update };
  };
  return { create, saved };
})();
