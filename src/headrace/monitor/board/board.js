"use strict";
// Puts new counts in their places, and loads the page again when something else has changed; says when there is no news.
(() => {
  const EVERY_MS = 3000;
  let version = null;
  let silentSince = null;
  const place = document.querySelector(".kicker");
  const said = document.createElement("small");
  place.append(" ", said);
  const look = async () => {
    try {
      const answer = await fetch("/state", { cache: "no-store" });
      const state = await answer.json();
      silentSince = null;
      said.textContent = "";
      if (version !== null && version !== state.version) {
        // Who has ticked a run or opened a fold is reading.
        if (document.querySelector("input:checked, details[open]")) said.textContent = "there is news: load the page again";
        else location.reload();
      }
      version = version ?? state.version;
      for (const one of document.querySelectorAll("[data-live]")) {
        const text = state.live[one.dataset.live];
        if (text) one.textContent = one.closest("td") ? text.replace(" delivered", "") : text;
      }
    } catch {
      silentSince = silentSince ?? Date.now();
      said.textContent = `no news for ${Math.round((Date.now() - silentSince) / 1000)} s: headrace board does not answer`;
    }
  };
  look();
  setInterval(look, EVERY_MS);
})();
