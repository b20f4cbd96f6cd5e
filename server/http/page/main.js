// Brings figures and panels together. One address shows one view: #/JOB?panel=..&window=..&layer=..&plan=..&find=..
"use strict";

eplb.main = (() => {
  const { el, tile } = eplb.dom;
  const { sentence, balancedness, count, percent, steps, clock, ended } = eplb.format;
  const PANELS = ["balance", "heatmap", "rebalances", "account", "ranks", "traffic", "layer", "decisions"];
  const POLL_MS = 5000, GATHER_MS = 400, MOST_WINDOWS = 4096, MOST_EVENTS = 1000, MOST_PLANS = 200;

  const source = eplb.source.open();
  const at = (id) => document.getElementById(id);
  let answer = { jobs: [], refusals: [], warnings: [] };
  let shown = null;  // of the job that is shown: name, panels, documents
  let state = { connected: false, since: Date.now(), failed: "" };

  // ---- the address ----
  const route = () => {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    let job = "";
    try { job = decodeURIComponent(path); } catch { /* no job has such a name */ }
    return { job, view: Object.fromEntries(new URLSearchParams(query ?? "")) };
  };
  const address = (job, view) => {
    const query = new URLSearchParams(Object.entries(view).filter(([, value]) => value !== null && value !== undefined && value !== ""));
    const text = query.toString();
    return `#/${encodeURIComponent(job)}${text ? `?${text}` : ""}`;
  };

  let changed = {}, writeAddress = null;  // what the address does not say yet
  const viewNow = () => {
    const view = { ...route().view, ...changed };
    for (const [key, value] of Object.entries(view)) if (value === null) delete view[key];
    return view;
  };

  // ---- one job ----
  const context = (name) => ({
    get: (what, query) => source.get(eplb.source.ofJob(name, what, query)),
    kind: source.kind,
    link: (view) => address(name, { ...route().view, ...view }),
    // What is shown changes at once, the address a little later: a slider may change it 60 times a second.
    setView: (view) => {
      changed = { ...changed, ...view };
      writeAddress ??= setTimeout(() => {
        writeAddress = null;
        history.replaceState(null, "", address(name, viewNow()));
        changed = {};
      }, 250);
      for (const panel of shown.panels) {
        if (panel.follows?.some((key) => key in view)) panel.update(shown.data, viewNow());
      }
    },
    layerName: (layer) => {
      const model = shown?.data.job?.model_layers?.[layer];
      return model === undefined || model === layer ? String(layer) : `${layer} (model layer ${model})`;
    },
  });

  const open = (name) => {
    const top = el("div", { class: "top" });
    const panels = PANELS.filter((one) => !source.leftOut.includes(one)).map((one) => eplb[one].create(context(name)));
    const links = el("nav", { class: "sections", "aria-label": "Panels" }, panels.map((panel) =>
      el("a", { href: address(name, { ...route().view, panel: panel.node.id }) }, panel.node.querySelector("h2").textContent)));
    at("main").replaceChildren(top, links, ...panels.map((panel) => panel.node));
    shown = { name, top, panels, data: { job: null, windows: [], plans: [], events: [] }, stale: true };
  };

  const drawTop = (job) => {
    const { kind, text } = sentence(job);
    const better = job.peak_fall ?? (job.balancedness > 0 && job.balancedness_static > 0 ? 1 - job.balancedness_static / job.balancedness : null);
    const objective = job.split === "batch" ? "exact split of each batch" : "equal shares";
    shown.top.replaceChildren(
      el("h2", { class: "jobname" }, job.job),
      el("p", { class: `headline ${kind}` }, text),
      el("dl", { class: "tiles" },
        tile(source.kind === "trace" ? "balancedness replayed" : "balancedness measured", balancedness(job.balancedness), job.measured_last_step ? `steps ${steps(job.measured_first_step, job.measured_last_step)}, ${objective}` : ""),
        tile("without EPLB", balancedness(job.balancedness_static), "the same tokens, static layout"),
        tile("fullest GPUs' load", better === null ? "–" : percent(-better), "against without"),
        tile("newest prediction", balancedness(job.balancedness_predicted), job.prediction_error
          ? `± ${job.prediction_error.toFixed(3)}, ${job.balancedness_seen ? `seen ${balancedness(job.balancedness_seen)}` : "not seen yet"}`
          : source.live ? "" : "known to a daemon alone"),
        tile("step", count(job.step), source.kind === "trace" ? "nothing ran" : ended(job) ? "run has ended" : `version ${count(job.version)}`),
        tile("policy", job.policy?.policy || job.policy?.policy_name || job.policy?.name || "–", job.policy?.mode || "")),
      job.last_reason ? el("p", { class: "reason" }, el("strong", {}, "Newest decision: "), job.last_reason) : "");
  };

  const drawPanels = () => {
    if (!shown?.data.job) return;
    drawTop(shown.data.job);
    const view = viewNow();
    for (const panel of shown.panels) panel.update(shown.data, view);
  };

  const scrollToPanel = () => {
    const { view } = route();
    const node = view.panel ? document.getElementById(view.panel) : null;
    node?.scrollIntoView({ block: "start" });
  };

  const added = (old, fresh, key, most) => {
    const last = old.length ? old[old.length - 1][key] : -1;
    return [...old, ...fresh.filter((one) => one[key] > last)].slice(-most);
  };

  // What is new of the shown job. again: everything, as after a restart of the daemon.
  const loadJob = async (again) => {
    const { name } = shown;
    const data = again ? { job: null, windows: [], plans: [], events: [] } : shown.data;
    const get = context(name).get;
    const after = data.windows.length ? data.windows[data.windows.length - 1].window : 0;
    const seen = data.events.length ? data.events[data.events.length - 1].sequence : 0;
    const [job, windows, plans, events] = await Promise.all([get(""), get("windows", { after, limit: MOST_WINDOWS }),
      get("plans", { limit: MOST_PLANS }), get("events", { after: seen, limit: MOST_EVENTS })]);
    if (shown.name !== name) return;
    shown.data = {
      job, plans: plans.plans,
      windows: added(data.windows, windows.windows, "window", MOST_WINDOWS),
      events: added(data.events, events.events.slice().reverse(), "sequence", MOST_EVENTS),
    };
  };

  // ---- everything ----
  const notice = (text) => {
    at("main").replaceChildren(el("p", { class: "notice" }, text));
    shown = null;
  };
  const drawState = () => {
    const node = at("connection");
    const live = state.connected && !state.failed;
    node.className = live ? "good" : "bad";
    const text = !source.live ? `a report, made ${source.made}`
      : live ? "live" : `connection lost at ${clock(state.since * 1000)}: the figures are of then. Trying again.`;
    if (node.textContent !== text) node.textContent = text;
    document.body.classList.toggle("stale", source.live && !live);
  };

  const refresh = async (again) => {
    answer = await source.get("api/v1/jobs?ranks=0");
    let { job } = route();
    if (!job && answer.jobs.length === 1) {
      job = answer.jobs[0].job;
      history.replaceState(null, "", address(job, {}));
    }
    eplb.jobs.draw(at("jobs"), answer, job);
    document.title = job ? `${job} · EPLB` : "EPLB";
    if (!job) return notice(answer.jobs.length ? "Choose a job." : "No job has connected yet.");
    if (!answer.jobs.some((one) => one.job === job)) return notice(source.live ? `The daemon does not know a job ${job}.` : `This report has no job ${job}.`);
    const fresh = shown?.name !== job;
    if (fresh) open(job);
    await loadJob(again || fresh);
    drawPanels();
    if (fresh) scrollToPanel();
  };

  // At most one refresh at a time, and one that waits.
  let running = false, waiting = null;
  const ask = async (again = false) => {
    if (running) { waiting = (waiting ?? false) || again; return; }
    running = true;
    try {
      await refresh(again);
      state = { connected: true, since: Date.now(), failed: "" };
    } catch (error) {
      if (error.status === 404) { shown = null; } else if (!state.failed) {
        state = { connected: false, since: Date.now(), failed: error.message };
      }
    }
    running = false;
    drawState();
    if (waiting !== null) { const next = waiting; waiting = null; ask(next); }
  };
  let timer = null;
  const soon = () => { timer ??= setTimeout(() => { timer = null; ask(); }, GATHER_MS); };

  const start = () => {
    eplb.colors.apply(eplb.colors.chosen());
    at("theme").addEventListener("click", () => {
      eplb.colors.toggle();
      shown?.panels.forEach((panel) => panel.redraw?.());
      drawPanels();
    });
    addEventListener("hashchange", () => { ask().then(scrollToPanel); });
    source.watch({
      connected: () => { ask(true); },
      lost: () => {
        if (state.connected) state = { connected: false, since: Date.now(), failed: "" };
        drawState();
      },
      job: soon, job_gone: soon, event: soon,
    });
    if (source.live) setInterval(() => { if (!state.connected) ask(); }, POLL_MS);
    ask();
  };
  return { start, data: () => shown?.data, panels: () => shown?.panels };
})();
eplb.main.start();
