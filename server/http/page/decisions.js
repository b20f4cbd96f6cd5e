// Every decision with its reason, and every event, with a search.
"use strict";

eplb.decisions = (() => {
  const { el, redraw, columns, table, unfold, panel } = eplb.dom;
  const { brief, clock, count, counted, balancedness } = eplb.format;
  const SHOWN = 200;
  const NAMED = ["plan", "unix_micros", "result"];  // in front of the reason

  const figures = (plan) => [...columns("Plan"), { name: "computed", of: (one) => eplb.format.balancedness(one.balancedness_computed) }]
    .filter(({ key, label }) => label !== "" && !NAMED.includes(key) && (key !== "balancedness_predicted" || eplb.series.isPrediction(plan)))
    .map(({ name, of }) => [name, of(plan)]).filter(([, text]) => text !== "–" && text !== "0").map((one) => one.join(" "));
  // Figures of a placement that was made for several loads, in the columns of eplbctl explain.
  const number = (name, help, of) => ({ name, help, number: true, of });
  const SCENARIO = [
    { name: "balancedness under", of: (one) => one.load },
    number("weight", "Weight of the load in the mean over the loads.", (one) => one.weight ? Number(one.weight.toPrecision(3)) : ""),
    number("before", "Computed: of the placement that the decision would replace.", (one) => balancedness(one.balancedness_in_force.mean, 4)),
    number("proposed", "Computed: of the decision's placement.", (one) => balancedness(one.balancedness.mean, 4)),
    number("worst layer", "Of the decision's placement.", (one) => one.weight ? balancedness(one.balancedness.min, 4) : ""),
  ];
  const mixtures = ({ mixtures_at_least, mixtures_at_least_in_force }) => ({
    load: "any mixture, at least", balancedness: { mean: mixtures_at_least }, balancedness_in_force: { mean: mixtures_at_least_in_force } });

  const ofPlan = (plan) => ({
    // A report may have no time of the decision, but the time of its switch.
    at: plan.unix_micros || plan.switched_unix_micros || 0, key: `plan ${plan.plan}`, name: `plan ${plan.plan}: ${plan.result}`, kind: plan.result,
    text: plan.reason, figures: figures(plan).join(", "), plan,
  });
  const ofEvent = (event) => ({
    at: event.unix_micros, key: `event ${event.sequence}`, name: event.name, kind: "event", text: event.reason,
    figures: [event.version ? `version ${count(event.version)}` : "", event.actor ? `by ${event.actor}` : "",
      event.before || event.after ? `${event.before} -> ${event.after}` : ""].filter(Boolean).join(", "),
  });
  const matches = (one, words) => {
    const text = `${one.name} ${one.text} ${one.figures}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };

  const create = (context) => {
    const { node, body } = panel("decisions", "Decisions and events", "Newest first. A click on a line shows the whole reason and the figures of the decision.");
    const find = el("input", { type: "search", placeholder: "committed, rank 3, min_gain ..", "aria-label": "Search decisions and events" });
    const note = el("p", { class: "note", role: "status" });
    // The whole reason, the figures, and a row for each load that the placement was made for.
    const rest = ({ text, figures, plan }) => [el("p", { class: "text" }, text), figures ? el("p", { class: "figures" }, figures) : null,
      plan?.scenarios?.length ? el("p", { class: "figures" }, `${plan.scenarios.length} scenarios: balancedness under any mixture at least ${
        balancedness(plan.objective.mixtures_at_least, 4)}, before ${balancedness(plan.objective.mixtures_at_least_in_force, 4)}`) : null,
      plan?.scenarios?.length ? table(`Scenarios of plan ${plan.plan}`, SCENARIO, [...plan.scenarios, mixtures(plan.objective)]) : null];
    const list = el("ol", { class: "log", tabindex: "0", "aria-label": "Decisions and events, newest first" });
    body.append(find, note, list);
    let data = null;
    const draw = () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      // The event of a decision repeats the decision's reason.
      const reasons = new Set(data.plans.map((plan) => plan.reason));
      const all = [...data.plans.map(ofPlan), ...data.events.filter((event) => !reasons.has(event.reason)).map(ofEvent)]
        .sort((a, b) => b.at - a.at);
      const found = all.filter((one) => matches(one, words));
      note.textContent = `${counted(found.length, "entry").replace("entrys", "entries")}${words.length ? ` of ${all.length}` : ""}`
        + (found.length > SHOWN ? `, the newest ${SHOWN} are shown` : "")
        + (data.job.events_known === false ? ". What operators did is known to the daemon alone: eplbctl get events --limit 1000 -o json > DIR/events.json" : "");
      redraw(list, ...found.slice(0, SHOWN).map((one) => el("li", { class: one.kind },
        el("span", { class: "time" }, clock(one.at)), el("span", { class: "name" }, one.name),
        one.figures || brief(one.text) !== one.text ? unfold(one.key, brief(one.text), () => rest(one)) : el("span", { class: "more" }, one.text))));
    };
    list.addEventListener("unfold", draw);
    find.addEventListener("input", () => { context.setView({ find: find.value || null }); draw(); });
    const update = (fresh, view) => {
      data = fresh;
      if (document.activeElement !== find && (view.find ?? "") !== find.value) find.value = view.find ?? "";
      draw();
    };
    return { node, update };
  };
  return { create };
})();
