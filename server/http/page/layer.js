// One layer: its experts by load, how often each is replicated, and where each lives.
"use strict";

eplb.layer = (() => {
  const { el, svg, table, behind, panel } = eplb.dom;
  const { count, percent, steps, counted } = eplb.format;

  const experts = (load, placement) => {
    const total = load.reduce((a, b) => a + b, 0);
    return load.map((tokens, expert) => {
      const slots = placement.experts.flatMap((held, slot) => held === expert ? [slot] : []);
      const primary = placement.primaries[expert];
      return { expert, tokens, share: total > 0 ? tokens / total : 0, slots,
        gpus: slots.map((slot) => `${placement.gpus[slot]}${slot === primary && slots.length > 1 ? " (primary)" : ""}`) };
    }).sort((a, b) => b.tokens - a.tokens || a.expert - b.expert);
  };

  const bars = (rows, mean) => {
    const full = 900, tall = 180;
    const most = Math.max(1, ...rows.map((row) => row.tokens));
    const step = full / rows.length;
    const drawing = svg("svg", { viewBox: `0 0 ${full} ${tall + 4}`, class: "experts", preserveAspectRatio: "none", role: "img",
      "aria-label": "Bars of tokens by expert, largest first; the table below has its numbers" });
    rows.forEach((row, i) => {
      const height = row.tokens / most * tall;
      const replicas = row.slots.length;
      const x = i * step;
      const bar = svg("g", {}, svg("title", {}, `expert ${row.expert}: ${count(row.tokens)} tokens, ${counted(replicas, "replica")} on GPU ${row.gpus.join(", ")}`));
      // Each replica takes its part of the bar.
      for (let part = 0; part < replicas; ++part) {
        bar.append(svg("rect", { x, width: Math.max(step * 0.85, 0.5), y: tall - height + height * part / replicas,
          height: Math.max(height / replicas - (replicas > 1 ? 1 : 0), 0.5), class: replicas > 1 ? "replicated" : "single" }));
      }
      drawing.append(bar);
    });
    drawing.append(svg("line", { x1: 0, x2: full, y1: tall - mean / most * tall, y2: tall - mean / most * tall, class: "mean" }));
    return drawing;
  };

  const create = (context) => {
    const { node, body } = panel("layer", "One layer",
      "Experts by tokens, largest first. An orange bar is an expert with replicas, cut into their parts. The line is the mean.");
    const pick = el("select", { "aria-label": "Layer shown" });
    const note = el("p", { class: "note", "aria-live": "polite" });
    const drawing = el("div", { class: "chart" });
    let rows = [];
    const list = behind("layer", "Table of experts", () => table("Experts of the layer, most tokens first", [
      { name: "expert", of: (row) => count(row.expert), number: true },
      { name: "tokens", of: (row) => count(row.tokens), number: true },
      { name: "of the layer", of: (row) => percent(row.share), number: true },
      { name: "replicas", of: (row) => count(row.slots.length), number: true },
      { name: "GPUs", of: (row) => row.gpus.join(", ") },
      { name: "slots", of: (row) => row.slots.join(", ") },
    ], rows, "No load is known."));
    body.append(el("label", { class: "pick" }, "Layer ", pick), note, drawing, list.node);
    pick.addEventListener("change", () => context.setView({ layer: pick.value }));

    let shown = "", offered = -1;
    const update = async (data, view) => {
      const layers = data.job.num_layers ?? 0;
      if (layers !== offered) {
        offered = layers;
        pick.replaceChildren(...Array.from({ length: layers }, (_, i) => el("option", { value: String(i) }, context.layerName(i))));
      }
      const windows = eplb.series.ofNewestRun(data.windows).filter((one) => one.has_loads);
      if (layers === 0 || windows.length === 0) { note.textContent = context.kind === "daemon" ? "No complete window since the daemon started." : "No window has its loads."; return; }
      const layer = Math.min(Math.max(Number(view.layer) || 0, 0), layers - 1);
      pick.value = String(layer);
      const window = windows.find((one) => one.window === Number(view.window)) ?? windows[windows.length - 1];
      const version = window.versions[window.versions.length - 1] ?? data.job.version;
      const now = `${layer}/${window.window}/${version}`;
      if (now === shown) return;
      shown = now;
      await new Promise((resolve) => { setTimeout(resolve, 120); });  // a slider that moves asks for many
      if (now !== shown) return;
      try {
        const [load, placement] = await Promise.all([
          context.get("load", { layer, window: window.window }), context.get("placement", { layer, version })]);
        if (now !== shown) return;
        rows = experts(load.load[0], placement);
        const mean = load.load[0].reduce((a, b) => a + b, 0) / Math.max(rows.length, 1);
        const replicated = rows.filter((row) => row.slots.length > 1).length;
        note.textContent = `Layer ${context.layerName(layer)}, steps ${steps(load.first_step, load.last_step)}, version ${version}: `
          + `${mean > 0 ? `the busiest expert has ${(rows[0].tokens / mean).toFixed(1)} × the mean` : "no tokens"}; ${counted(replicated, "expert")} with replicas.`;
        drawing.replaceChildren(bars(rows, mean));
      } catch (error) {
        if (now !== shown) return;
        shown = "";  // the next look asks again
        rows = [];
        drawing.replaceChildren();
        note.textContent = `Layer ${layer}: ${error.message}.`;
      }
      list.refresh();
    };
    return { node, update, follows: ["window", "layer"] };
  };
  return { create };
})();
