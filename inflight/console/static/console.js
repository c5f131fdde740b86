"use strict";
// A page that changes by itself says so (data-refresh, milliseconds): it is fetched again, and its new <main> takes the old one's
// place. The server has made all of it; nothing here knows what it shows.
(() => {
  const later = () => {
    const refreshMs = Number(document.getElementById("live").dataset.refresh);
    if (refreshMs > 0) setTimeout(refresh, refreshMs);
  };
  const refresh = async () => {
    if (document.hidden) {
      document.addEventListener("visibilitychange", refresh, { once: true });
      return;
    }
    let answered = false;
    try {
      const answer = await fetch(location.href, { headers: { "X-Inflight-Refresh": "1" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("live");
      if (answer.ok && fresh) {
        document.getElementById("live").replaceWith(fresh);
        answered = true;
        read();
      }
    } catch {
      // The console is being started again, or is gone: said below, and asked again.
    }
    document.getElementById("away").hidden = answered;
    later();
  };

  // The reading of a plot under the pointer: its moment and values take the place of the newest ones in the legend. Without a
  // script the browser shows the same text, which is the title of the reading.
  let pointer = null;
  let shown = null;
  const read = () => {
    const reading = pointer && document.elementFromPoint(pointer.x, pointer.y)?.closest(".reading");
    if (shown && shown.reading === reading) return;
    if (shown) {
      shown.moment.textContent = "";
      shown.values.forEach((value, number) => (value.textContent = shown.newest[number]));
      shown.reading.prepend(shown.title);
      shown = null;
    }
    if (!reading) return;
    const figure = reading.closest("figure");
    const title = reading.querySelector("title");
    const values = [...figure.querySelectorAll(".legend b")];
    shown = { reading, title, values, moment: figure.querySelector(".moment"), newest: values.map((value) => value.textContent) };
    title.remove(); // else the browser shows it, too
    const [moment, ...lines] = title.textContent.trim().split("\n");
    shown.moment.textContent = moment;
    lines.forEach((line, number) => (values[number].textContent = line.slice(line.lastIndexOf(" ") + 1)));
  };
  const point = (event) => {
    pointer = event && { x: event.clientX, y: event.clientY };
    read();
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("scroll", () => point(null));
  document.documentElement.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && point(null));

  later();
})();
