// Each rank: whether it is there, how far it is, what the newest switch cost it.
"use strict";

eplb.ranks = (() => {
  const { el, redraw, columns, table, panel } = eplb.dom;
  const { count, seconds, percent, listed, counted, isNumber } = eplb.format;
  const ALL = 64;  // more ranks than this: only those worth a look, until all are asked for

  // Returns a remark on the rank; empty if nothing is unusual.
  const remark = (job, rank, longest) => {
    const remarks = [];
    if (rank.state && rank.state !== "connected" && rank.state !== "finished") {
      remarks.push(rank.away_seconds > 0 ? `${rank.state} for ${seconds(rank.away_seconds)}` : rank.state);
    }
    if (rank.answer === "none") remarks.push("has not answered the proposal");
    if (rank.dropped_steps > 0) remarks.push(`dropped counts of ${counted(rank.dropped_steps, "step")}`);
    if (rank.running_version !== job.version) remarks.push(`runs version ${rank.running_version}`);
    const slow = job.gpu_speeds.find((one) => one.measured && one.gpu === rank.gpu);
    if (slow) remarks.push(`its GPU is slow: ${percent(slow.measured)} of the median's speed`);
    if (longest !== null && rank.pause_seconds === longest) remarks.push("longest pause");
    return remarks.join("; ");
  };
  const summary = (job) => {
    const missing = job.ranks.filter((rank) => !rank.connected && rank.state !== "finished").map((rank) => rank.rank);
    const slow = job.gpu_speeds.filter((one) => one.measured);
    const finished = job.ranks.filter((rank) => rank.state === "finished").length;
    const known = isNumber(job.connected_ranks);
    const parts = [finished ? `${count(finished)} of ${count(job.world_size)} ranks have finished`
      : !job.world_size ? "no rank has registered" : known ? `${count(job.connected_ranks)} of ${count(job.world_size)} ranks are connected` : counted(job.world_size, "rank")];
    if (job.engine) parts.splice(0, 1, `${job.engine} asks for placements for ${counted(job.num_gpus, "GPU")}, and a step is a question`);
    if (missing.length) parts.push(`missing: ${listed(missing, "rank")}`);
    if (slow.length) parts.push(`slow: ${listed(slow.map((one) => one.gpu), "GPU")}. ${slow[0].reason}`);
    if (isNumber(job.step_seconds)) parts.push(`a step takes ${seconds(job.step_seconds)} on average`);
    return `${parts.join("; ")}.`;
  };

  const create = (context) => {
    const { node, body } = panel("ranks", "Ranks", context.kind === "run"
      ? "As the ranks' own logs end. How long each rank paused and prepared is not in them; the time line has the longest pause of each switch."
      : "Prepare: from the newest proposal to the rank's answer. Pause: of its newest switch, from the ranks' vote to its commit.");
    const note = el("p", { class: "note" });
    const holder = el("div");
    const all = el("input", { type: "checkbox", id: "all-ranks" });
    const choice = el("p", { class: "pick" }, all, el("label", { for: "all-ranks" }, " all ranks"));
    body.append(note, choice, holder);
    let last = null;
    const update = (data) => {
      last = data;
      const { job } = data;
      note.textContent = summary(job);
      const pauses = job.ranks.map((rank) => rank.pause_seconds).filter(isNumber);
      const longest = pauses.length ? Math.max(...pauses) : null;
      const rows = job.ranks.map((rank) => ({ ...rank, remark: remark(job, rank, longest) }));
      const many = rows.length > ALL;
      choice.hidden = !many;
      const shown = many && !all.checked ? rows.filter((row) => row.remark) : rows;
      for (const row of shown) row.mark = row.connected || row.state === "finished" ? "" : "bad";
      redraw(holder, table(many && !all.checked ? `Ranks worth a look, ${count(shown.length)} of ${count(rows.length)}` : "Ranks of the job", [
        ...columns("RankStatus", shown), { name: "remark", of: (row) => row.remark }], shown, "Nothing is worth a look."));
    };
    all.addEventListener("change", () => last && update(last));
    return { node, update };
  };
  return { create };
})();
