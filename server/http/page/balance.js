// Balancedness over steps: what ran, what equal shares, the static layout and no EPLB would have been, what was predicted. Below
// the axis are the steps at which experts moved, and a line for events.
"use strict";

eplb.balance = (() => {
  const { el, columns, table, behind, panel, css } = eplb.dom;
  const { balancedness, brief, count, counted, steps } = eplb.format;

  const LINES = [
    { key: "balancedness", color: "--measured", width: 2.5 },
    { key: "balancedness_equal", color: "--equal", width: 1.5, dash: [6, 3] },
    { key: "balancedness_static", color: "--static", width: 1.5, dash: [6, 3, 2, 3] },
    { key: "balancedness_without_eplb", color: "--without", width: 1.5, dash: [2, 3] },
  ];
  const labelOf = (key) => eplb.figures.Window.find((one) => one.key === key).label;
  // Events of each decision have their place among the switches.
  const ROUTINE = ["proposed", "committed", "kept", "report_interval"];
  const HEIGHT = 300, LANE = 15, BELOW = 5;  // pixels

  // Predictions as points with their errors, over the lines.
  const drawPredictions = ({ ctx, valToPos, bbox }, predictions) => {
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = css("--predicted");
    ctx.lineWidth = devicePixelRatio;
    for (const { step, balancedness_predicted: value, prediction_error: error, held } of predictions) {
      const x = valToPos(step, "x", true);
      ctx.globalAlpha = 0.4;
      ctx.beginPath();
      ctx.moveTo(x, valToPos(value - (error ?? 0), "y", true));
      ctx.lineTo(x, valToPos(value + (error ?? 0), "y", true));
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.arc(x, valToPos(value, "y", true), 2.5 * devicePixelRatio, 0, 2 * Math.PI);
      // Hollow: what followed lay outside the error.
      if (held === false) ctx.stroke(); else ctx.fill();
    }
  };
  // Ticks below the axis where experts moved, and below these a diamond for each event.
  const drawLanes = ({ ctx, valToPos, bbox }, lanes) => {
    const size = devicePixelRatio, top = bbox.top + bbox.height + BELOW * size;
    ctx.font = `${11 * size}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    lanes.forEach(({ name, color, marks }, lane) => {
      const middle = top + (lane + 0.5) * LANE * size;
      ctx.fillStyle = css("--quiet");
      ctx.fillText(name, bbox.left - 8 * size, middle);
      ctx.fillStyle = css(color);
      for (const { step } of marks) {
        const x = valToPos(step, "x", true);
        if (lane === 0) { ctx.fillRect(x - size, middle - 6 * size, 2 * size, 12 * size); continue; }
        ctx.beginPath();
        for (const [dx, dy] of [[0, -4.5], [4.5, 0], [0, 4.5], [-4.5, 0]]) ctx.lineTo(x + dx * size, middle + dy * size);
        ctx.fill();
      }
    });
  };
  const overlay = (chart, { lanes, predictions }) => {
    for (const paint of [() => drawPredictions(chart, predictions), () => drawLanes(chart, lanes)]) {
      chart.ctx.save();
      paint();
      chart.ctx.restore();
    }
  };

  // Returns the tip under the pointer: figures of the window, and marks near it.
  const tipOf = (chart, { windows, lines, lanes }) => {
    const { idx, left } = chart.cursor;
    const one = windows.find((each) => each.last_step === chart.data[0][idx]);
    const swatch = (color) => {
      const node = el("i");
      node.style.background = css(color);
      return node;
    };
    const near = lanes.flatMap(({ color, marks }) => marks.filter(({ step }) => Math.abs(chart.valToPos(step, "x") - left) < 5)
      .map(({ text }) => ({ color, text })));
    return [one ? el("b", {}, `steps ${steps(one.first_step, one.last_step)}`) : el("b", {}, "no window"),
      ...(one ? lines.map(({ key, color }) => el("div", {}, swatch(color), labelOf(key), el("span", {}, balancedness(one[key])))) : []),
      ...near.slice(0, 4).map(({ color, text }) => el("div", {}, swatch(color), text)),
      near.length > 4 ? el("div", {}, `and ${counted(near.length - 4, "mark")} more`) : null].filter(Boolean);
  };

  // Kinds of windows.
  const WORDS = {
    daemon: { none: "No complete window yet.", of: "of this run",
      batch: "Measured, the static layout and without EPLB are per batch, as the job splits it; equal shares are of a window's sum, which is more even than its batches." },
    trace: { none: "The trace has no window.", of: "of the trace, computed: nothing ran",
      batch: "Replayed splits each window exactly, as one batch. The other lines have equal shares." },
  };
  WORDS.run = { ...WORDS.daemon, none: "The run has no step.", of: "of this run" };

  const lanesOf = (data, windows) => {
    const switches = eplb.series.switches(data.plans).map((plan) => ({ step: plan.switched_step,
      text: `plan ${plan.plan} moved experts${eplb.series.isPrediction(plan) ? `, predicted ${balancedness(plan.balancedness_predicted)}` : ""}` }));
    const events = data.events.filter(({ name }) => !ROUTINE.includes(name)).map((event) => ({
      step: eplb.series.stepAt(windows, event.unix_micros), text: brief(`${event.name}: ${event.reason}`) })).filter(({ step }) => step !== null);
    return [{ name: "moved", color: "--commit", marks: switches }, { name: "events", color: "--event", marks: events }]
      .filter(({ name, marks }) => name === "moved" || marks.length > 0);
  };

  const create = (context) => {
    const words = WORDS[context.kind];
    const { node, body } = panel("balance", "Balancedness over steps",
      "Mean GPU load / fullest GPU's load of a layer, the mean over layers; 1 is best. Thin lines are computed for the same tokens. A tick below the axis: experts moved. A diamond: an event. A point with a bar: what a decision predicted of the window that followed, and its error; hollow where that window lay outside it. A name below the chart hides its line.");
    const box = el("div", { class: "chart", role: "img", "aria-label": "Line chart of balancedness over steps; the table below has its numbers" });
    const note = el("p", { class: "note" });
    let chart = null, form = "";
    let drawn = { windows: [], lines: [], lanes: [], predictions: [] };
    const split = () => drawn.windows.some((one) => one.split === "batch");
    const list = behind("balance", "Table of windows", () => {
      const rows = drawn.windows.slice(-200).reverse();
      return table(`Windows, the newest ${count(rows.length)} of ${count(drawn.windows.length)}`, columns("Window", rows), rows, words.none);
    });
    body.append(box, note, list.node);

    const make = (points) => {
      const tip = el("div", { class: "tip", hidden: true });
      const follow = (self) => {
        const { left, top, idx } = self.cursor;
        tip.hidden = idx === null || idx === undefined || left < 0;
        if (tip.hidden) return;
        tip.replaceChildren(...tipOf(self, drawn));
        const wide = tip.offsetWidth, beside = left + 12 + wide <= self.over.clientWidth ? left + 12 : left - 12 - wide;
        tip.style.left = `${Math.max(beside, 0)}px`;
        tip.style.top = `${Math.min(top + 12, 60)}px`;
      };
      const lines = { stroke: css("--text"), grid: { stroke: css("--grid"), width: 1 } };
      return new uPlot({
        width: Math.max(box.clientWidth, 280), height: HEIGHT,
        legend: { live: false },
        // The point under the pointer has the line's own colour: the ground's would look like a gap.
        cursor: { y: false, points: { size: 8, fill: (self, i) => self.series[i].stroke(self, i), stroke: css("--ground"), width: 1 } },
        scales: { x: { time: false, range: (_, low, high) => [drawn.windows[0].first_step, high] }, y: { range: (_, low) => [Math.max(0, Math.floor((low - 0.02) * 10) / 10), 1] } },
        axes: [
          { ...lines, ticks: { show: false }, label: "step", labelSize: 18, labelGap: 0, gap: 2 * LANE + BELOW + 4, size: 2 * LANE + BELOW + 22, space: 70,
            incrs: [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power)), values: (_, values) => values.map(count) },
          { ...lines, ticks: { show: false }, size: 54, incrs: [0.01, 0.02, 0.05, 0.1, 0.2], values: (_, values) => values.map((value) => value.toFixed(2)) },
        ],
        series: [{ label: "step" }, ...drawn.lines.map((line) => ({
          label: labelOf(line.key), stroke: css(line.color), width: line.width, dash: line.dash, spanGaps: false,
          points: { show: points[0].length < 60, size: 5, fill: css("--ground") },
        }))],
        hooks: { draw: [(self) => overlay(self, drawn)], setCursor: [follow], ready: [(self) => self.over.append(tip)] },
      }, points, box);
    };

    const draw = () => {
      const points = eplb.series.columns(drawn.windows, drawn.lines.map((line) => line.key));
      // New windows keep the chart and what the pointer shows.
      const fresh = `${drawn.windows.length > 0}/${drawn.lines.length}/${points[0].length < 60}/${eplb.colors.isDark()}`;
      if (fresh === form) { chart?.setData(points); return; }
      form = fresh;
      chart?.destroy();
      box.replaceChildren();
      chart = drawn.windows.length > 0 ? make(points) : null;
    };
    // The pointer on a tick or a diamond, below the plot, reads as the pointer above it.
    box.addEventListener("pointermove", ({ clientX, clientY, target }) => {
      if (!chart || chart.over.contains(target)) return;
      const { left, width, bottom, height } = chart.over.getBoundingClientRect();
      const at = clientX - left, below = clientY - bottom;
      const on = at >= 0 && at <= width && below >= 0 && below < 2 * LANE + BELOW;
      chart.setCursor(on ? { left: at, top: height } : { left: -10, top: -10 });
    });
    box.addEventListener("pointerleave", () => chart?.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => chart?.setSize({ width: Math.max(box.clientWidth, 280), height: HEIGHT })).observe(box);

    let shown = "";
    const update = (data) => {
      const windows = eplb.series.ofNewestRun(data.windows);
      drawn = { windows, lanes: lanesOf(data, windows), predictions: eplb.series.predictions(data.plans) };
      // The two lines are one if each window is measured in equal shares.
      drawn.lines = LINES.filter((line) => split() || line.key !== "balancedness_equal");
      note.replaceChildren(drawn.predictions.length ? el("span", { class: "predicted" }, "● predicted, with its error. ") : "", windows.length === 0 ? words.none
        : `${counted(windows.length, "window")} ${words.of}.${split() ? ` ${words.batch}` : ""}`);
      const last = windows[windows.length - 1];
      const now = [last?.window, last?.completed_unix_micros, ...drawn.lanes.map((lane) => lane.marks.length), drawn.predictions.length, eplb.colors.isDark()].join("/");
      if (now !== shown) { shown = now; draw(); }
      list.refresh();
    };
    return { node, update, redraw: () => { shown = ""; }, points: () => chart?.data };
  };
  return { create };
})();
