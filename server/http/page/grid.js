// A matrix as a picture with numbered axes: one pixel a cell, made large without smoothing, and a cursor for pointer and arrow keys.
"use strict";

eplb.grid = (() => {
  const { el } = eplb.dom;
  const STEPS = [1, 2, 4, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 512, 1000, 1024, 2048, 4096];

  // Numbers beside an axis, each at the middle of its cell, at most `most` of them.
  const axis = (kind, title) => {
    const node = el("div", { class: `axis ${kind}`, "aria-hidden": "true" });
    const set = (cells, most) => {
      const step = STEPS.find((one) => cells / one <= most) ?? cells;
      node.replaceChildren(el("b", {}, title), ...Array.from({ length: Math.ceil(cells / step) }, (_, i) => {
        const number = el("span", {}, String(i * step));
        number.style[kind === "rows" ? "top" : "left"] = `${100 * (i * step + 0.5) / cells}%`;
        return number;
      }));
    };
    return { node, set };
  };

  // rows, columns: titles of the axes. read: gets (row, column) under pointer or cursor. height: of the picture with so many rows.
  const create = ({ name, rows, columns, read, height }) => {
    const canvas = el("canvas", { tabindex: "0", role: "img",
      "aria-label": `${name}: picture of ${rows} by ${columns}; arrow keys move a cursor, the line below reads its cell` });
    const caption = el("figcaption", {}, name);
    const frame = el("span", { class: "cursor", hidden: true });
    const left = axis("rows", rows), below = axis("columns", columns);
    const plot = el("div", { class: "plot" }, left.node, el("div", { class: "cells" }, canvas, frame), below.node);
    const node = el("figure", { class: "map" }, caption, plot);
    let cells = [], cursor = null;
    const width = () => cells[0]?.length ?? 0;
    const drawCursor = () => {
      frame.hidden = !cursor || cells[cursor[0]]?.[cursor[1]] === undefined;
      if (frame.hidden) return;
      const tall = 100 / cells.length, wide = 100 / width();
      Object.assign(frame.style, { top: `${cursor[0] * tall}%`, left: `${cursor[1] * wide}%`, height: `${tall}%`, width: `${wide}%` });
    };
    const number = () => {
      if (cells.length === 0) return;
      left.set(cells.length, canvas.clientHeight / 15);
      below.set(width(), canvas.clientWidth / 34);
    };
    const move = (row, column) => {
      cursor = [row, column];
      drawCursor();
      read(row, column);
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / box.height * cells.length);
      const column = Math.floor((event.clientX - box.left) / box.width * width());
      if (cells[row]?.[column] !== undefined) move(row, column);
    });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!by || cells.length === 0) return;
      event.preventDefault();
      const [row, column] = cursor ?? [0, -by[1]];
      move(Math.min(Math.max(row + by[0], 0), cells.length - 1), Math.min(Math.max(column + by[1], 0), width() - 1));
    });
    new ResizeObserver(number).observe(canvas);
    // pixel: makes the pixel of a value. Without rows the picture is hidden.
    const set = (fresh, pixel) => {
      const shape = `${cells.length}/${width()}`;
      cells = fresh;
      plot.hidden = cells.length === 0;
      drawCursor();
      if (plot.hidden) return;
      canvas.style.height = `${height(cells.length)}px`;
      canvas.width = width();
      canvas.height = cells.length;
      const image = new ImageData(width(), cells.length);
      new Uint32Array(image.data.buffer).set(cells.flatMap((row) => row.map(pixel)));
      canvas.getContext("2d").putImageData(image, 0, 0);
      if (shape !== `${cells.length}/${width()}`) number();
    };
    return { node, caption, set };
  };
  return { create };
})();
