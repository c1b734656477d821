/** Draws a picture of the console as an SVG file, box by box as the browser shows it. The README has docs/console.svg.
 * */

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { assert, call, open, test } from "./browser.mjs";

const root = resolve(import.meta.dirname, "../..");
const target = process.env.PICTURE ?? join(root, ".cache/console/screenshots/console.svg");
const SIZE = { width: 1080, height: 620 };

/** Runs in the page: each box with a color or a border, and each line of text, with its position in the browser. */
function drawn({ width, height }) {
  const escaped = (text) => text.replace(/[&<>"]/g, (found) => `&#${found.charCodeAt(0)};`);
  const round = (number) => Math.round(number * 10) / 10;
  const clear = (color) => color === "transparent" || /, 0\)$/.test(color);
  const hex = (color) => `#${color.match(/\d+/g).slice(0, 3).map((each) => Number(each).toString(16).padStart(2, "0")).join("")}`;
  const parts = [];

  /** The part of an element that the boxes around it do not cut off. */
  const clipOf = (element) => {
    const clip = { left: 0, top: 0, right: width, bottom: height };
    for (let each = element; each && each !== document.body; each = each.parentElement) {
      if (getComputedStyle(each).overflow === "visible") continue;
      const box = each.getBoundingClientRect();
      clip.left = Math.max(clip.left, box.left);
      clip.top = Math.max(clip.top, box.top);
      clip.right = Math.min(clip.right, box.right);
      clip.bottom = Math.min(clip.bottom, box.bottom);
    }
    return clip;
  };

  const box = (element, style) => {
    const clip = clipOf(element.parentElement);
    const { left, top, right, bottom } = element.getBoundingClientRect();
    const [x, y] = [Math.max(left, clip.left), Math.max(top, clip.top)];
    const [w, h] = [Math.min(right, clip.right) - x, Math.min(bottom, clip.bottom) - y];
    if (w <= 0 || h <= 0) return;
    const sides = ["Top", "Right", "Bottom", "Left"].filter((side) => parseFloat(style[`border${side}Width`]) > 0 && !clear(style[`border${side}Color`]));
    const fill = clear(style.backgroundColor) ? "none" : hex(style.backgroundColor);
    const stroke = sides.length === 4 ? ` stroke="${hex(style.borderTopColor)}"` : "";
    if (fill !== "none" || stroke) {
      parts.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}" rx="${round(Math.min(parseFloat(style.borderTopLeftRadius) || 0, h / 2))}" fill="${fill}"${stroke}/>`);
    }
    if (sides.length && sides.length < 4 && sides.includes("Bottom") && bottom <= clip.bottom) {
      parts.push(`<rect x="${round(x)}" y="${round(bottom - parseFloat(style.borderBottomWidth))}" width="${round(w)}" height="${parseFloat(style.borderBottomWidth)}" fill="${hex(style.borderBottomColor)}"/>`);
    }
  };

  const line = (text, from, to, middle, style, clip) => {
    if (middle < clip.top || middle > clip.bottom || from >= clip.right || to <= clip.left) return;
    const size = parseFloat(style.fontSize);
    let [shown, end] = [text.trim(), to];
    if (to > clip.right + 1) {
      shown = `${shown.slice(0, Math.floor((shown.length * (clip.right - from)) / (to - from)) - 1)}…`;
      end = clip.right;
    }
    if (!shown) return;
    const mono = /mono/i.test(style.fontFamily) ? ' class="m"' : "";
    const bold = Number(style.fontWeight) >= 600 ? ' font-weight="600"' : "";
    parts.push(`<text x="${round(from)}" y="${round(middle + size * 0.35)}" font-size="${round(size)}" textLength="${round(end - from)}" fill="${hex(style.color)}"${mono}${bold}>${escaped(shown)}</text>`);
  };

  const words = (node, style, clip) => {
    const range = document.createRange();
    let row;
    const rectsOf = (from, length) => {
      range.setStart(node, from);
      range.setEnd(node, from + length);
      return range.getClientRects();
    };
    // A word that breaks across lines is measured letter by letter.
    const pieces = [...node.data.matchAll(/\S+/g)].flatMap(({ 0: word, index }) =>
      rectsOf(index, word.length).length > 1 ? [...word].map((letter, at) => [letter, index + at, at ? "" : " "]) : [[word, index, " "]]);
    for (const [word, index, space] of pieces) {
      const at = rectsOf(index, word.length)[0];
      if (!at) continue;
      if (row && Math.abs(row.top - at.top) < 3) Object.assign(row, { text: row.text + space + word, right: at.right });
      else {
        if (row) line(row.text, row.left, row.right, row.middle, style, clip);
        row = { text: word, left: at.left, right: at.right, top: at.top, middle: (at.top + at.bottom) / 2 };
      }
    }
    if (row) line(row.text, row.left, row.right, row.middle, style, clip);
  };

  const draw = (element) => {
    const style = getComputedStyle(element);
    if (style.visibility === "hidden" || style.display === "none") return;
    if (style.display !== "contents") {
      if (!element.getClientRects().length) return;
      box(element, style);
    }
    if (element.matches("input, select, textarea")) {
      const given = element.matches("select") ? element.selectedOptions[0]?.text : element.value || element.placeholder;
      const at = element.getBoundingClientRect();
      const from = at.left + parseFloat(style.paddingLeft) + 1;
      const measuring = document.createElement("canvas").getContext("2d");
      measuring.font = `${style.fontSize} ${style.fontFamily}`;
      if (given) line(given, from, from + measuring.measureText(given).width, (at.top + at.bottom) / 2, style, clipOf(element));
      return;
    }
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) words(child, style, clipOf(element));
      else if (child.nodeType === Node.ELEMENT_NODE) draw(child);
    }
  };
  draw(document.body);
  return parts;
}

test("a picture of the console is drawn as text, and is small", async (page) => {
  const sample = (path) => JSON.parse(readFileSync(join(root, "events", path), "utf8"));
  await call("POST", "/event-types", sample("event_types/order.placed.json"));
  for (let round = 0; round < 6; round++) {
    const events = sample("batches/order.placed/three-orders.json");
    for (const event of events) event.metadata.eid = crypto.randomUUID();
    await call("POST", "/event-types/order.placed/events", events);
  }
  await open(page, "#/event-types/order.placed/events?from=begin");
  await page.getByText("18 events received").waitFor();
  await page.getByRole("table", { name: "Events" }).getByRole("row").nth(2).getByRole("button").first().click();
  await page.getByRole("region", { name: "Event", exact: true }).getByText("metadata:").first().waitFor();
  const parts = await page.evaluate(drawn, SIZE);
  const { width, height } = SIZE;
  const svg = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" role="img">`,
    "<title>The console: the events of an event type as they come, and one of them opened</title>",
    "<style>.m { font-family: monospace }</style>",
    ...parts,
    "</svg>",
    "",
  ];
  for (const text of ["order.placed", "From the beginning", "18 events", "Copy link"]) {
    assert.ok(parts.some((part) => part.includes(text)), `${text} is not in the picture`);
  }
  assert.ok(svg.join("\n").length < 30_000);
  mkdirSync(dirname(target), { recursive: true });
  writeFileSync(target, svg.join("\n"));
}, { viewport: SIZE, colorScheme: "light" });
