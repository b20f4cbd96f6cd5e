// What each rebalance took, from the window to the switch.
"use strict";

eplb.rebalances = (() => {
  const { el, svg, table, behind, panel } = eplb.dom;
  const { seconds, steps, count, clock, bytes } = eplb.format;
  const SHOWN = 6;

  // The phases of one decision with their seconds; null: not known. Those that overlap training are marked.
  const phases = (plan, job) => {
    const window = job.step_seconds > 0 ? (plan.decided_last_step - plan.decided_first_step + 1) * job.step_seconds : null;
    return [
      { name: "window", of: `steps ${steps(plan.decided_first_step, plan.decided_last_step)}`, seconds: window, beside: true },
      { name: "solve", of: plan.policy, seconds: plan.solve_seconds, beside: true },
      { name: "prepare", of: "the slowest rank of the longest chunk", seconds: plan.prepare_seconds, beside: true },
      { name: "pause", of: "votes, transfer and switch at the boundary, the longest of any rank", seconds: plan.pause_seconds, beside: false },
    ];
  };

  // Phases differ by 1e4: bars are on a scale of powers of ten, from 0.1 ms.
  const LEAST = 1e-4;
  const width = (value, most) => value > LEAST ? Math.log10(value / LEAST) / Math.log10(most / LEAST) : 0;

  const bars = (plan, job, most) => {
    const row = 22, left = 70, right = 90, full = 420;
    const all = phases(plan, job);
    const drawing = svg("svg", { viewBox: `0 0 ${left + full + right} ${row * all.length}`, class: "phases", role: "img",
      "aria-label": all.map((one) => `${one.name} ${one.seconds === null ? "not known" : seconds(one.seconds)}`).join(", ") });
    all.forEach((one, i) => {
      const y = i * row;
      drawing.append(svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, one.name));
      const part = one.seconds === null ? 0 : width(one.seconds, most);
      drawing.append(svg("rect", { x: left, y: y + 3, width: Math.max(part * full, 1), height: row - 6, rx: 2, class: one.beside ? "beside" : "stop" },
        svg("title", {}, one.of)));
      drawing.append(svg("text", { x: left + Math.max(part * full, 1) + 6, y: y + 15 }, one.seconds === null ? "not known" : seconds(one.seconds)));
    });
    return drawing;
  };

  // Which rank the newest proposal waited for, as far as the ranks' own answers tell.
  const slowest = (job) => {
    const answered = job.ranks.filter((rank) => rank.answer_seconds > 0);
    if (answered.length === 0) return "";
    const rank = answered.reduce((a, b) => b.answer_seconds > a.answer_seconds ? b : a);
    return `Of the newest proposal rank ${rank.rank} was the slowest to prepare, ${seconds(rank.answer_seconds)}.`;
  };
  // Answers to what is in flight.
  const inFlight = (job, plan) => {
    if (!plan || plan.result !== "proposed") return "";
    const open = job.ranks.filter((rank) => rank.answer === "none").map((rank) => rank.rank);
    return `Plan ${plan.plan} is in flight: ${job.state}, chunk ${plan.chunks_committed + 1} of ${plan.num_chunks}`
      + (open.length ? `; waits for ${eplb.format.listed(open, "rank")}.` : ".");
  };

  const NONE = { daemon: "No rebalance has been proposed yet.", run: "The run switched no placement.", trace: "The replay moved nothing." };
  const create = (context) => {
    const { node, body } = panel("rebalances", "Time line of each rebalance",
      "Each bar is on a scale of powers of ten. Blue phases run beside training; only the orange pause stops it.");
    const note = el("p", { class: "note" });
    const drawings = el("div", { class: "lines" });
    let plans = [];
    const list = behind("rebalances", "Table of rebalances", () => table("Rebalances, newest first", [
      { name: "plan", of: (plan) => count(plan.plan), number: true },
      { name: "decided", of: (plan) => clock(plan.unix_micros) },
      { name: "window", of: (plan) => steps(plan.decided_first_step, plan.decided_last_step), number: true },
      { name: "solve", of: (plan) => seconds(plan.solve_seconds), number: true },
      { name: "prepare", of: (plan) => seconds(plan.prepare_seconds), number: true },
      { name: "pause", of: (plan) => plan.pause_seconds === null ? "not known" : seconds(plan.pause_seconds), number: true },
      { name: "switched at step", of: (plan) => plan.switched_step ? count(plan.switched_step) : "–", number: true },
      { name: "transfers", of: (plan) => count(plan.transfers), number: true },
      { name: "bytes", of: (plan) => plan.received_bytes === null ? "not known" : bytes(plan.received_bytes), number: true },
      { name: "result", of: (plan) => plan.result },
    ], plans, NONE[context.kind]));
    body.append(note, drawings, list.node);
    const update = ({ job, plans: all }) => {
      plans = all.filter((plan) => plan.num_chunks > 0);
      note.textContent = [inFlight(job, plans[0]), slowest(job)].filter(Boolean).join(" ")
        || (plans.length === 0 ? NONE[context.kind] : context.kind === "trace" ? "A replay has no times: nothing ran." : "");
      const shown = context.kind === "trace" ? [] : plans.slice(0, SHOWN);
      const most = Math.max(1, ...shown.flatMap((plan) => phases(plan, job).map((one) => one.seconds ?? 0)));
      drawings.replaceChildren(...shown.map((plan) => el("figure", {},
        el("figcaption", {}, `Plan ${plan.plan}${plan.unix_micros ? `, ${clock(plan.unix_micros)}` : ""}: ${plan.result}`
          + (plan.switched_step ? `, switched at step ${count(plan.switched_step)}` : "")), bars(plan, job, most))));
      list.refresh();
    };
    return { node, update };
  };
  return { create };
})();
