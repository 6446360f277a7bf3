// Keeps the navigation in view on narrow screens: the header scrolls away up to its last row, which is the navigation.

export function startLayout() {
  const header = document.querySelector(".top");
  const nav = header.querySelector("nav");
  const measure = () => {
    // The header is positioned, so this is the distance from its own top.
    const above = Math.max(0, nav.offsetTop - 4);
    header.style.setProperty("--above-nav", `${-above}px`);
    document.documentElement.style.setProperty("--below-header", `${header.offsetHeight - above}px`);
  };
  new ResizeObserver(measure).observe(header);
}
