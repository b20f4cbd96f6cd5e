// Times of each rebalance, from the window to the switch, on the daemon's clock.
"use strict";

eplb.rebalances = (() => {
  const { el, redraw, columns, table, behind, panel } = eplb.dom;
  const { seconds, steps, count, clock, listed } = eplb.format;
  const SHOWN = 6;

  const between = (from, to) => from > 0 && to >= from ? (to - from) / 1e6 : null;
  // Returns the rank that was PREPARED last. A rank that reconnected has no time, and then no rank is named.
  const slowest = (chunk) => chunk.ranks.find((rank) => rank.prepared_unix_micros === chunk.prepared_unix_micros) ?? null;
  // The phases of one decision with their seconds; null: not known. `stops`: training waits for it.
  const phases = (plan) => {
    const { times } = plan;
    const all = [
      { name: "reports", about: `steps ${steps(plan.decided_first_step, plan.decided_last_step)}`,
        seconds: times ? between(times.window_began_unix_micros, times.window_complete_unix_micros) : null },
      { name: "solve", about: plan.policy, seconds: plan.solve_seconds },
    ];
    const chunks = times?.chunks ?? [];
    for (const chunk of chunks) {
      const name = chunks.length > 1 ? ` ${chunk.version}` : "";
      const late = slowest(chunk);
      const open = plan.result === "proposed" && !(chunk.ended_unix_micros > 0);  // in flight
      const prepared = chunk.prepared_unix_micros > 0;
      all.push({ name: `prepare${name}`, about: late ? `rank ${late.rank} was the slowest` : "", open: open && !prepared,
        seconds: between(chunk.proposed_unix_micros, chunk.prepared_unix_micros) });
      if (!open || prepared) {
        all.push({ name: `vote${name}`, about: chunk.committed ? "votes, transfer, switch" : open ? "" : "withdrawn", open,
          seconds: between(chunk.prepared_unix_micros, chunk.ended_unix_micros) });
      }
      if (chunk.longest_pause_seconds !== null) {
        all.push({ name: `pause${name}`, about: `rank ${chunk.longest_pause_rank} had the longest`, seconds: chunk.longest_pause_seconds, stops: true });
      }
    }
    if (chunks.length === 0 && plan.chunks_committed > 0) {
      all.push({ name: "prepare", about: "longest chunk", seconds: plan.prepare_seconds });
      all.push({ name: "pause", about: "longest of any rank", seconds: plan.pause_seconds, stops: true });
    }
    return all;
  };

  // Phases differ by 1e4: bars are on a scale of powers of ten, from 0.1 ms.
  const LEAST = 1e-4;
  const width = (value, most) => value > LEAST ? Math.log10(value / LEAST) / Math.log10(most / LEAST) : 0;

  const bars = (plan, most) => el("div", { class: "phases" }, phases(plan).map((one) => {
    const bar = el("i", { class: one.stops ? "stop" : "beside", "aria-hidden": "true" });
    bar.style.width = `${one.seconds === null ? 0 : 100 * width(one.seconds, most)}%`;
    return el("div", { class: "phase" }, el("span", { class: "what" }, one.name), el("span", { class: "track" }, bar),
      el("span", { class: "took" }, one.open ? "in flight" : one.seconds === null ? "not known" : seconds(one.seconds)),
      el("span", { class: "about" }, one.about));
  }));

  // Answers to what is in flight.
  const inFlight = (job, plan) => {
    if (!plan || plan.result !== "proposed") return "";
    const open = job.ranks.filter((rank) => rank.answer === "none").map((rank) => rank.rank);
    return `Plan ${plan.plan} is in flight: ${job.state}, chunk ${plan.chunks_committed + 1} of ${plan.num_chunks}`
      + (open.length ? `; waits for ${listed(open, "rank")}.` : ".");
  };

  const NONE = { daemon: "No rebalance has been proposed yet.", run: "The run switched no placement.", trace: "The replay moved nothing." };
  const create = (context) => {
    const { node, body } = panel("rebalances", "Time line of each rebalance",
      "Reports: from the first to the last arrival. Vote: to the last rank's Applied. Each bar is on a scale of powers of ten. Blue phases run beside training; only the orange pause stops it. The ranks' own logs tell votes from transfer: eplbctl report DIR -o trace.");
    const note = el("p", { class: "note" });
    const drawings = el("div", { class: "lines" });
    let plans = [];
    const list = behind("rebalances", "Table of rebalances", () => table("Rebalances, newest first", columns("Plan", plans), plans, NONE[context.kind]));
    body.append(note, drawings, list.node);

    // By plan and what had become of it; a plan that has ended does not change.
    const known = new Map();
    const timed = async (plan) => {
      const key = `${plan.unix_micros}/${plan.plan}/${plan.result}/${plan.chunks_committed}`;
      if (!known.has(key)) {
        const answer = await context.get("plans", { plan: plan.plan }).catch(() => null);
        if (answer === null) return { ...plan, times: null };
        known.set(key, answer.plans[0]?.times ?? null);
      }
      return { ...plan, times: known.get(key) };
    };
    let asked = 0;
    const update = async ({ job, plans: all }) => {
      plans = all.filter((plan) => plan.num_chunks > 0);
      list.refresh();
      const turn = ++asked;
      const newest = await Promise.all(plans.slice(0, SHOWN).map(timed));
      if (turn !== asked) return;
      note.textContent = inFlight(job, plans.find((plan) => plan.result === "proposed" && plan.first_version > 0))
        || (plans.length === 0 ? NONE[context.kind] : context.kind === "trace" ? "A replay has no times: nothing ran." : "");
      if (context.kind === "trace") return;
      const most = Math.max(1, ...newest.flatMap((plan) => phases(plan).map((one) => one.seconds ?? 0)));
      redraw(drawings, ...newest.map((plan) => el("figure", {},
        el("figcaption", {}, `Plan ${plan.plan}${plan.unix_micros ? `, ${clock(plan.unix_micros)}` : ""}: ${plan.result}`
          + (plan.switched_step ? `, switched at step ${count(plan.switched_step)}` : "")), bars(plan, most))));
    };
    return { node, update };
  };
  return { create };
})();
