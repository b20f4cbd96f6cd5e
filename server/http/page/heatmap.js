// Load of each GPU in each layer: the static layout and the placements that ran, on one colour scale, over time.
"use strict";

eplb.heatmap = (() => {
  const { el, table, behind, panel } = eplb.dom;
  const { count, steps, isNumber, clock } = eplb.format;
  const KEPT = 48;  // windows whose loads stay in this page

  const legend = () => {
    const begin = el("span"), end = el("span");
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, Array.from({ length: 24 }, (_, i) => {
      const step = el("i");
      step.style.background = eplb.colors.text(i / 23);
      return step;
    }));
    const node = el("div", { class: "legend" }, begin, bar, end);
    const set = (low, most) => { begin.textContent = low.toFixed(2); end.textContent = `${most.toFixed(2)} × the layer's mean`; };
    return { node, set };
  };

  const create = (context) => {
    const { node, body } = panel("heat", "Load of each GPU in each layer",
      "A cell is a GPU's tokens over the layer's mean; with GPUs of equal speed a layer waits for its brightest cell.");
    const key = legend();
    const place = el("output", { class: "reading", "aria-live": "polite" }, "Point at a cell, or focus a map and use the arrow keys.");
    let loads = null, ratios = { now: [], static: [] };
    const read = (layer, gpu) => {
      if (ratios.static[layer]?.[gpu] === undefined) return;
      const cell = (rows, parts) => !rows[layer] ? "not known" : parts[layer][gpu] === null ? "no tokens in the layer"
        : `${count(rows[layer][gpu])} tokens, ${parts[layer][gpu].toFixed(2)} × the mean`;
      place.textContent = `Layer ${context.layerName(layer)}, GPU ${gpu}: ${cell(loads.gpu_loads, ratios.now)}; static layout: ${cell(loads.gpu_loads_static, ratios.static)}`;
    };
    const map = (name) => eplb.grid.create({ name, rows: "layer", columns: "GPU", read, height: (layers) => Math.max(Math.min(layers * 20, 420), 90) });
    const before = map("static layout, computed"), now = map("placements that ran");
    const remark = el("p", { class: "note" });
    const slider = el("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Window shown, oldest to newest" });
    const when = el("output", { class: "when" });
    const live = el("button", { type: "button" }, "Newest");
    const list = behind("heat", "Table of layers", () => table(loads ? `Fullest GPU of each layer, steps ${steps(loads.first_step, loads.last_step)}` : "Fullest GPU of each layer", [
      { name: "layer", of: (row) => el("a", { href: context.link({ layer: row.layer, panel: "layer" }) }, context.layerName(row.layer)), number: true },
      { name: "mean tokens", of: (row) => count(row.mean), number: true },
      { name: "static: fullest GPU", of: (row) => row.static ? `${row.static.gpu}: ${row.static.ratio.toFixed(2)} × mean` : "no tokens", number: true },
      { name: "that ran: fullest GPU", of: (row) => row.now ? `${row.now.gpu}: ${row.now.ratio.toFixed(2)} × mean` : row.static ? "not known" : "no tokens", number: true },
    ], rows(), "No window is shown."));
    const rows = () => ratios.static.map((row, layer) => {
      const fullest = (part) => isNumber(part?.[0]) ? { gpu: part.indexOf(Math.max(...part)), ratio: Math.max(...part) } : null;
      const total = loads.gpu_loads_static[layer].reduce((a, b) => a + b, 0);
      return { layer, mean: total / row.length, static: fullest(row), now: fullest(ratios.now[layer]) };
    });
    body.append(el("div", { class: "maps" }, before.node, now.node), key.node, place, remark,
      el("div", { class: "slider" }, slider, live, when), list.node);

    let windows = [];
    const cache = new Map();
    const fetched = async (window) => {
      if (!cache.has(window)) {
        if (cache.size >= KEPT) cache.delete(cache.keys().next().value);
        cache.set(window, context.get("gpu_loads", { window }));
      }
      return cache.get(window);
    };
    const draw = () => {
      ratios = { now: eplb.series.ratios(loads.gpu_loads), static: eplb.series.ratios(loads.gpu_loads_static) };
      const all = [...ratios.now, ...ratios.static];
      const low = eplb.series.least(all), most = eplb.series.peak(all);
      const pixel = (ratio) => ratio === null ? 0 : eplb.colors.pixel((ratio - low) / (most - low || 1));
      before.set(ratios.static, pixel);
      now.set(ratios.now, pixel);
      key.set(low, most);
      now.caption.textContent = loads.gpu_loads.length === 0 ? "placements that ran: not known for these steps"
        : context.kind === "trace" ? "placements of the replay, computed"
          : loads.split === "batch" ? "placements that ran, in equal shares" : "placements that ran, measured";
      remark.textContent = loads.split === "batch" && context.kind !== "trace" ? "The job splits each batch exactly: its GPUs were more even than in equal shares." : "";
      list.refresh();
    };
    let wanted = 0;
    const show = async (window) => {
      const one = windows.find((each) => each.window === window);
      when.textContent = one ? `steps ${steps(one.first_step, one.last_step)}${one.completed_unix_micros ? `, ${clock(one.completed_unix_micros)}` : ""}` : "";
      slider.setAttribute("aria-valuetext", when.textContent);
      const asked = ++wanted;
      try {
        const fresh = await fetched(window);
        if (asked !== wanted) return;
        loads = fresh;
        draw();
      } catch (error) {
        cache.delete(window);
        if (asked !== wanted) return;
        shown = null;  // the next look asks again
        before.set([]);
        now.set([]);
        place.textContent = `Loads of this window: ${error.message}`;
      }
    };
    slider.addEventListener("input", () => {
      const one = windows[Number(slider.value)];
      if (one) context.setView({ window: one === windows[windows.length - 1] ? null : one.window });
    });
    live.addEventListener("click", () => context.setView({ window: null }));

    let shown = null;
    const update = (data, view) => {
      windows = eplb.series.ofNewestRun(data.windows).filter((one) => one.has_loads);
      slider.max = String(Math.max(windows.length - 1, 0));
      slider.disabled = live.disabled = windows.length < 2;
      if (windows.length === 0) {
        place.textContent = context.kind === "daemon" ? "No complete window since the daemon started." : "No window has its loads.";
        return;
      }
      const asked = Number(view.window);
      const index = isNumber(asked) && view.window !== undefined ? windows.findIndex((one) => one.window === asked) : windows.length - 1;
      const at = index < 0 ? windows.length - 1 : index;
      slider.value = String(at);
      if (windows[at].window === shown) return;
      shown = windows[at].window;
      return show(shown);
    };
    return { node, update, follows: ["window"], redraw: () => { if (loads) draw(); } };
  };
  return { create };
})();
