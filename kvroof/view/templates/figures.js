(() => {
  "use strict";
  const PRINTED = { width: 690, height: 430 }, NARROW_PX = 600;
  const plots = [...document.querySelectorAll("script[data-figure]")].map((held) => {
    return { figure: JSON.parse(held.textContent), place: document.getElementById(held.dataset.figure) };
  });
  const wrapped = (text) => text?.replace(/(.{28,38}?)[ ]/g, "$1<br>");
  const narrowed = (axis) => ({
    ...axis, tickangle: "auto", tickfont: { ...axis.tickfont, size: 11 },
    title: { ...axis.title, text: wrapped(axis.title?.text) },
  });
  const layout = (figure, size) => {
    const made = { ...structuredClone(figure.layout), ...size };
    if (size.width < NARROW_PX) {
      for (const key of Object.keys(made)) { if (/^[xy]axis/.test(key)) made[key] = narrowed(made[key]); }
      made.legend = { ...made.legend, orientation: "h", x: 0, xanchor: "left", y: -0.18, yanchor: "top" };
      made.font = { ...made.font, size: 12 };
      made.margin = { ...made.margin, l: 50, r: 10 };
      made.annotations = (made.annotations ?? []).filter((note) => note.name !== "detail");
      for (const note of made.annotations) { note.font = { ...note.font, size: 10 }; }
    }
    return made;
  };
  const draw = ({ figure, place }, size) =>
    Plotly.react(place, figure.data, layout(figure, size), { displayModeBar: false, responsive: false });
  const fit = () => plots.forEach((plot) => draw(plot, { width: plot.place.clientWidth }));
  let asked = 0;
  window.addEventListener("resize", () => { clearTimeout(asked); asked = setTimeout(fit, 120); });
  window.addEventListener("beforeprint", () => plots.forEach((plot) => draw(plot, PRINTED)));
  window.addEventListener("afterprint", fit);
  fit();
})();
