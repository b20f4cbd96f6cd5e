// Builds the document. Text from the daemon only ever becomes text nodes and attributes.
"use strict";

eplb.dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name in node && typeof value !== "string" && !node.namespaceURI.endsWith("svg")) node[name] = value;
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined && child !== false) node.append(child);
    }
    return node;
  };
  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  // Makes `old` like `fresh` with as few changes as there are: what is unchanged keeps focus, selection and scroll.
  const morph = (old, fresh) => {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
    if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
    // A line that was unfolded a moment ago stays open, although its event is still to come.
    const kept = old.dataset.key !== undefined && old.dataset.key === fresh.dataset.key ? "open" : "";
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== kept) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) === value) continue;
      // The page's policy forbids styles in attributes, and permits them through the document's own interface.
      if (name === "style") old.style.cssText = value; else old.setAttribute(name, value);
    }
    morphChildren(old, [...fresh.childNodes]);
  };
  const morphChildren = (node, children) => {
    const mine = [...node.childNodes];
    children.forEach((child, i) => { if (i < mine.length) morph(mine[i], child); else node.append(child); });
    for (const surplus of mine.slice(children.length)) surplus.remove();
  };
  // For nodes without listeners.
  const redraw = (node, ...children) => morphChildren(node, children.flat().filter((child) => child !== null && child !== "")
    .map((child) => typeof child === "string" ? document.createTextNode(child) : child));

  // A figure with its name. kind: "busy" for one that is worth a look.
  const tile = (name, value, note = "", help = "", kind = "") => el("div", { class: `tile ${kind}`, title: help || undefined },
    el("dt", {}, name), el("dd", {}, value), note ? el("dd", { class: "note" }, note) : null);

  // Columns of a message, as figures.js has them, but for those without a value in any of the rows.
  const columns = (message, rows = []) => eplb.figures[message].map((field) => ({
    ...field, name: field.label || field.key.replaceAll("_", " "), of: (row) => eplb.format.figure(field, row) }))
    .filter(({ of }) => rows.length === 0 || rows.some((row) => of(row) !== "–"));
  // columns: [{name, of(row) -> text or node, number: right-aligned, help}].
  const table = (caption, columns, rows, empty) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((column) =>
        el("th", { scope: "col", class: column.number ? "number" : undefined, title: column.help }, column.name)))),
      el("tbody", {}, rows.length ? rows.map((row) => el("tr", { class: row.mark || undefined }, columns.map((column) =>
        el("td", { class: column.number ? "number" : undefined }, column.of(row))))) :
        el("tr", {}, el("td", { colspan: String(columns.length) }, empty)))));

  // The table behind a picture, made when it is opened and kept open over redraws.
  const behind = (key, summary, make) => {
    const details = el("details", { class: "behind" }, el("summary", {}, summary));
    let shown = null;
    const show = () => {
      if (!details.open) return;
      const fresh = make();
      if (shown) morph(shown, fresh); else details.append(shown = fresh);
    };
    details.addEventListener("toggle", () => { opened[key] = details.open; show(); });
    details.open = opened[key] ?? false;  // filled with the panel's first figures
    return { node: details, refresh: show };
  };
  const opened = {};
  // One line, with the rest behind a click. more: makes the rest. Redraws keep it open; "unfold" asks the owner for a redraw.
  const unfold = (key, line, more) => el("details", { class: "more", open: opened[key] ?? false, "data-key": key },
    el("summary", {}, line), opened[key] ? more() : null);
  document.addEventListener("toggle", ({ target }) => {
    const { key } = target.dataset;
    if (key === undefined || (opened[key] ?? false) === target.open) return;
    opened[key] = target.open;
    target.dispatchEvent(new Event("unfold", { bubbles: true }));
  }, true);
  // A text in one line, with the whole of it behind a click if the line is shorter.
  const folded = (key, text) => {
    const line = eplb.format.brief(text);
    return line === text ? el("span", { class: "more" }, text) : unfold(key, line, () => el("p", {}, text));
  };

  // help: behind the question mark beside the title.
  const panel = (id, title, help) => {
    const body = el("div", { class: "body" });
    const node = el("section", { id, class: "panel", "aria-labelledby": `${id}-title` },
      el("h2", { id: `${id}-title` }, title),
      help ? el("details", { class: "help" }, el("summary", { "aria-label": `About: ${title}` }, "?"), el("p", {}, help)) : null, body);
    return { node, body };
  };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { el, svg, redraw, tile, columns, table, behind, unfold, folded, panel, css };
})();
