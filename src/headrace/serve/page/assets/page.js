"use strict";
// One request for each thing given; all at once, so that they can share batches.
const MOST_AT_ONCE = 64, MOST_SHOWN = 100, LONGEST_SHOWN = 20000;
const find = id => document.getElementById(id);
let tasks = [{ task: "", model: "", takes: "bytes" }];

function make(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function headers() {
  const token = find("token").value;
  return token ? { Authorization: `Bearer ${token}` } : {};
}

function notice(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

function chosen() {
  return tasks[find("task").selectedIndex] || tasks[0];
}

async function begin() {
  try {
    const answer = await fetch("openapi.json", { headers: headers() });
    const told = await answer.json();
    find("token-line").hidden = answer.status !== 401 && !find("token").value;
    if (!answer.ok) return notice(`${told.code}: ${told.error}`);
    notice("");
    tasks = told["x-headrace-tasks"];
    if (find("token").value)
      find("routes").href = URL.createObjectURL(new Blob([JSON.stringify(told)], { type: "application/json" }));
    find("task").replaceChildren(...tasks.map(one => make("option", one.task || one.model)));
    find("task-line").hidden = tasks.length < 2;
    showInput();
  } catch (error) {
    notice(`The service does not answer: ${error.message}`);
  } finally {
    document.documentElement.dataset.drawn = "";
  }
}

function showInput() {
  const takes = chosen().takes;
  find("text-line").hidden = takes === "image";
  find("place").hidden = takes === "array";
  find("file").accept = takes === "image" ? "image/*" : "";
  find("invite").textContent = `Drop ${takes === "image" ? "an image" : "a file"} here, choose or paste one`;
  find("text-label").textContent = takes === "array" ? "One array as JSON, such as [[0.1, 0.2], [0.3, 0.4]]" : "Text";
}

function target() {
  return `v1/jobs?timings=1&task=${encodeURIComponent(chosen().task)}`;
}

// Everything goes as bytes: a form or JSON would be read as an envelope.
function sendFile(file) {
  return send(target(), file, "application/octet-stream", file.name || "pasted", file.type.startsWith("image/") ? file : null);
}

function sendFiles(files) {
  notice(files.length > MOST_AT_ONCE ? `${files.length} files: only the first ${MOST_AT_ONCE} are sent at once` : "");
  [...files].slice(0, MOST_AT_ONCE).forEach(sendFile);
}

function sendText(text) {
  notice("");
  const said = text.length > 60 ? text.slice(0, 60) + "…" : text;
  if (chosen().takes !== "array") return send(target(), text, "application/octet-stream", said, null);
  let array;
  try { array = JSON.parse(text); } catch (error) { return notice(`This is no JSON: ${error.message}`); }
  const shape = [1];
  for (let axis = array; Array.isArray(axis); axis = axis[0]) shape.push(axis.length);
  const { input, model } = chosen();
  const asked = { inputs: [{ name: input.name, datatype: input.datatype, shape, data: [array] }] };
  return send(`v2/models/${encodeURIComponent(model)}/infer`, JSON.stringify(asked), "application/json", said, null);
}

async function send(where, body, kind, name, picture) {
  const place = make("section");
  if (picture) place.append(pictureOf(picture));
  place.append(make("h2", name), make("p", "sent …"));
  find("answers").prepend(place);
  while (find("answers").children.length > MOST_SHOWN) find("answers").lastChild.remove();
  const began = performance.now();
  try {
    const answer = await fetch(where, { method: "POST", body, headers: { ...headers(), "Content-Type": kind } });
    show(place, answer, await answer.text(), performance.now() - began);
  } catch (error) {
    finish(place, "failed", `no answer: ${error.message}`);
  }
}

function pictureOf(file) {
  const picture = make("img");
  picture.alt = "";
  picture.src = URL.createObjectURL(file);
  picture.onload = picture.onerror = () => URL.revokeObjectURL(picture.src);
  return picture;
}

function finish(place, mark, text, ...more) {
  const line = make("p", "");
  line.append(make("span", mark === "ok" ? "answered" : "not answered", `badge ${mark}`), ` ${text}`);
  place.lastChild.replaceWith(line, ...more);
  place.dataset.state = mark;
}

function show(place, answer, body, milliseconds) {
  const stages = readTimings(answer.headers.get("Server-Timing") || "");
  const batch = stages.map(one => one.batch).find(Boolean);
  const plan = answer.headers.get("X-Headrace-Plan");
  const said = [`${answer.status} in ${milliseconds.toFixed(1)} ms`, batch, plan && `plan ${plan}`].filter(Boolean).join(" · ");
  let told;
  try { told = JSON.parse(body); } catch { told = body; }
  const table = stages.length ? [tableOf(stages)] : [];
  if (answer.ok) {
    const result = told.result === undefined ? told : told.result;
    return finish(place, "ok", said, make("pre", JSON.stringify(result, null, 2).slice(0, LONGEST_SHOWN)), ...table);
  }
  const retry = answer.headers.get("Retry-After");
  const later = retry ? [make("p", `Try again in ${retry} s.`, "retry")] : [];
  finish(place, "failed", `${said} · ${told.code || ""}`, make("pre", told.error || body.slice(0, LONGEST_SHOWN)), ...later, ...table);
}

// Server-Timing: name;dur=1.2;desc="batch of 4", ...
function readTimings(header) {
  return header.split(", ").filter(Boolean).map(metric => ({
    name: metric.split(";")[0],
    milliseconds: Number((metric.match(/;dur=([0-9.]+)/) || [])[1]),
    batch: (metric.match(/;desc="([^"]*)"/) || [])[1],
  }));
}

function tableOf(stages) {
  const total = stages.find(one => one.name === "total").milliseconds;
  const inStages = stages.filter(one => one.name !== "total");
  const rest = total - inStages.reduce((sum, one) => sum + one.milliseconds, 0);
  const table = make("table");
  const head = table.createTHead().insertRow();
  for (const title of ["stage", "ms", "batch", "share"]) head.append(make("th", title));
  const rows = table.createTBody();
  for (const one of [...inStages, { name: "waiting, handing on", milliseconds: Math.max(0, rest) }, { name: "total", milliseconds: total }]) {
    const row = rows.insertRow();
    row.append(make("td", one.name), make("td", one.milliseconds.toFixed(2), "n"), make("td", (one.batch || "").replace("batch of ", "")));
    const bar = make("span", undefined, "bar");
    bar.style.width = `${total ? 100 * Math.min(1, one.milliseconds / total) : 0}%`;
    row.insertCell().append(bar);
  }
  const place = make("div", undefined, "stages scroll");
  place.append(table);
  return place;
}

function take(data) {
  if (data.files.length) return sendFiles(data.files);
  notice("There is no file in what you gave; drop or paste an image or a file itself, not a link to it.");
}

find("enter").onclick = begin;
find("token").onkeydown = event => { if (event.key === "Enter") { event.preventDefault(); begin(); } };
find("task").onchange = showInput;
find("file").onchange = event => { sendFiles(event.target.files); event.target.value = ""; };
find("ask").onsubmit = event => { event.preventDefault(); sendText(find("text").value); };
document.ondragover = event => { event.preventDefault(); find("place").classList.add("over"); };
document.ondragleave = () => find("place").classList.remove("over");
document.ondrop = event => { event.preventDefault(); find("place").classList.remove("over"); take(event.dataTransfer); };
document.onpaste = event => { if (event.clipboardData.files.length) take(event.clipboardData); };
begin();
