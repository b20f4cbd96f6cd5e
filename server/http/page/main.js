// Brings figures and panels together. One address shows one view: #/JOB?panel=..&window=..&layer=..&plan=..&find=..
"use strict";

eplb.main = (() => {
  const { el, redraw, tile, columns, folded } = eplb.dom;
  const { sentence, brief, counted, count, isNumber, percent, steps, clock, ended } = eplb.format;
  const PANELS = ["balance", "heatmap", "account", "ranks", "rebalances", "decisions", "traffic", "layer"];
  const POLL_MS = 2000, MOST_WINDOWS = 4096, MOST_EVENTS = 1000, MOST_PLANS = 200;

  // Labels and help texts that differ on a page made from a file, by the label on a page of the daemon.
  const COMPUTED = "Computed: nothing ran.";
  const OF_FILES = {
    run: { seen: { label: "until next", help: "Measured from its last switch to the next decision's first, or to the end." } },
    trace: { measured: { label: "replayed", help: COMPUTED }, seen: { help: COMPUTED } },
  };

  const source = eplb.source.open();
  const at = (id) => document.getElementById(id);
  let answer = { jobs: [], refusals: [], warnings: [] };
  let shown = null;  // the job that is shown: name, panels, documents
  const state = { lost: 0 };  // lost: when the daemon stopped to answer; 0 while it answers

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

  let changed = {}, writeAddress = null;  // parts of the view that the address does not have yet
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
    // Changes the view at once and the address a little later, because a slider may change it 60 times a second.
    setView: (view) => {
      changed = { ...changed, ...view };
      writeAddress ??= setTimeout(() => {
        writeAddress = null;
        history.replaceState(null, "", address(name, viewNow()));
        changed = {};
      }, 250);
      for (const panel of shown?.panels ?? []) {
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
    at("main").replaceChildren(top, links, el("div", { class: "panels" }, panels.map((panel) => panel.node)));
    top.addEventListener("unfold", () => drawTop(shown.data));
    shown = { name, top, panels, data: { job: null, windows: [], plans: [], events: [] } };
  };

  const TILES = ["balancedness", "balancedness_without_eplb", "balancedness_predicted", "balancedness_seen", "step", "connected_ranks", "version"];
  // The figures of a job that are known. The two of the newest window stay without a value, because their remarks give the cause.
  const tiles = (job) => {
    const gain = job.balancedness > 0 && job.balancedness_without_eplb > 0 ? job.balancedness - job.balancedness_without_eplb : null;
    const remarks = {
      balancedness: job.measured_last_step ? `steps ${steps(job.measured_first_step, job.measured_last_step)}, ${
        job.split === "batch" ? "exact split of each batch" : "equal shares"}` : job.not_measured_reason,
      balancedness_without_eplb: gain !== null ? `${gain < 0 ? "−" : "+"}${Math.abs(gain).toFixed(3)} with EPLB; one slot per expert, computed`
        : job.balancedness > 0 ? "a rank's library is too old to report it" : "computed: one slot per expert",
      balancedness_predicted: (eplb.series.isPrediction(job) ? `± ${job.prediction_error?.toFixed(3) ?? "unknown"}` : "computed")
        + (isNumber(job.balancedness_seen) ? "" : ", not seen yet"),
      connected_ranks: job.engine ? "asks for all GPUs" : `of ${count(job.world_size)}`,
      step: job.engine ? `questions of ${job.engine}` : source.kind === "trace" ? "nothing ran" : ended(job) ? "run has ended" : "",
      version: `policy ${job.policy?.name || "–"}${job.policy?.mode === "observe" ? ", observes only" : ""}`,
    };
    return columns("JobStatus")
      .filter(({ key, of }) => TILES.includes(key) && !(key === "connected_ranks" && (ended(job) || !job.world_size)) && (of(job) !== "–" || key === "balancedness" || key === "balancedness_without_eplb"))
      .sort((a, b) => TILES.indexOf(a.key) - TILES.indexOf(b.key))
      .map(({ key, name, help, of }) => tile(name, of(job), remarks[key], help));
  };

  const drawTop = ({ job, plans }) => {
    const { kind, text } = sentence(job);
    redraw(shown.top,
      el("h2", { class: "jobname" }, job.job),
      el("div", { class: `headline ${kind}` }, folded("headline", text)),
      el("dl", { class: "tiles" }, eplb.account.saved(job, brief((job.saved_basis ?? "").replace("not known: ", ""))),
        source.live ? null : tile("fullest GPUs' load", isNumber(job.peak_fall) ? percent(-job.peak_fall) : "–", "against without"), tiles(job)),
      plans.length ? el("div", { class: "reason" }, el("strong", {}, "Newest decision: "), folded("newest", plans[0].reason)) : "");
  };

  const drawPanels = () => {
    if (!shown?.data.job) return;
    drawTop(shown.data);
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

  // Loads news of the shown job. A part that cannot be loaded stays as it was, and its error is shown.
  const loadJob = async () => {
    const { name, data } = shown;
    const wrong = [];
    const get = (what, query, old) => context(name).get(what, query).catch((error) => {
      if (error.lost) throw error;
      wrong.push(error.message);
      return old;
    });
    const last = data.windows[data.windows.length - 1];
    const seen = data.events.length ? data.events[data.events.length - 1].sequence : 0;
    // The newest window that is known comes again: it tells whether the same daemon answers.
    const [job, windows, plans, events] = await Promise.all([get("", {}, data.job),
      get("windows", { after: last ? last.window - 1 : 0, limit: MOST_WINDOWS }, { windows: last ? [last] : [] }),
      get("plans", { limit: MOST_PLANS }, { plans: data.plans }), get("events", { after: seen, limit: MOST_EVENTS }, { events: [] })]);
    if (shown?.name !== name) return;
    tell(wrong[0] ?? "");
    const again = windows.windows.find((one) => one.window === last?.window);
    if (last && again?.completed_unix_micros !== last.completed_unix_micros) {
      open(name);  // window numbers began again: nothing of the daemon before may stay
      return loadJob();
    }
    shown.data = {
      job, plans: plans.plans,
      windows: added(data.windows, windows.windows, "window", MOST_WINDOWS),
      events: added(data.events, events.events.slice().reverse(), "sequence", MOST_EVENTS),
    };
  };

  // ---- everything ----
  const tell = (text) => {
    const node = at("problem");
    node.hidden = text === "";
    if (node.textContent !== text) node.textContent = text;
  };
  const drawState = () => {
    const node = at("connection");
    node.className = state.lost ? "bad" : "good";
    const text = !source.live ? `a report, made ${source.made}`
      : state.lost ? `connection lost at ${clock(state.lost * 1000)}: the figures are of then. Trying again.` : "live";
    if (node.textContent !== text) node.textContent = text;
    document.body.classList.toggle("stale", source.live && state.lost !== 0);
  };

  const overview = eplb.jobs.create({ view: () => viewNow(), setView: (view) => context("").setView(view) });
  const showInstead = (node) => {
    shown = null;
    if (at("main").firstChild !== node) at("main").replaceChildren(node);
  };
  // The way back to all jobs, with those in trouble beside the shown one.
  const drawWay = (chosen) => {
    const rows = eplb.jobs.rowsOf(answer), bad = rows.filter((row) => row.kind === "bad" && row.job !== chosen).length;
    redraw(at("jobs"), chosen && rows.length > 1 ? el("a", { href: "#/" }, `All ${counted(answer.jobs.length, "job")}`) : "",
      chosen && bad > 0 ? el("a", { class: "dot bad", href: address("", { find: eplb.jobs.KINDS.bad }) }, `${count(bad)} ${eplb.jobs.KINDS.bad}`) : "");
    redraw(at("warnings"), ...answer.warnings.map((text) => el("p", { class: "notice bad" }, text)));
  };

  const refresh = async () => {
    answer = await source.get("api/v1/jobs?ranks=0");
    let { job } = route();
    if (!job && answer.jobs.length === 1 && answer.refusals.length === 0) {
      job = answer.jobs[0].job;
      history.replaceState(null, "", address(job, {}));
    }
    document.title = job ? `${job} · EPLB` : "EPLB";
    drawWay(job);
    if (!job) {
      showInstead(overview.node);
      return overview.update(answer);
    }
    if (!answer.jobs.some((one) => one.job === job)) {
      return showInstead(el("p", { class: "notice" }, source.live ? `The daemon does not know a job ${job}.` : `This report has no job ${job}.`));
    }
    const fresh = shown?.name !== job;
    if (fresh) open(job);
    await loadJob();
    drawPanels();
    if (fresh) scrollToPanel();
  };

  // At most one refresh at a time, and one that waits.
  let running = false, waiting = false;
  const ask = async () => {
    if (running) { waiting = true; return; }
    running = true;
    try {
      await refresh();
      state.lost = 0;
    } catch (error) {
      if (error.lost) state.lost ||= Date.now(); else tell(error.message);
    }
    running = false;
    drawState();
    if (waiting) { waiting = false; ask(); }
  };

  const start = () => {
    for (const field of Object.values(eplb.figures).flat()) Object.assign(field, OF_FILES[source.kind]?.[field.label]);
    eplb.colors.apply(eplb.colors.chosen());
    at("theme").addEventListener("click", () => {
      eplb.colors.toggle();
      shown?.panels.forEach((panel) => panel.redraw?.());
      drawPanels();
    });
    addEventListener("hashchange", () => { ask().then(scrollToPanel); });
    if (source.live) {
      const askIfSeen = () => { if (!document.hidden && !running) ask(); };
      setInterval(askIfSeen, POLL_MS);
      document.addEventListener("visibilitychange", askIfSeen);
    }
    ask();
  };
  return { start, data: () => shown?.data, panels: () => shown?.panels };
})();
eplb.main.start();
