"use strict";

const search = document.getElementById("search");
const entries = [...document.querySelectorAll(".entry")].map((entry) => ({
  entry,
  text: entry.textContent.toLowerCase(),
  links: document.querySelectorAll(`nav a[href="#${entry.id}"]`),
}));

// Shows the entries that have all words of the search in them, and of the groups those with something to show.
function find() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { entry, text, links } of entries) {
    const hidden = !words.every((word) => text.includes(word));
    entry.hidden = hidden;
    links.forEach((link) => { link.parentElement.hidden = hidden; });
    shown += hidden ? 0 : 1;
  }
  for (const group of document.querySelectorAll(".group")) {
    group.hidden = !group.querySelector(".entry:not([hidden])");
  }
  for (const section of document.querySelectorAll(".menu section")) {
    section.hidden = !section.querySelector("li:not([hidden])");
  }
  document.querySelector(".nothing").hidden = shown > 0;
}

// Opens the entry that the address points at, so that a link to it leads to something to read.
function open() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.hidden) {
    search.value = "";
    find();
  }
  if (target.matches("details")) target.open = true;
  target.scrollIntoView();
}

const narrow = matchMedia("(max-width: 56rem)");
const menu = document.querySelector(".menu");
const settle = () => { menu.open = !narrow.matches; };

search.addEventListener("input", find);
addEventListener("hashchange", () => {
  if (narrow.matches) menu.open = false;
  open();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input")) return;
  event.preventDefault();
  search.focus();
});
narrow.addEventListener("change", settle);
settle();
open();
