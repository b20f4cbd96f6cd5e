// Colours that people with any colour vision tell apart, on a dark and on a light ground.
"use strict";

eplb.colors = (() => {
  // Lightness rises evenly, from blue over grey to yellow, so that the scale also reads in grey.
  const STOPS = [[0, 32, 81], [40, 60, 110], [86, 92, 108], [125, 122, 120], [170, 155, 110], [214, 190, 82], [253, 232, 69]];
  // share: 0..1 of the scale. Returns [r, g, b].
  const at = (share) => {
    const place = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(place), STOPS.length - 2);
    return STOPS[low].map((from, i) => Math.round(from + (STOPS[low + 1][i] - from) * (place - low)));
  };
  // The scale in 256 steps, each as a pixel of a picture.
  const TABLE = new Uint32Array(Uint8ClampedArray.from(
    Array.from({ length: 256 }, (_, i) => [...at(i / 255), 255]).flat()).buffer);
  const pixel = (share) => TABLE[Math.min(Math.max(Math.round(255 * share), 0), 255)];
  const text = (share) => `rgb(${at(share).join(",")})`;

  // The theme: what the browser prefers, or what was chosen on this page.
  const KEY = "eplb-theme";
  const chosen = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const prefersDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark() ? "dark" : "light")) === "dark";
  const apply = (theme) => {
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  };
  const toggle = () => {
    const next = isDark() ? "light" : "dark";
    apply(next);
    try { localStorage.setItem(KEY, next); } catch { /* the choice holds for this visit */ }
  };
  return { at, pixel, text, isDark, apply, toggle, chosen };
})();
