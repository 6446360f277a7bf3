// Light or dark theme: the setting of the system, or the choice of the user. A plain script, so that it runs before the
// page is drawn for the first time.

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  const read = () => {
    try {
      const kept = localStorage.getItem("slidegate-theme");
      return kept === "light" || kept === "dark" ? kept : null;
    } catch {
      return null;
    }
  };
  const keep = (theme) => {
    try {
      if (theme) localStorage.setItem("slidegate-theme", theme);
      else localStorage.removeItem("slidegate-theme");
    } catch {
      // Without storage the choice lasts as long as the page.
    }
  };

  let chosen = read();
  const system = () => (dark.matches ? "dark" : "light");
  const show = () => {
    if (chosen) root.dataset.theme = chosen;
    else delete root.dataset.theme;
    document.getElementById("theme-toggle")?.setAttribute("aria-pressed", String((chosen ?? system()) === "dark"));
  };

  show();
  dark.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme-toggle").addEventListener("click", () => {
      const next = (chosen ?? system()) === "dark" ? "light" : "dark";
      // A choice that equals the setting of the system removes the choice.
      chosen = next === system() ? null : next;
      keep(chosen);
      show();
    });
  });
})();
