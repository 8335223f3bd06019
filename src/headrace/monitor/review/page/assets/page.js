"use strict";
const AT_ONCE = 9, MOST_CHOICES = 40, LONGEST_SHOWN = 4000;
const find = id => document.getElementById(id);
const token = location.hash.slice(1);
const pictures = new Map();
// A box that is smaller than this share of the picture is a click that slipped.
const LEAST_BOX = 0.01;
let state = null, several = false, busy = false, marked = new Set();

function make(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function notice(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

async function ask(where, body) {
  const answer = await fetch(where, {
    method: body === undefined ? "GET" : "POST", body: body === undefined ? undefined : JSON.stringify(body),
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

async function act(where, body) {
  if (busy) return;
  busy = true;
  try {
    state = await (await ask(where, body)).json();
    marked = new Set();
    notice("");
    show();
  } catch (error) {
    notice(error instanceof TypeError ? "The review does not answer: is `headrace review` still running? Nothing was recorded." : error.message);
  } finally {
    busy = false;
    document.documentElement.dataset.drawn = "";
  }
}

function shown() {
  return state.items.slice(0, several ? AT_ONCE : 1);
}

// What is fetched with the token is shown from memory; the next pictures are fetched ahead.
function pictureOf(item) {
  if (!pictures.has(item.file)) pictures.set(item.file, ask(item.file).then(answer => answer.blob()));
  return pictures.get(item.file);
}

function forget() {
  const wanted = new Set(state.items.map(item => item.file));
  for (const file of pictures.keys()) if (!wanted.has(file)) pictures.delete(file);
  for (const item of state.items.slice(0, 2 * AT_ONCE)) if (item.file) pictureOf(item).catch(() => {});
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function show() {
  const { estimate, target, reviewed } = state;
  const items = shown();
  find("done").style.width = `${target ? Math.min(100, 100 * reviewed / target) : 100}%`;
  find("bar").setAttribute("aria-valuenow", reviewed);
  find("bar").setAttribute("aria-valuemax", target);
  find("progress").textContent = reviewed >= target && target
    ? `${reviewed} reviewed: this round is done. You may stop, or go on for a narrower interval.`
    : `${reviewed} of ${target} reviewed`;
  const { overall } = estimate;
  find("estimate").textContent = overall.accuracy === null ? "Accuracy in production: not known yet"
    : `Accuracy in production: ${percent(overall.accuracy)}, with 95 % confidence ${percent(overall.low)} to ${percent(overall.high)} of ${overall.num_answers.toLocaleString("en")} answers`;
  find("items").className = several ? "several" : "";
  find("items").replaceChildren(...(items.length ? items.map(card) : [make("p", "Nothing is left to review in this round.")]));
  find("several").querySelector("span").textContent = several ? "One by one" : "Several at once";
  find("accept").lastChild.textContent = several ? " The rest is correct" : " Correct";
  for (const id of ["wrong", "unsure", "skip"]) find(id).hidden = several;
  for (const id of ["accept", "wrong", "unsure", "skip", "several"]) find(id).disabled = !items.length;
  find("names").replaceChildren(...state.names.map(name => { const one = make("option"); one.value = name; return one; }));
  closeForm();
  showGroups(estimate);
  forget();
}

function card(item, index) {
  const place = make("article", undefined, "item");
  place.dataset.item = item.item;
  const about = make("div", undefined, "picture");
  place.append(about, make("h2", item.name || "(no class)"));
  const parts = [several ? `${index + 1}` : "", item.certainty === undefined ? "" : `certainty ${percent(item.certainty)}`, item.arm, item.disagreement ? "another model disagrees" : ""];
  place.append(make("p", parts.filter(Boolean).join(" · "), "about"));
  if (item.file) fill(about, item);
  else about.append(make("p", "No picture is kept of this item."));
  if (!several) {
    const more = make("details");
    const told = { job: item.job, source: item.source, task: item.task, plan: item.plan_id, answered: new Date(1000 * item.unix_seconds).toISOString(), kept: (item.why || []).join(", ").replaceAll("_", " "), probability_of_being_kept: item.probability, result: item.answer };
    more.append(make("summary", "More about it"), make("pre", JSON.stringify(told, null, 1).slice(0, LONGEST_SHOWN)));
    more.open = !item.file;
    place.append(more);
  } else {
    place.classList.toggle("marked", marked.has(item.item));
    place.onclick = () => mark(item.item);
  }
  return place;
}

async function fill(about, item) {
  try {
    const content = await pictureOf(item);
    if (content.type.startsWith("text/")) return about.append(make("pre", await content.text()));
    const picture = make("img");
    picture.alt = "what the model saw";
    picture.src = URL.createObjectURL(content);
    picture.onload = picture.onerror = () => URL.revokeObjectURL(picture.src);
    picture.draggable = false;
    about.append(picture, ...(item.boxes || []).map(boxOf));
    if (!several) about.onpointerdown = event => draw(about, event);
  } catch (error) {
    about.append(make("p", error.message));
  }
}

function boxOf(box) {
  const place = make("div", undefined, "box");
  const cut = share => 100 * Math.min(1, Math.max(0, share));
  place.style.left = `${cut(box.x1)}%`;
  place.style.top = `${cut(box.y1)}%`;
  place.style.width = `${Math.max(0, cut(box.x2) - cut(box.x1))}%`;
  place.style.height = `${Math.max(0, cut(box.y2) - cut(box.y1))}%`;
  place.append(make("span", box.score === null ? box.name : `${box.name} ${box.score.toFixed(2)}`));
  place.told = box;
  place.onclick = () => { if (correcting()) place.classList.toggle("off"); };
  return place;
}

function correcting() {
  return !find("correct").hidden;
}

// A drag on the picture draws a box of the class in the form, or of the nearest class that was named.
function draw(about, event) {
  if (!correcting() || event.target.closest(".box")) return;
  const place = about.getBoundingClientRect();
  const cut = (at, from, size) => Math.min(1, Math.max(0, (at - from) / size));
  const corner = one => [cut(one.clientX, place.left, place.width), cut(one.clientY, place.top, place.height)];
  const [x, y] = corner(event);
  let made = null;
  const move = one => {
    const [u, v] = corner(one);
    made?.remove();
    made = boxOf({ name: classToDraw(), score: null, x1: Math.min(x, u), y1: Math.min(y, v), x2: Math.max(x, u), y2: Math.max(y, v) });
    made.classList.add("new");
    about.append(made);
  };
  const end = () => {
    removeEventListener("pointermove", move);
    if (!made) return;
    const { name, x1, y1, x2, y2 } = made.told;
    if (!name) notice("Type the class first, then draw the box.");
    if (!name || x2 - x1 < LEAST_BOX || y2 - y1 < LEAST_BOX) made.remove();
  };
  event.preventDefault();
  addEventListener("pointermove", move);
  addEventListener("pointerup", end, { once: true });
}

function classToDraw() {
  return find("label").value.trim() || (shown()[0].boxes || []).map(box => box.name).find(Boolean) || "";
}

// The boxes as the reviewer left them; undefined if none was touched.
function rightBoxes() {
  const places = [...document.querySelectorAll(".box")];
  if (!places.some(one => one.classList.contains("off") || one.classList.contains("new"))) return undefined;
  const cut = share => Math.min(1, Math.max(0, share));
  return places.filter(one => !one.classList.contains("off")).map(({ told }) => (
    { name: told.name, score: told.score, x1: cut(told.x1), y1: cut(told.y1), x2: cut(told.x2), y2: cut(told.y2) }));
}

function showGroups(estimate) {
  const rows = [...estimate.by_arm, ...estimate.by_class].filter(one => one.num_reviewed);
  find("groups").hidden = !rows.length;
  const table = make("table");
  const head = table.createTHead().insertRow();
  for (const title of ["answer", "reviewed", "wrong", "right", "95 % confidence"]) head.append(make("th", title));
  const body = table.createTBody();
  for (const one of rows) {
    const row = body.insertRow();
    row.append(make("td", one.name || "(no class)"));
    for (const text of [one.num_reviewed, one.num_wrong, one.accuracy === null ? "–" : percent(one.accuracy), `${percent(one.low)} to ${percent(one.high)}`])
      row.append(make("td", text, "n"));
  }
  const place = make("div", undefined, "scroll");
  place.tabIndex = 0;
  place.append(table);
  find("groups").replaceChildren(make("h2", "By what was answered"), place);
}

function say(verdict, label = "") {
  const [item] = shown();
  const boxes = verdict === "wrong" ? rightBoxes() : undefined;
  if (item) act("verdicts", { verdicts: [{ item: item.item, verdict, label: boxes ? "" : label, boxes }] });
}

function accept() {
  if (!several) return say("correct");
  const verdicts = shown().map(one => ({ item: one.item, verdict: marked.has(one.item) ? "wrong" : "correct", label: "" }));
  if (verdicts.length) act("verdicts", { verdicts });
}

function mark(item) {
  if (!marked.delete(item)) marked.add(item);
  for (const place of document.querySelectorAll(".item")) place.classList.toggle("marked", marked.has(place.dataset.item));
}

function openForm() {
  const [item] = shown();
  if (!item || several) return;
  find("label").value = "";
  const names = state.names.filter(name => name !== item.name).slice(0, MOST_CHOICES);
  find("choices").replaceChildren(...names.map(name => {
    const choice = make("button", name);
    choice.type = "button";
    choice.onclick = () => say("wrong", name);
    return choice;
  }));
  find("correct").hidden = false;
  find("draw").hidden = !(item.boxes || []).length && item.name;
  find("items").classList.add("correcting");
  find("label").focus();
}

function closeForm() {
  find("correct").hidden = true;
  find("items").classList.remove("correcting");
  for (const one of document.querySelectorAll(".box.new")) one.remove();
  for (const one of document.querySelectorAll(".box.off")) one.classList.remove("off");
  find("items").focus({ preventScroll: true });
}

function toggle() {
  several = !several;
  marked = new Set();
  show();
}

const KEYS = { a: accept, enter: accept, w: openForm, u: () => say("unsure"), s: () => say("skip"), z: () => act("undo", {}), g: toggle };

document.onkeydown = event => {
  if (!state || event.ctrlKey || event.altKey || event.metaKey) return;
  if (!find("correct").hidden) { if (event.key === "Escape") closeForm(); return; }
  if (event.target.tagName === "BUTTON" && ["Enter", " "].includes(event.key)) return;
  const number = Number(event.key);
  if (several && number >= 1 && number <= AT_ONCE && shown()[number - 1]) return mark(shown()[number - 1].item);
  const key = KEYS[event.key.toLowerCase()];
  if (!key || (several && ["w", "u", "s"].includes(event.key.toLowerCase()))) return;
  event.preventDefault();
  key();
};
find("accept").onclick = accept;
find("wrong").onclick = openForm;
find("unsure").onclick = () => say("unsure");
find("skip").onclick = () => say("skip");
find("undo").onclick = () => act("undo", {});
find("several").onclick = toggle;
find("back").onclick = closeForm;
find("unknown").onclick = () => say("wrong");
find("correct").onsubmit = event => { event.preventDefault(); say("wrong", find("label").value.trim()); };
act("state");
