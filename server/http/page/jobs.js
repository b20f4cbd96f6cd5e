// All jobs, one sentence each.
"use strict";

eplb.jobs = (() => {
  const { el, redraw } = eplb.dom;
  const { sentence, counted } = eplb.format;

  // answer: of /api/v1/jobs. chosen: the job that is shown.
  const draw = (node, answer, chosen) => {
    const jobs = answer.jobs;
    const items = jobs.map((job) => {
      const { kind, text } = sentence(job);
      return el("li", {}, el("a", {
        href: `#/${encodeURIComponent(job.job)}`, class: `job ${kind}`, "aria-current": job.job === chosen ? "page" : undefined,
      }, el("span", { class: "name" }, job.job), el("span", { class: "sentence" }, text)));
    });
    const refusals = answer.refusals.map((one) => el("li", { class: "refusal" },
      el("span", { class: "name" }, one.job), el("span", { class: "sentence" },
        `not served, ${counted(one.count, "rank")} refused: ${one.reason}`)));
    redraw(node,
      el("h2", {}, counted(jobs.length, "job")),
      ...answer.warnings.map((text) => el("p", { class: "notice bad" }, text)),
      el("ul", {}, items, refusals),
      jobs.length ? null : el("p", { class: "help" }, "No job has connected yet. A trainer connects with its first step: see the README."));
  };
  return { draw };
})();
