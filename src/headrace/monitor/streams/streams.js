"use strict";
// Asks for the state of all streams every second, and shows each as a card; every text is put in as text.
(() => {
  const EVERY_MS = 1000;
  const LATE_SECONDS = 3;
  const place = document.getElementById("streams");
  const said = document.getElementById("said");
  let silentSince = null;
  const time = (seconds) =>
    seconds === null ? "–" : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
  const list = (counts) => {
    // The reason first: "220 fps" would be read as a rate.
    const parts = Object.entries(counts).map(([name, num]) => `${name} ${num.toLocaleString("en")}`);
    return parts.length ? parts.join(", ") : "none";
  };
  const make = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const card = (stream) => {
    const isLate = stream.silent_seconds === null || stream.silent_seconds > LATE_SECONDS;
    const article = make("article", undefined, isLate ? "late" : "");
    if (stream.picture) {
      const image = make("img");
      image.src = stream.picture;
      image.alt = `${stream.name}, frame ${stream.frame}`;
      article.append(image);
    } else {
      article.append(make("div", stream.received ? "no picture yet" : stream.problem || "no frame yet", "none"));
    }
    article.append(make("h2", stream.name));
    const table = make("dl");
    const row = (name, text, kind) => table.append(make("dt", name), make("dd", text, kind));
    row("last frame", stream.silent_seconds === null ? "–" : `${time(stream.silent_seconds)} ago`, "age");
    const p99 = stream.age_p99 === null ? `from ${stream.ages_needed} answers on` : time(stream.age_p99);
    row("age of answers", stream.age_p50 === null ? "–" : `${time(stream.age_p50)}, p99 ${p99}`);
    if (stream.problem) row("away", stream.problem);
    row("answers", `${stream.rate.toFixed(1)}/s`);
    row("frames", `${stream.decoded.toLocaleString("en")} decoded, ${stream.received.toLocaleString("en")} taken`);
    row("dropped", list(stream.dropped));
    row("skipped", list(stream.skipped));
    row("ended", list(stream.ended));
    article.append(table);
    return article;
  };
  const look = async () => {
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      const state = await answer.json();
      silentSince = null;
      const num = state.streams.length;
      const late = state.streams.filter((one) => one.silent_seconds === null || one.silent_seconds > LATE_SECONDS).length;
      said.textContent = `${num} ${num === 1 ? "stream" : "streams"}${late ? `, ${late} without a frame for ${LATE_SECONDS} s` : ""}`;
      place.replaceChildren(...state.streams.map(card));
    } catch {
      silentSince = silentSince ?? Date.now();
      said.textContent = `no news for ${Math.round((Date.now() - silentSince) / 1000)} s: the run does not answer, or is over`;
    }
    document.documentElement.dataset.drawn = "";
    setTimeout(look, EVERY_MS);
  };
  look();
})();
