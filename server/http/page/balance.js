// Balancedness over steps: what ran, what equal shares, the static layout and no EPLB would have been, what was predicted.
"use strict";

eplb.balance = (() => {
  const { el, columns, table, behind, panel, css } = eplb.dom;
  const { balancedness, count, counted } = eplb.format;

  // Vertical lines where experts moved, and predictions as points with their error.
  const marks = (chart, switches, predictions) => {
    const { ctx } = chart;
    const { left, top, width, height } = chart.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.strokeStyle = css("--commit");
    ctx.lineWidth = devicePixelRatio;
    ctx.globalAlpha = 0.7;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const plan of switches) {
      const x = chart.valToPos(plan.switched_step, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    ctx.strokeStyle = ctx.fillStyle = css("--predicted");
    ctx.lineWidth = 1 * devicePixelRatio;
    for (const one of predictions) {
      const x = chart.valToPos(one.step, "x", true);
      const y = chart.valToPos(one.balancedness_predicted, "y", true);
      const error = one.prediction_error;
      if (error !== null) {
        ctx.globalAlpha = 0.5;
        ctx.beginPath();
        ctx.moveTo(x, chart.valToPos(one.balancedness_predicted - error, "y", true));
        ctx.lineTo(x, chart.valToPos(one.balancedness_predicted + error, "y", true));
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.arc(x, y, 3 * devicePixelRatio, 0, 2 * Math.PI);
      // Hollow: what followed lay outside the error.
      if (one.held === false) ctx.stroke(); else ctx.fill();
    }
    ctx.restore();
  };

  const LINES = [
    { key: "balancedness", color: "--measured", width: 2.5 },
    { key: "balancedness_equal", color: "--equal", width: 1.5, dash: [6, 3] },
    { key: "balancedness_static", color: "--static", width: 1.5, dash: [6, 3, 2, 3] },
    { key: "balancedness_without_eplb", color: "--without", width: 1.5, dash: [2, 3] },
  ];

  // Kinds of windows.
  const WORDS = {
    daemon: { none: "No complete window yet.", of: "of this run",
      batch: "Measured, the static layout and without EPLB are per batch, as the job splits it; equal shares are of a window's sum, which is more even than its batches." },
    trace: { none: "The trace has no window.", of: "of the trace, computed: nothing ran",
      batch: "Replayed splits each window exactly, as one batch. The other lines have equal shares." },
  };
  WORDS.run = { ...WORDS.daemon, none: "The run has no step.", of: "of this run" };

  const create = (context) => {
    const words = WORDS[context.kind];
    const { node, body } = panel("balance", "Balancedness over steps",
      "Mean GPU load / fullest GPU's load of a layer, the mean over layers; 1 is best. Thin lines are computed for the same tokens. A vertical line: experts moved. A point with a bar: what a decision predicted of the window that followed, and its error; hollow where that window lay outside it.");
    const box = el("div", { class: "chart", role: "img", "aria-label": "Line chart of balancedness over steps; the table below has its numbers" });
    const note = el("p", { class: "note" });
    let chart = null;
    let drawn = { switches: [], predictions: [] };
    let windows = [];
    const split = () => windows.some((one) => one.split === "batch");
    const list = behind("balance", "Table of windows", () => {
      const rows = windows.slice(-200).reverse();
      return table(`Windows, the newest ${count(rows.length)} of ${count(windows.length)}`, columns("Window", rows), rows, words.none);
    });
    body.append(box, note, list.node);

    const make = (points, lines) => new uPlot({
      width: Math.max(box.clientWidth, 280), height: 280,
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.max(0, Math.floor((low - 0.02) * 20) / 20), Math.min(1, Math.ceil((high + 0.02) * 20) / 20)] } },
      axes: [
        { label: "step", stroke: css("--text"), grid: { stroke: css("--grid") }, ticks: { stroke: css("--grid") }, labelSize: 20, values: (_, values) => values.map(count) },
        { stroke: css("--text"), grid: { stroke: css("--grid") }, ticks: { stroke: css("--grid") }, size: 50, values: (_, values) => values.map((value) => value.toFixed(2)) },
      ],
      series: [{ label: "step", value: (_, value) => count(value) }, ...lines.map((line) => ({
        label: eplb.figures.Window.find((one) => one.key === line.key).label, stroke: css(line.color), width: line.width, dash: line.dash, spanGaps: false,
        points: { show: points[0].length < 60, fill: css("--ground") }, value: (_, value) => balancedness(value),
      }))],
      hooks: { draw: [(self) => marks(self, drawn.switches, drawn.predictions)] },
    }, points, box);

    const draw = () => {
      chart?.destroy();
      chart = null;
      box.replaceChildren();
      if (windows.length === 0) return;
      // The two lines are one if each window is measured in equal shares.
      const lines = LINES.filter((line) => split() || line.key !== "balancedness_equal");
      chart = make(eplb.series.columns(windows, lines.map((line) => line.key)), lines);
    };
    new ResizeObserver(() => chart?.setSize({ width: Math.max(box.clientWidth, 280), height: 280 })).observe(box);

    let shown = "";
    const update = (data) => {
      windows = eplb.series.ofNewestRun(data.windows);
      drawn = { switches: eplb.series.switches(data.plans), predictions: eplb.series.predictions(data.plans) };
      note.textContent = windows.length === 0 ? words.none
        : `${counted(windows.length, "window")} ${words.of}.${split() ? ` ${words.batch}` : ""}`;
      const last = windows[windows.length - 1];
      const now = `${last?.window}/${last?.completed_unix_micros}/${drawn.switches.length}/${drawn.predictions.length}/${eplb.colors.isDark()}`;
      if (now !== shown) { shown = now; draw(); }
      list.refresh();
    };
    return { node, update, redraw: () => { shown = ""; }, points: () => chart?.data };
  };
  return { create };
})();
