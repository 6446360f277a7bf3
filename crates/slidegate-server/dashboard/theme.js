// Light or dark: what the system says, or what was chosen here. A plain script, so that it runs before the first
// picture and no page flashes in the other theme.

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
      // Choosing what the system says anyway follows the system again.
      chosen = next === system() ? null : next;
      keep(chosen);
      show();
    });
  });
})();
