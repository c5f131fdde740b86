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
      }
    } catch {
      // The console is being started again, or is gone: said below, and asked again.
    }
    document.getElementById("away").hidden = answered;
    later();
  };
  later();
})();
