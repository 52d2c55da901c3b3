// Renews the page of a run while it goes on, and what is selected or scrolled stays.
"use strict";
(() => {
  // The least milliseconds between two pages: laying one out takes the browser longer than drawing it takes the run.
  const LEAST = 5000;
  const line = document.getElementById("live");
  let asked = performance.now(), due = LEAST, last = Promise.resolve(), ended = false;

  // Replaces what differs.
  function renew(old, now) {
    if (old.isEqualNode(now)) return;
    const [from, to] = [[...old.children], [...now.children]];
    if (["MAIN", "SECTION", "DIV"].includes(old.tagName) && from.length && from.length === to.length) {
      from.forEach((child, i) => renew(child, to[i]));
      return;
    }
    const scrolled = [...old.querySelectorAll(".wide,.scroll")].map((e) => e.scrollLeft);
    old.replaceWith(now);
    [...now.querySelectorAll(".wide,.scroll")].forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
  }

  // The text of the page; nothing where there is none, and the next event asks again.
  async function ask() {
    try {
      const answer = await fetch("/");
      return answer.ok ? await answer.text() : null;
    } catch (_) {
      return null;
    }
  }

  async function show(asking) {
    const text = await asking;
    if (text === null) return;
    const page = new DOMParser().parseFromString(text, "text/html");
    const now = page.querySelector("main");
    if (now) renew(document.querySelector("main"), document.importNode(now, true));
  }

  // Asks at once, for the last page is not there for long; shows one after the other.
  function fetchPage() {
    asked = performance.now();
    const asking = ask();
    last = last.then(() => show(asking));
    return last;
  }

  function say(what, data) {
    const loss = data.loss === null ? "" : `, training loss ${data.loss.toFixed(4)}`;
    line.textContent = `${what}: step ${data.step.toLocaleString("en")}${loss}.`;
    line.dataset.step = data.step;
  }

  function open() {
    const events = new EventSource("/events");
    events.addEventListener("step", (event) => {
      const data = JSON.parse(event.data);
      say("This page is renewed while the run goes on", data);
      due = Math.max(LEAST, data.every);
      if (!document.hidden && performance.now() - asked >= due) fetchPage();
    });
    events.addEventListener("end", async (event) => {
      ended = true;
      await fetchPage();
      events.close();
      say("The run has ended, and this page stays as it is", JSON.parse(event.data));
      line.dataset.ended = "yes";
    });
    events.addEventListener("error", () => {
      if (ended) return;
      line.textContent = "There is no word of the run: it has ended, or its page is asked for too often.";
      // A stream that was refused is not opened again by itself.
      if (events.readyState === EventSource.CLOSED) setTimeout(open, 10000);
    });
  }

  document.addEventListener("visibilitychange", () => {
    if (!ended && !document.hidden && performance.now() - asked >= due) fetchPage();
  });
  open();
})();
