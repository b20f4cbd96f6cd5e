// Numbers and sentences as people read them. No access to the document: tests run this file alone.
"use strict";
const eplb = {};

eplb.format = (() => {
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  // 12,345
  const count = (value) => isNumber(value) ? Math.round(value).toLocaleString("en-US") : "–";
  // "1 rank", "2 ranks"
  const counted = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;
  // 0.861
  const balancedness = (value, digits = 3) => isNumber(value) && value > 0 ? value.toFixed(digits) : "–";
  // 12.3 %
  const percent = (part, digits = 1) => isNumber(part) ? `${part < 0 ? "−" : ""}${(100 * Math.abs(part)).toFixed(digits)} %` : "–";

  const scaled = (value, units) => {
    for (const [size, unit] of units) {
      if (Math.abs(value) >= size) {
        const number = value / size;
        return `${number < 0 ? "−" : ""}${Math.abs(number).toFixed(Math.abs(number) < 10 ? 2 : Math.abs(number) < 100 ? 1 : 0)} ${unit}`;
      }
    }
    return null;
  };
  // 1.25 s, 5.80 ms
  const seconds = (value) => {
    if (!isNumber(value)) return "–";
    if (value === 0) return "0 s";
    return scaled(value, [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) ?? "0 s";
  };
  // The time that a job saved: "≈" if it rests on an assumed time of a token; null if it is not known.
  const savedText = (job) => isNumber(job.saved_seconds) ? `${job.saved_is_assumed ? "≈ " : ""}${seconds(job.saved_seconds)}` : null;
  const bytes = (value) => {
    if (!isNumber(value)) return "–";
    return scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) ?? `${value} B`;
  };
  // The clock of the one who looks; with the date when that is not today.
  const clock = (micros, now = Date.now()) => {
    if (!isNumber(micros) || micros <= 0) return "–";
    const date = new Date(micros / 1000), time = date.toLocaleTimeString("en-GB");
    return date.toDateString() === new Date(now).toDateString() ? time : `${date.toLocaleDateString("sv-SE")} ${time}`;
  };
  // 2026-11-28 13:05:01, as everywhere on earth
  const utc = (micros) => isNumber(micros) && micros > 0 ? new Date(micros / 1000).toISOString().slice(0, 19).replace("T", " ") : "–";
  // 0..59
  const steps = (first, last) => first === last ? count(first) : `${count(first)}..${count(last)}`;
  // "ranks 0, 1 and 12 more"
  const listed = (numbers, one, most = 3) => {
    const shown = numbers.slice(0, most).join(", ");
    const rest = numbers.length - most;
    return `${one}${numbers.length === 1 ? "" : "s"} ${shown}${rest > 0 ? ` and ${rest} more` : ""}`;
  };

  // One line of at most `most` characters, cut at the end of a clause if there is one in its second half, otherwise of a word.
  const brief = (text, most = 72) => {
    if (text.length <= most) return text;
    const start = text.slice(0, most - 1);
    const clause = Math.max(...[". ", ", ", "; ", ": ", " ("].map((end) => start.lastIndexOf(end)));
    return `${start.slice(0, clause >= most / 2 ? clause : start.includes(" ") ? start.lastIndexOf(" ") : most - 1)}…`;
  };

  // At most `most` characters of a name, cut in the middle: names of one kind often differ at the end.
  const briefName = (name, most = 48) => name.length <= most ? name : `${name.slice(0, most - 1 - most / 2)}…${name.slice(-most / 2)}`;

  const UNITS = { COUNT: count, RATIO: balancedness, PERCENT: percent, SECONDS: seconds, BYTES: bytes, UNIX_MICROS: utc };
  const plain = (value) => value === true ? "yes" : value === false ? "" : Array.isArray(value) ? value.join(", ") : String(value?.name ?? value ?? "");
  // A value of a message as its column shows it. field: of figures.js.
  const figure = (field, row) => {
    const value = row[field.key], error = row[field.error];
    if (value === 0 && field.zero_is_none) return "–";
    const text = field.to && isNumber(value) ? steps(value, Math.max(value, row[field.to] ?? 0)) : (UNITS[field.unit] ?? plain)(value, field.digits || undefined) || "–";
    if (!field.error || text === "–") return text;
    if (isNumber(error)) return `${text} ± ${error.toFixed(field.digits || 3)}`;
    // A figure that no earlier prediction corrects is computed.
    return `${text} ${isNumber(row.prediction_evidence) ? "± unknown" : "(computed)"}`;
  };

  // Returns the most urgent trouble of a job. kind: good, busy, bad, ended.
  const trouble = (job) => {
    if (job.state === "QUARANTINE") return `QUARANTINE: no proposals are made. ${job.waiting_for}`;
    if (job.stuck_seconds > 0) return `Stuck for ${seconds(job.stuck_seconds)}: waits for ${job.waiting_for}`;
    if (job.not_counting_reason) return `NOT_COUNTING: ${job.not_counting_reason}`;
    if (job.stalled) return `Balancing has stopped: ${job.stalled_reason}`;
    return "";
  };
  // Returns the note on a run that gathers its ranks, whether or not an earlier one has ended.
  const arrival = (job) => job.candidate ? `A newer run, ${job.candidate.run_id}, is not balanced yet` : job.refusal ? `A rank was refused: ${job.refusal}` : "";
  const ended = (job) => ["FINISHED", "FAILED", "LOST", "REPLAYED"].includes(job.state);
  // True if a job lost time and its newest switch is not so recent that it may still pay back its pause.
  const lostTime = (job) => job.saved_seconds < 0
    && !(!ended(job) && job.step >= job.last_switched_step && isNumber(job.last_switched_step) && isNumber(job.step_seconds) && (job.step - job.last_switched_step) * job.step_seconds < 1800);
  const isWorse = (job) => lostTime(job) || (job.balancedness > 0 && job.balancedness < 0.999 * job.balancedness_without_eplb);
  // Returns one sentence about a job, without figures. kind: bad, busy (worth a look), good or ended.
  const sentence = (job) => {
    const wrong = trouble(job);
    if (wrong) return { kind: "bad", text: wrong };
    if (job.state === "REPLAYED") return { kind: "ended", text: job.end_reason };
    if (ended(job) && !(job.state === "FINISHED" && arrival(job))) {
      return { kind: job.state === "FINISHED" ? "ended" : "bad",
        text: `${job.state.toLowerCase()} at step ${count(job.step)}${job.end_reason ? `: ${job.end_reason}` : ""}` };
    }
    if (arrival(job)) return { kind: "busy", text: arrival(job) };
    if (job.paused) return { kind: "busy", text: job.pause_reason || "paused by an operator" };
    const missing = job.world_size - job.connected_ranks;
    if (missing > 0) return { kind: "busy", text: `${counted(missing, "rank")} of ${count(job.world_size)} not connected` };
    if (job.state === "RECOVERING") return { kind: "busy", text: `Waits for ${job.waiting_for}` };
    if (job.worse_reason) return { kind: "busy", text: job.worse_reason };
    if (isWorse(job)) return { kind: "busy", text: "Less even, or slower, than without EPLB" };
    if (job.state !== "IDLE") return { kind: "good", text: `Rebalancing${job.waiting_for ? `: waits for ${job.waiting_for}` : ""}` };
    const observes = job.policy?.mode === "observe" ? "; observes only" : "";
    return { kind: "good", text: `${job.balancedness > 0 ? "No rebalance in flight" : job.not_measured_reason || "No complete load window yet"}${observes}` };
  };

  return { isNumber, count, counted, balancedness, percent, seconds, savedText, bytes, clock, steps, listed, brief, briefName, figure, sentence, ended, lostTime };
})();

// Windows of one run for charts, steps rising.
eplb.series = (() => {
  const { isNumber } = eplb.format;
  // windows: of the API, oldest first. Those of the newest run only: a new run begins again at its first step.
  const ofNewestRun = (windows) => {
    const run = windows.length ? windows[windows.length - 1].run_id : "";
    let last = -1;
    return windows.filter((one) => {
      if (one.run_id !== run || one.last_step <= last) return false;
      last = one.last_step;
      return true;
    });
  };
  // The columns of a chart over the windows' last steps, with an empty place where windows are missing, so that no line
  // is drawn over the gap.
  const columns = (windows, keys) => {
    const all = [[], ...keys.map(() => [])];
    let next = null;
    for (const one of windows) {
      if (next !== null && one.first_step > next) {
        all[0].push(next);
        keys.forEach((_, i) => all[i + 1].push(null));
      }
      all[0].push(one.last_step);
      keys.forEach((key, i) => all[i + 1].push(one[key] > 0 ? one[key] : null));
      next = one.last_step + 1;
    }
    return all;
  };
  // Returns the step at a time, between the times of windows; null: no window has a time.
  const stepAt = (windows, micros) => {
    const next = windows.findIndex((one) => one.completed_unix_micros >= micros);
    if (next < 0) return windows[windows.length - 1]?.completed_unix_micros > 0 ? windows[windows.length - 1].last_step : null;
    if (next === 0) return windows[0].first_step;
    const from = windows[next - 1], to = windows[next];
    return from.last_step + (to.last_step - from.last_step) * (micros - from.completed_unix_micros) / (to.completed_unix_micros - from.completed_unix_micros);
  };
  // Decisions that changed something, oldest first.
  const switches = (plans) => plans.filter((plan) => plan.chunks_committed > 0).slice().reverse();
  // False for a figure that is computed on the load that was decided on. A store of 0.1.0 has errors alone.
  const isPrediction = (plan) => isNumber(plan.prediction_evidence) || isNumber(plan.prediction_error);
  // Predictions of decisions that were carried out whole; those of a replay are "rebalanced". step: the last of those that were
  // predicted, once they are known.
  const predictions = (plans) => switches(plans)
    .filter((plan) => ["committed", "rebalanced"].includes(plan.result) && isPrediction(plan))
    .map((plan) => ({
      ...plan, step: plan.balancedness_seen === null ? plan.switched_step : plan.seen_last_step,
      held: plan.balancedness_seen === null || plan.prediction_error === null ? null
        : Math.abs(plan.balancedness_seen - plan.balancedness_predicted) <= plan.prediction_error,
    }));
  // loads: [layers][gpus]. Each over its layer's mean; null in a layer without tokens.
  const ratios = (loads) => loads.map((row) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
    return row.map((value) => mean > 0 ? value / mean : null);
  });
  const peak = (rows) => rows.reduce((most, row) => row.reduce((a, b) => Math.max(a, b ?? a), most), 0);
  const least = (rows) => {
    const low = rows.reduce((least, row) => row.reduce((a, b) => Math.min(a, b ?? a), least), Infinity);
    return Number.isFinite(low) ? low : 0;
  };
  return { ofNewestRun, columns, stepAt, switches, isPrediction, predictions, ratios, peak, least };
})();
if (typeof module !== "undefined") module.exports = eplb;
