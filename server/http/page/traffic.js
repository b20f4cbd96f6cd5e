// Rows that a rebalance moved, from GPU to GPU and from node to node.
"use strict";

eplb.traffic = (() => {
  const { el, table, behind, panel } = eplb.dom;
  const { count, counted, bytes, percent } = eplb.format;

  const create = (context) => {
    const { node, body } = panel("traffic", "Bytes between GPUs and nodes", context.kind === "trace"
      ? "Transfers follow from the two placements, bytes from --expert-bytes: nothing ran."
      : "Transfers are computed from the two placements, as one move; ranks that moved in chunks may have chosen another source. Bytes are what the ranks measured, shared out by transfers.");
    const pick = el("select", { "aria-label": "Rebalance shown" });
    const note = el("p", { class: "note", "aria-live": "polite" });
    const place = el("output", { class: "reading", "aria-live": "polite" });
    const map = eplb.grid.create({ name: "transfers between GPUs", rows: "from GPU", columns: "to GPU", height: (gpus) => Math.min(85 * gpus, 340),
      read: (from, to) => { place.textContent = `GPU ${from} to GPU ${to}: ${counted(matrix[from][to] ?? 0, "transfer")}`; } });
    map.node.classList.add("square");
    let matrix = [];
    const nodes = el("div");
    const key = el("p", { class: "note" });
    let traffic = null;
    const share = (flow) => traffic.received_bytes === null || traffic.transfers === 0 ? null : traffic.received_bytes * flow[2] / traffic.transfers;
    const columns = (one) => [
      { name: `from ${one}`, of: (flow) => count(flow[0]), number: true },
      { name: `to ${one}`, of: (flow) => count(flow[1]), number: true },
      { name: "transfers", of: (flow) => count(flow[2]), number: true },
      { name: "bytes", of: (flow) => share(flow) === null ? "not known" : bytes(share(flow)), number: true },
    ];
    const list = behind("traffic", "Table of flows between GPUs", () => table(`Flows between GPUs, the largest ${count(Math.min(traffic?.gpus.length ?? 0, 500))} of ${count(traffic?.gpus.length ?? 0)}`, columns("GPU"),
      traffic ? traffic.gpus.slice().sort((a, b) => b[2] - a[2]).slice(0, 500) : [], "Nothing moved."));
    body.append(el("label", { class: "pick" }, "Rebalance ", pick), note, el("div", { class: "maps" }, el("div", {}, map.node, key, place), nodes), list.node);

    const draw = () => {
      const size = traffic.num_gpus;
      const most = Math.max(1, ...traffic.gpus.map((flow) => flow[2]));
      matrix = Array.from({ length: size }, () => new Array(size).fill(null));
      for (const [from, to, transfers] of traffic.gpus) matrix[from][to] = transfers;
      map.set(matrix, (transfers) => transfers === null ? 0 : eplb.colors.pixel(transfers / most));
      key.textContent = `Yellow: ${counted(most, "transfer")}, the most between two GPUs; plain: none.`;
      const crossing = traffic.transfers ? traffic.cross_node_transfers / traffic.transfers : 0;
      note.textContent = `Plan ${traffic.plan}: ${counted(traffic.transfers, "transfer")}`
        + (traffic.received_bytes === null ? ", bytes not known" : `, ${bytes(traffic.received_bytes)} ${context.kind === "trace" ? "computed" : "received by all ranks"}`)
        + (traffic.num_nodes > 1 ? `, ${percent(crossing)} of the transfers between nodes.` : ", all inside one node.");
      nodes.replaceChildren(traffic.num_nodes > 1 ? table("Flows between nodes", columns("node"), traffic.nodes, "Nothing moved.") : "");
      list.refresh();
    };
    pick.addEventListener("change", () => context.setView({ plan: pick.value || null }));

    let shown = "", offered = "";
    const update = async (data, view) => {
      const plans = data.plans.filter((plan) => plan.chunks_committed > 0);
      const numbers = plans.map((plan) => plan.plan);
      if (numbers.join() !== offered) {
        offered = numbers.join();
        pick.replaceChildren(...plans.map((plan) => el("option", { value: String(plan.plan) }, `plan ${plan.plan}, step ${count(plan.switched_step)}`)));
      }
      pick.disabled = plans.length === 0;
      if (plans.length === 0) {
        note.textContent = context.kind === "daemon" ? "No expert has moved yet." : "No expert has moved.";
        map.node.hidden = key.hidden = true;
        return;
      }
      const plan = numbers.includes(Number(view.plan)) ? Number(view.plan) : numbers[0];
      pick.value = String(plan);
      const newest = `${plan}/${plans.find((one) => one.plan === plan).last_version}`;
      if (newest === shown) return;
      shown = newest;
      try {
        traffic = await context.get("traffic", { plan });
        map.node.hidden = key.hidden = false;
        draw();
      } catch (error) {
        map.node.hidden = key.hidden = true;
        shown = "";  // the next look asks again
        nodes.replaceChildren();
        note.textContent = `Plan ${plan}: ${error.message}.`;
      }
    };
    return { node, update, follows: ["plan"], redraw: () => { if (traffic) draw(); } };
  };
  return { create };
})();
