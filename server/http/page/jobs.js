// All jobs in one table, trouble first, with a filter; without a job, how to connect the first one.
"use strict";

eplb.jobs = (() => {
  const { el, redraw, columns } = eplb.dom;
  const { sentence, brief, briefName, counted, count, savedText, isNumber, ended, lostTime } = eplb.format;
  const KINDS = { bad: "in trouble", busy: "to watch", good: "well", ended: "ended" };

  // Each job as a row, and each name that the daemon refuses to serve.
  const rowsOf = (answer) => [...answer.jobs.map((job) => ({ ...job, ...sentence(job) })),
    ...answer.refusals.map((one) => ({ job: one.job, state: "refused", kind: "bad", refused: true,
      text: `${counted(one.count, "rank")} refused: ${one.reason}` }))];

  const SHOWN = ["job", "state", "text", "saved_seconds", "balancedness", "balancedness_without_eplb", "step", "connected_ranks"];
  const OWN = {
    job: { of: (row) => row.refused ? briefName(row.job) : el("a", { href: `#/${encodeURIComponent(row.job)}` }, briefName(row.job)) },
    saved_seconds: { of: (row) => savedText(row) ?? "–" },
    text: { key: "text", name: "now", help: "", of: (row) => brief(row.text) },
    connected_ranks: { of: (row) => ended(row) || row.refused || !row.world_size ? "–" : row.connected_ranks === row.world_size ? count(row.world_size)
      : `${count(row.connected_ranks)} of ${count(row.world_size)}` },
  };
  const shown = () => SHOWN.map((key) => ({ ...columns("JobStatus").find((one) => one.key === key), ...OWN[key] }));

  const URGENCY = Object.keys(KINDS);
  // by: a column's key, "-" before it for the largest first; empty: the most urgent first. What has no value is last.
  const sorted = (rows, by) => {
    const key = by.replace(/^-/, ""), sign = by.startsWith("-") ? -1 : 1;
    const name = (a, b) => a.job < b.job ? -1 : 1;
    if (!SHOWN.includes(key)) return rows.sort((a, b) => URGENCY.indexOf(a.kind) - URGENCY.indexOf(b.kind) || name(a, b));
    const missing = (row) => row[key] === null || row[key] === undefined;
    return rows.sort((a, b) => missing(a) - missing(b) || (missing(a) || a[key] === b[key] ? name(a, b) : sign * (a[key] < b[key] ? -1 : 1)));
  };
  const matches = (row, words) => {
    const text = `${row.job} ${row.state} ${row.text} ${KINDS[row.kind]}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };

  const summary = (rows, jobs, words) => {
    const known = rows.filter((row) => isNumber(row.saved_seconds)), lost = known.filter(lostTime).length;
    const parts = [el("strong", {}, counted(jobs.length, "job")),
      ...URGENCY.map((kind) => [kind, rows.filter((row) => row.kind === kind).length]).filter(([, number]) => number > 0)
        .map(([kind, number]) => el("button", { type: "button", class: `dot ${kind}`, "data-find": KINDS[kind], "aria-pressed": String(words === KINDS[kind]) }, `${count(number)} ${KINDS[kind]}`)),
      known.length ? el("span", { class: lost ? "busy" : null }, `${savedText({ saved_seconds: known.reduce((sum, row) => sum + row.saved_seconds, 0), saved_is_assumed: known.some((row) => row.saved_is_assumed) })} saved, net of pauses`
        + (known.length < rows.length ? `, in ${counted(known.length, "job")}` : "") + (lost ? `; ${count(lost)} lost time` : "")) : null];
    return parts.filter(Boolean).flatMap((part, i) => i ? ["·", part] : [part]);
  };

  const heading = ({ key, name, number, help }, by) => {
    const direction = by === key ? "ascending" : by === `-${key}` ? "descending" : null;
    return el("th", { scope: "col", class: `${key}${number ? " number" : ""}`, "aria-sort": direction, title: help || null },
      el("button", { type: "button", "data-sort": key, "data-first": number ? "-" : "" }, name));
  };
  const table = (rows, by) => el("div", { class: "jobs", tabindex: "0", role: "region", "aria-label": "Jobs" }, el("table", {},
    el("thead", {}, el("tr", {}, shown().map((column) => heading(column, by)))),
    el("tbody", {}, rows.length ? rows.map((row) => el("tr", { class: row.kind }, shown().map(({ key, number, of }) =>
      el("td", { class: `${key}${number ? " number" : ""}${key === "saved_seconds" && lostTime(row) ? " busy" : ""}${key === "job" ? ` dot ${row.kind}` : ""}`,
        title: key === "text" || key === "job" ? row[key] : null }, of(row))))) : el("tr", {}, el("td", { colspan: String(SHOWN.length) }, "No job matches.")))));

  const empty = () => [el("h2", {}, "No job has connected yet"),
    el("p", {}, "A PyTorch trainer connects with two lines in each rank, one after the model and the optimizer exist, and one after each step:"),
    el("pre", { tabindex: "0", "aria-label": "The two lines" }, "attached = eplb.torch.attach(model, optimizer, experts=\"*.experts\", router=\"router\",\n"
      + `                             endpoint="${location.hostname || "HOST"}:29610", job="NAME")\n\nattached.step_boundary()`),
    el("p", {}, "The port is that of ", el("code", {}, "listen.grpc"), ". To see a job without a trainer or a GPU: ", el("code", {}, "python -m eplb.demo"),
      ". The page shows a job as soon as its ranks connect.")];

  // view: the address's; setView changes it.
  const create = ({ view, setView }) => {
    const find = el("input", { type: "search", placeholder: "name, state or text", "aria-label": "Filter jobs" });
    const line = el("p", { class: "summary", role: "status" }), holder = el("div");
    const node = el("div", { class: "overview" }, el("div", { class: "bar" }, line, find), holder);
    let answer = null;
    const draw = () => {
      const rows = rowsOf(answer);
      find.hidden = line.hidden = rows.length === 0;
      if (rows.length === 0) return redraw(holder, ...empty());
      const words = (view().find ?? "").toLowerCase().split(/\s+/).filter(Boolean);
      redraw(line, ...summary(rows, answer.jobs, view().find));
      redraw(holder, table(sorted(rows.filter((row) => matches(row, words)), view().sort ?? ""), view().sort ?? ""));
    };
    find.addEventListener("input", () => { setView({ find: find.value || null }); draw(); });
    node.addEventListener("click", ({ target }) => {
      const { sort, first, find: words } = target.dataset;
      if (words !== undefined) setView({ find: view().find === words ? null : words });
      // First one way, then the other, then the most urgent first again.
      else if (sort !== undefined) {
        const turns = [`${first}${sort}`, first ? sort : `-${sort}`, null];
        setView({ sort: turns[turns.indexOf(view().sort ?? null) + 1] ?? (turns.includes(view().sort) ? null : turns[0]) });
      } else return;
      update(answer);
    });
    const update = (fresh) => {
      answer = fresh;
      if (document.activeElement !== find) find.value = view().find ?? "";
      draw();
    };
    return { node, update };
  };
  return { create, rowsOf, KINDS };
})();
