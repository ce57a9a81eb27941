"use strict";
/* Pictures as inline SVG. Each says in words what it shows; what it plots stands in a table beside it. */
const Charts = (() => {
  const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "12 4 2 4"];
  const COLOURS = ["var(--blue)", "var(--vermillion)", "var(--green)", "var(--purple)", "var(--black)", "var(--sky)"];

  /** Returns an SVG element; children are elements or text. */
  function draw(name, attributes = {}, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    for (const child of children.flat()) element.append(child);
    return element;
  }

  const widths = new Map();

  /** Notes how wide figures are, all at once: asking after something was drawn costs a layout. */
  function measure(figures) {
    for (const figure of figures) widths.set(figure, Math.max(280, figure.clientWidth));
  }

  /** Puts a picture of a given height into a figure, with what it shows in words, and a caption. */
  function place(figure, height, words, caption, paint) {
    const width = widths.get(figure);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words });
    paint(svg, width, height);
    const under = document.createElement("figcaption");
    under.textContent = caption;
    figure.replaceChildren(svg, under);
  }

  /** Returns a logarithmic axis from `low` to `high` over pixels `from` to `to`. */
  function logAxis(low, high, from, to) {
    const [a, b] = [Math.log(low), Math.log(high)];
    const at = (value) => from + ((Math.log(Math.max(value, 1e-300)) - a) / (b - a)) * (to - from);
    return { low, high, at };
  }

  /** Returns the powers of `base` on an axis, thinned until at most `most` are left. */
  function powers(axis, base, most) {
    const [first, last] = [axis.low, axis.high].map((v) => Math.log(v) / Math.log(base));
    let step = 1;
    while ((last - first) / step > most) step++;
    const ticks = [];
    for (let n = Math.ceil(first / step - 1e-9) * step; n <= last + 1e-9; n += step) ticks.push(base ** n);
    return ticks;
  }

  /** Returns 1, 2 and 5 of every decade on an axis of few decades, else the decades. */
  function decades(axis, most) {
    const tens = powers(axis, 10, most);
    if (tens.length > 2) return tens;
    const low = 10 ** Math.floor(Math.log10(axis.low));
    return [0, 1, 2, 3].flatMap((n) => [1, 2, 5].map((m) => m * low * 10 ** n)).filter((v) => v >= axis.low && v <= axis.high);
  }

  /** Draws the grid and the numbers of both axes. */
  function axes(svg, box, x, y, xTicks, yTicks, xLabel, yLabel, xName, yName) {
    for (const tick of xTicks) {
      const at = x.at(tick);
      svg.append(
        draw("line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom }),
        draw("text", { x: at, y: box.bottom + 17, "text-anchor": "middle", class: "faint" }, xLabel(tick))
      );
    }
    for (const tick of yTicks) {
      const at = y.at(tick);
      svg.append(
        draw("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
        draw("text", { x: box.left - 7, y: at + 4, "text-anchor": "end", class: "faint" }, yLabel(tick))
      );
    }
    svg.append(
      draw("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
      draw("line", { class: "axis", x1: box.left, x2: box.left, y1: box.top, y2: box.bottom }),
      draw("text", { x: box.right, y: box.bottom + 37, "text-anchor": "end" }, xName),
      draw("text", { x: 2, y: 13 }, yName)
    );
  }

  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  /** Writes labels beside points of a share, biggest first, where a place is free; a line leads to far ones. */
  function labels(svg, box, wanted, least, taken) {
    const free = (spot) =>
      spot.x >= box.left && spot.x + spot.w <= box.right && spot.y >= box.top - 4 && spot.y + spot.h <= box.bottom &&
      taken.every((t) => spot.x + spot.w < t.x || t.x + t.w < spot.x || spot.y + spot.h < t.y || t.y + t.h < spot.y);
    for (const { x, y, r } of wanted) taken.push({ x: x - r, y: y - r, w: 2 * r, h: 2 * r });
    for (const { x, y, r, text } of wanted.filter((point) => point.share >= least)) {
      const [w, h] = [text.length * 6.8, 15];
      const places = [6, 22, 44, 70, 100].flatMap((gap) => {
        const [out, slant] = [r + gap, (r + gap) * 0.71];
        return [
          [x + out, y - h / 2], [x + slant, y + slant - h / 2], [x - w / 2, y + out], [x - slant - w, y + slant - h / 2],
          [x + slant, y - slant - h / 2], [x - out - w, y - h / 2], [x - slant - w, y - slant - h / 2], [x - w / 2, y - out - h],
        ].map(([px, py]) => ({ x: px, y: py, w, h, gap }));
      });
      const spot = places.find(free);
      if (!spot) continue;
      taken.push(spot);
      if (spot.gap > 6) {
        const [mx, my] = [spot.x + w / 2, spot.y + h / 2];
        const near = [Math.min(Math.max(x, spot.x), spot.x + w), Math.min(Math.max(y, spot.y), spot.y + h)];
        const away = Math.hypot(mx - x, my - y);
        svg.append(draw("line", { x1: x + ((mx - x) * r) / away, y1: y + ((my - y) * r) / away, x2: near[0], y2: near[1], class: "axis" }));
      }
      svg.append(draw("text", { x: spot.x, y: spot.y + 12, class: "halo" }, text));
    }
  }

  /** A bar of what stands in the memory of one device, with the budget and the capacity marked. */
  function memory(figure, answer) {
    const parts = [
      { name: "weights", bytes: answer.weights_bytes, fill: "var(--blue)" },
      { name: "KV cache and state", bytes: answer.kv_bytes, fill: "var(--orange)" },
      { name: "reserve", bytes: answer.reserve_bytes, fill: "var(--purple)" },
    ].filter((part) => part.bytes > 0);
    const end = Math.max(answer.capacity_bytes, answer.total_bytes);
    const spare = Words.bytes(Math.abs(answer.headroom_bytes));
    const words =
      parts.map((part) => `${part.name} ${Words.bytes(part.bytes)}`).join(", ") +
      `, of a budget of ${Words.bytes(answer.budget_bytes)}: ${spare} ${answer.fits ? "to spare" : "short"}`;
    place(figure, 104, words, "Up to the dashed line is the budget, up to the solid one the capacity of the device.", (svg, width) => {
      const at = (bytes) => 1 + (bytes / end) * (width - 2);
      const [top, height] = [30, 44];
      svg.append(draw("rect", { x: 1, y: top, width: at(answer.capacity_bytes) - 1, height, fill: "#ececf0" }));
      let from = 0;
      for (const part of parts) {
        const [left, right] = [at(from), at(from + part.bytes)];
        svg.append(
          draw("rect", { x: left, y: top, width: Math.max(right - left, 1), height, fill: part.fill, stroke: "#fff" },
            draw("title", {}, `${part.name}: ${Words.bytes(part.bytes)}`))
        );
        const said = [`${part.name} ${Words.bytes(part.bytes)}`, Words.bytes(part.bytes)];
        const text = said.find((one) => one.length * 7 + 16 < right - left) || "";
        const dark = part.fill === "var(--blue)";
        svg.append(draw("text", { x: left + 8, y: top + 27, style: dark ? "fill:#fff" : "" }, text));
        from += part.bytes;
      }
      const [budget, capacity] = [at(answer.budget_bytes), at(answer.capacity_bytes)];
      svg.append(
        draw("line", { x1: budget, x2: budget, y1: 20, y2: top + height + 6, stroke: "var(--black)", "stroke-width": 2, "stroke-dasharray": "5 3" }),
        draw("text", { x: budget - 4, y: 16, "text-anchor": "end" }, `budget ${Words.bytes(answer.budget_bytes)}`),
        draw("line", { x1: capacity, x2: capacity, y1: top - 6, y2: top + height + 6, stroke: "var(--black)", "stroke-width": 2 }),
        draw("text", { x: capacity, y: top + height + 20, "text-anchor": "end", class: "faint" },
          `capacity ${Words.bytes(answer.capacity_bytes)}`)
      );
      if (!answer.fits) {
        svg.append(draw("text", { x: 2, y: top + height + 20, style: "fill:var(--alarm);font-weight:600" }, `${spare} short`));
      }
    });
  }

  /** Bytes of one sequence against its length, a line for each kind of layer. */
  function cache(figure, kinds, lengths, bytes, answer, title) {
    const names = kinds.map((kind) => kind.kind + (kind.window ? ` (window ${Words.count(kind.window)})` : ""));
    const lines = kinds.map((_, i) => ({ name: names[i], values: bytes.map((row) => row[i]) }));
    if (lines.length > 1) lines.push({ name: "total", values: bytes.map((row) => row.reduce((a, b) => a + b, 0)), total: true });
    const positive = lines.flatMap((line) => line.values).filter((value) => value > 0);
    const longest = answer.max_tokens;
    const reach = longest > 0 && longest < 2 ** 32 ? `; ${Words.count(longest)} tokens are the most that fit at this batch` : "";
    place(figure, 300, `${title}${reach}`, `Marked: the ${Words.count(answer.tokens)} tokens asked${reach}.`, (svg, width, height) => {
      const box = { left: 66, right: width - 28, top: 26, bottom: height - 46 };
      const x = logAxis(lengths[0], lengths[lengths.length - 1], box.left, box.right);
      const most = Math.max(...positive);
      const y = logAxis(Math.max(Math.min(...positive), most / 1e6) / 1.5, most * 2, box.bottom, box.top);
      axes(svg, box, x, y, powers(x, 4, width / 95), powers(y, 4, 6), Words.count, (v) => Words.bytes(v).replace(".00", ""), "tokens of the sequence", "bytes of one sequence, all devices together");
      const clip = (value) => Math.min(box.bottom, y.at(value));
      const mark = (tokens, text, dash, row) => {
        if (tokens < x.low || tokens > x.high) return;
        const at = x.at(tokens);
        const anchor = box.right - at > 110 ? "start" : "end";
        svg.append(
          draw("line", { x1: at, x2: at, y1: box.top, y2: box.bottom, stroke: "var(--black)", "stroke-dasharray": dash }),
          draw("text", { x: at + (anchor === "end" ? -5 : 5), y: box.bottom - 8 - 17 * row, "text-anchor": anchor, class: "halo" }, text)
        );
      };
      mark(answer.tokens, "asked", "", 0);
      mark(longest, "fits up to here", "4 3", 1);
      lines.forEach((line, i) => {
        const shown = line.values.map((value, at) => [x.at(lengths[at]), clip(value)]);
        const look = line.total ? { stroke: "var(--black)", "stroke-width": 1.5 } : { stroke: COLOURS[i % 6], "stroke-width": 3, "stroke-dasharray": DASHES[i % 6] };
        svg.append(draw("path", { d: path(shown), fill: "none", ...look }));
      });
      legend(svg, box, lines.map((line, i) => ({ text: line.name, colour: line.total ? "var(--black)" : COLOURS[i % 6], dash: line.total ? "" : DASHES[i % 6] })));
    });
  }

  /** Writes the names of lines into the top left corner. */
  function legend(svg, box, entries) {
    entries.forEach(({ text, colour, dash }, i) => {
      const y = box.top + 12 + 18 * i;
      svg.append(
        draw("line", { x1: box.left + 10, x2: box.left + 42, y1: y, y2: y, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash }),
        draw("text", { x: box.left + 50, y: y + 4, class: "halo" }, text)
      );
    });
  }

  /** Every operation of a phase under the roofs of the machine. */
  function roofline(figure, machine, operations, title, caption) {
    const placed = operations.filter((op) => op.flops > 0 && op.hbm_bytes > 0 && op.seconds > 0);
    const total = operations.reduce((sum, op) => sum + op.seconds, 0);
    const peaks = [...new Set(placed.map((op) => op.compute))].filter(Boolean)
      .map((name) => ({ name, value: machine.peak_flops_per_s[name] })).sort((a, b) => b.value - a.value);
    place(figure, 400, title, caption, (svg, width, height) => {
      const box = { left: 66, right: width - 28, top: 26, bottom: height - 46 };
      const intensity = placed.map((op) => op.flops / op.hbm_bytes);
      const reached = placed.map((op) => op.flops / op.seconds);
      const highest = Math.max(...peaks.map((peak) => peak.value));
      const ridge = highest / machine.hbm_bytes_per_s;
      const x = logAxis(Math.min(...intensity.map((v) => v / 5), ridge / 30), Math.max(...intensity, ridge) * 8, box.left, box.right);
      const y = logAxis(Math.min(...reached.map((v) => v / 5), highest / 30), highest * 3, box.bottom, box.top);
      axes(svg, box, x, y, powers(x, 10, width / 70), powers(y, 10, 6), (v) => Words.digits(v, 1), (v) => Words.decimal(v, ""), "arithmetic intensity, FLOP per byte of HBM traffic", "FLOP/s reached");
      const slope = machine.hbm_bytes_per_s;
      const start = Math.max(x.low, y.low / slope);
      svg.append(draw("path", { d: path([[x.at(start), y.at(start * slope)], [x.at(ridge), y.at(highest)]]), fill: "none", stroke: "var(--black)", "stroke-width": 2 }));
      const middle = start * (ridge / start) ** 0.62;
      const angle = (Math.atan2(y.at(highest) - y.at(start * slope), x.at(ridge) - x.at(start)) * 180) / Math.PI;
      svg.append(draw("text", { transform: `translate(${x.at(middle)} ${y.at(middle * slope) - 7}) rotate(${angle})`, "text-anchor": "middle", class: "halo" }, `HBM ${Words.decimal(slope, "B/s")}`));
      peaks.forEach((peak, i) => {
        const from = peak.value / slope;
        svg.append(
          draw("path", { d: path([[x.at(from), y.at(peak.value)], [box.right, y.at(peak.value)]]), fill: "none", stroke: "var(--black)", "stroke-width": 2, "stroke-dasharray": DASHES[i % 6] }),
          draw("text", { x: box.right - 2, y: y.at(peak.value) - 6, "text-anchor": "end", class: "halo" }, `${peak.name} ${Words.decimal(peak.value, "FLOP/s")}`)
        );
      });
      const points = placed
        .map((op, i) => ({ x: x.at(intensity[i]), y: y.at(reached[i]), r: 4 + 16 * Math.sqrt(op.seconds / total), text: op.name, share: op.seconds / total, op }))
        .sort((a, b) => b.r - a.r);
      for (const point of points) {
        const { op } = point;
        const fill = op.kind === "attention" || op.kind === "scan" ? "var(--vermillion)" : op.kind === "moe" ? "var(--green)" : "var(--blue)";
        const shape = op.kind === "attention" || op.kind === "scan"
          ? draw("rect", { x: point.x - point.r * 0.88, y: point.y - point.r * 0.88, width: point.r * 1.76, height: point.r * 1.76 })
          : op.kind === "moe"
            ? draw("path", { d: `M${point.x} ${point.y - point.r * 1.2}L${point.x + point.r * 1.2} ${point.y}L${point.x} ${point.y + point.r * 1.2}L${point.x - point.r * 1.2} ${point.y}Z` })
            : draw("circle", { cx: point.x, cy: point.y, r: point.r });
        for (const [key, value] of Object.entries({ fill, "fill-opacity": 0.55, stroke: fill, "stroke-width": 1.5 })) shape.setAttribute(key, value);
        shape.append(draw("title", {}, `${op.name}: ${Words.time(op.seconds)}, ${Words.percent(op.seconds / total)}`));
        svg.append(shape);
      }
      const roofs = [{ value: slope * middle, x: x.at(middle) - 60, w: 120 }, ...peaks.map(({ value }) => ({ value, x: box.right - 150, w: 150 }))];
      labels(svg, box, points, width > 600 ? 0.01 : 0.04, roofs.map((roof) => ({ x: roof.x, w: roof.w, y: y.at(roof.value) - 24, h: 24 })));
    });
  }

  /** Seconds per token against the batch, as expected and as bounds, and where it no longer fits. */
  function batch(figure, curves, chosen, answer, title, caption) {
    const every = curves.flatMap((curve) => curve.points);
    place(figure, 300, title, caption, (svg, width, height) => {
      const box = { left: 66, right: width - 28, top: 26, bottom: height - 46 };
      const x = logAxis(1, Math.max(...every.map(([n]) => n)), box.left, box.right);
      const seconds = every.map(([, s]) => s);
      const y = logAxis(Math.min(...seconds) / 1.6, Math.max(...seconds) * 1.6, box.bottom, box.top);
      if (answer.max_seqs < x.high) {
        const from = x.at(Math.max(answer.max_seqs, 1));
        svg.append(draw("rect", { x: from, y: box.top, width: box.right - from, height: box.bottom - box.top, fill: "#f1e3da" }));
      }
      axes(svg, box, x, y, powers(x, 4, width / 80), decades(y, 6), Words.count, Words.time, "requests in the batch", "time per output token (TPOT)");
      if (answer.max_seqs < x.high) {
        const at = x.at(Math.max(answer.max_seqs, 1));
        const room = box.right - at;
        svg.append(draw("text", { x: room > 130 ? at + 8 : at - 8, "text-anchor": room > 130 ? "start" : "end", y: box.bottom - 10, class: "halo" }, answer.max_seqs ? `over ${Words.count(answer.max_seqs)} do not fit` : "none fits"));
      }
      curves.forEach((curve, i) => {
        svg.append(draw("path", { d: path(curve.points.map(([n, s]) => [x.at(n), y.at(s)])), fill: "none", stroke: COLOURS[i], "stroke-width": 3, "stroke-dasharray": DASHES[i] }));
      });
      const [n, s] = chosen;
      svg.append(draw("circle", { cx: x.at(n), cy: y.at(s), r: 7, fill: "var(--vermillion)", stroke: "#fff", "stroke-width": 2 }, draw("title", {}, `${n}: ${Words.time(s)}`)));
      legend(svg, box, curves.map((curve, i) => ({ text: curve.name, colour: COLOURS[i], dash: DASHES[i] })));
    });
  }

  return { batch, cache, measure, memory, roofline };
})();
