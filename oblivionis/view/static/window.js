// Pieces of a page that go on, and a form that shows its choice at once. Without it every page works by hand.
"use strict";

function kept(piece) {
  const open = [...piece.querySelectorAll("details")].map((d) => d.open);
  const checked = new Map([...piece.querySelectorAll("input[type=checkbox]")].map((b) => [b.value, b.checked]));
  const focused = piece.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && [...piece.querySelectorAll("a, input, button, summary, [tabindex]")].indexOf(focused);
  const moved = [...piece.querySelectorAll("div.wide")].map((d) => d.scrollLeft);
  return () => {
    piece.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? d.open; });
    piece.querySelectorAll("input[type=checkbox]").forEach((b) => { b.checked = checked.get(b.value) ?? b.checked; });
    piece.querySelectorAll("div.wide").forEach((d, i) => { d.scrollLeft = moved[i] ?? 0; });
    if (focused) piece.querySelectorAll("a, input, button, summary, [tabindex]")[place]?.focus({ preventScroll: true });
  };
}

async function renew(piece) {
  const headers = { "If-None-Match": piece.dataset.mark };
  const answer = await fetch(piece.dataset.live, { headers, credentials: "same-origin" });
  if (!answer.ok && answer.status !== 304) throw new Error(String(answer.status));
  piece.dataset.seconds = answer.headers.get("x-seconds");
  if (answer.status === 304) return;
  piece.dataset.mark = answer.headers.get("etag");
  const text = await answer.text();
  const restore = kept(piece);
  const parsed = new DOMParser().parseFromString(text, "text/html");
  piece.replaceChildren(...parsed.body.childNodes);
  restore();
  count();
}

function stale(piece, on) {
  let note = piece.previousElementSibling;
  if (!note?.classList.contains("stale")) {
    if (!on) return;
    note = document.createElement("p");
    note.className = "stale";
    note.setAttribute("role", "status");
    piece.before(note);
  }
  note.textContent = on ? "The window does not answer: what you see may be old." : "";
}

function follow(piece) {
  const again = async () => {
    if (!document.hidden) {
      try {
        await renew(piece);
        stale(piece, false);
      } catch {
        stale(piece, true);
      }
    }
    setTimeout(again, 1000 * Number(piece.dataset.seconds));
  };
  setTimeout(again, 1000 * Number(piece.dataset.seconds));
}

function count() {
  const said = document.getElementById("chosen");
  if (!said) return;
  const names = new Set([...document.querySelectorAll("input[name=run]:checked")].map((box) => box.value));
  said.textContent = names.size ? `${names.size} chosen` : "none chosen";
}

document.querySelectorAll("[data-live]").forEach(follow);
document.addEventListener("change", (event) => {
  if (event.target.matches("fieldset.filters select")) event.target.form.requestSubmit();
  count();
});
count();
