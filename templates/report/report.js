// The report's behaviour: tables sort, trials are filtered, a trial's page opens by its link. All of what the reader
// chose stands in the URL's hash: #PLACE?KEY=VALUE&..., where PLACE is a section's id or trial/KEY.
"use strict";

const overview = document.getElementById("overview");
const article = document.getElementById("trial");
const trials = document.getElementById("all-trials");
const filters = document.getElementById("filters");
const rows = [...trials.tBodies[0].rows];
const collator = new Intl.Collator("en", { numeric: true });
const fields = new Map(); // column of a filter's name
const title = document.title;
let chosen = new URLSearchParams(); // filters, and per table the column that it is sorted by
let left = 0; // where the reader was when a trial was opened

function place(hash) {
  const [where, query] = hash.slice(1).split(/\?(.*)/s);
  let name = where;
  try {
    name = decodeURIComponent(where);
  } catch {} // a link that was cut: shown as it is
  return { name, query };
}

function remember(where, push) {
  const query = chosen.toString();
  const hash = `#${where}${query ? `?${query}` : ""}`;
  if (hash === location.hash) return;
  history[push ? "pushState" : "replaceState"](null, "", hash);
}

// --- Sorting ------------------------------------------------------------------------------------------

function value(row, column, numeric) {
  const cell = row.cells[column];
  if (!numeric) return cell.textContent.trim();
  const found = parseFloat(cell.dataset.v ?? cell.textContent.replaceAll(",", ""));
  return Number.isNaN(found) ? null : found;
}

function sort(table, column, direction) {
  const heads = [...table.tHead.rows[0].cells];
  const button = heads[column]?.querySelector("button");
  if (!button) return;
  const numeric = button.dataset.kind === "number";
  const keyed = [...table.tBodies[0].rows].map((row) => [value(row, column, numeric), row]);
  const sign = direction === "desc" ? -1 : 1;
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is not known comes last, both ways
    return sign * (numeric ? a - b : collator.compare(a, b));
  });
  table.tBodies[0].append(...keyed.map(([, row]) => row));
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", direction === "desc" ? "descending" : "ascending");
}

function sortByChoice() {
  for (const table of document.querySelectorAll("table.sortable")) {
    const found = /^(\d+)\.(asc|desc)$/.exec(chosen.get(table.id) ?? "");
    if (found) sort(table, Number(found[1]), found[2]);
  }
}

document.addEventListener("click", (event) => {
  const head = event.target.closest?.("thead button")?.closest("th");
  if (!head) return;
  const table = head.closest("table");
  const numeric = head.querySelector("button").dataset.kind === "number";
  const now = head.getAttribute("aria-sort");
  const next = now ? (now === "ascending" ? "desc" : "asc") : numeric ? "desc" : "asc";
  chosen.set(table.id, `${head.cellIndex}.${next}`);
  sort(table, head.cellIndex, next);
  remember(head.closest("section").id);
});

// --- Filtering ----------------------------------------------------------------------------------------

function prepareFilters() {
  for (const head of trials.tHead.rows[0].cells) {
    if (head.dataset.field) fields.set(head.dataset.field, head.cellIndex);
  }
  for (const [name, column] of fields) {
    const values = [...new Set(rows.map((row) => row.cells[column].textContent.replace("■", "").trim()))];
    const select = filters.querySelector(`[name=${name}]`);
    select.append(...values.sort(collator.compare).map((text) => new Option(text, text)));
  }
  filters.hidden = false;
  document.getElementById("plain").hidden = true;
}

function filter() {
  const words = (chosen.get("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = words.length ? row.textContent.toLowerCase() : "";
    const cell = chosen.get("cell");
    let match = words.every((word) => text.includes(word));
    match &&= !cell || row.cells[0].textContent.split("/", 1)[0] === cell;
    for (const [name, column] of fields) {
      const wanted = chosen.get(name);
      match &&= !wanted || row.cells[column].textContent.replace("■", "").trim() === wanted;
    }
    row.hidden = !match;
    shown += match;
  }
  const all = `${rows.length} trial${rows.length === 1 ? "" : "s"}`;
  document.getElementById("count").textContent = shown === rows.length ? all : `${shown} of ${all}`;
}

function fillFilters() {
  for (const field of filters.querySelectorAll("[name]")) field.value = chosen.get(field.name) ?? "";
}

filters.addEventListener("input", (event) => {
  const { name, value: text } = event.target;
  if (text.trim()) chosen.set(name, text.trim());
  else chosen.delete(name);
  filter();
  remember("trials");
});

document.getElementById("reset").addEventListener("click", () => {
  for (const field of filters.querySelectorAll("[name]")) chosen.delete(field.name);
  fillFilters();
  filter();
  remember("trials");
});

// --- A trial's page -----------------------------------------------------------------------------------

async function unpacked(key) {
  const kept = document.querySelector(`script[data-trial="${CSS.escape(key)}"]`);
  if (!kept) return null;
  const bytes = Uint8Array.from(atob(kept.textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function link(text, hash) {
  const made = document.createElement("a");
  made.href = hash;
  made.textContent = text;
  return made;
}

function hashOf(row) {
  return row.cells[0].querySelector("a").getAttribute("href");
}

function steps(key) {
  const nav = document.createElement("nav");
  nav.className = "steps";
  nav.setAttribute("aria-label", "Other trials");
  const query = chosen.toString();
  nav.append(link("All trials", `#trials${query ? `?${query}` : ""}`));
  const listed = [...trials.tBodies[0].rows].filter((row) => !row.hidden);
  const at = listed.findIndex((row) => row.cells[0].textContent === key);
  if (at > 0) nav.append(link("← Previous", hashOf(listed[at - 1])));
  if (at >= 0 && at + 1 < listed.length) nav.append(link("Next →", hashOf(listed[at + 1])));
  if (at >= 0) nav.append(`${at + 1} of ${listed.length} in the table`);
  return nav;
}

async function open(key) {
  const html = await unpacked(key);
  if (place(location.hash).name !== `trial/${key}`) return; // the reader has gone on
  if (html === null) {
    article.replaceChildren(steps(key), Object.assign(document.createElement("h1"), { textContent: `No trial ${key}` }));
  } else {
    article.innerHTML = html; // escaped where it was made; the page's policy runs no script but this one
    article.prepend(steps(key));
  }
  if (article.hidden) left = scrollY;
  overview.hidden = true;
  article.hidden = false;
  document.title = `${key} - ${title}`;
  scrollTo({ top: 0, behavior: "instant" });
  const head = article.querySelector("h1");
  head.tabIndex = -1;
  head.focus({ preventScroll: true });
}

function close(name) {
  if (article.hidden) return;
  const key = article.querySelector("h1").textContent;
  article.hidden = true;
  article.replaceChildren();
  overview.hidden = false;
  document.title = title;
  if (name && name !== "trials") return;
  scrollTo({ top: left, behavior: "instant" });
  rows.find((row) => row.cells[0].textContent === key && !row.hidden)?.querySelector("a").focus();
}

// --- The hash decides ---------------------------------------------------------------------------------

function follow() {
  const { name, query } = place(location.hash);
  if (name.startsWith("trial/")) {
    open(name.slice("trial/".length));
    return;
  }
  if (query !== undefined) chosen = new URLSearchParams(query);
  fillFilters();
  sortByChoice();
  filter();
  const wasOpen = !article.hidden;
  close(name);
  if (name && query === undefined) remember(name);
  if (name && !(wasOpen && name === "trials")) document.getElementById(name)?.scrollIntoView();
}

// What a mark of a plot stands for, as the table says it.
document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest?.(".plot a");
  if (!mark || mark.querySelector("title")) return;
  const row = rows.find((one) => hashOf(one) === mark.getAttribute("href"));
  const text = document.createElementNS("http://www.w3.org/2000/svg", "title");
  text.textContent = row ? [...row.cells].slice(0, 7).map((cell) => cell.textContent.trim()).join(" · ") : "";
  mark.append(text);
});

addEventListener("hashchange", follow);
prepareFilters();
follow();
