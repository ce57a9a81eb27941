"use strict";
/* The page itself: controls in, words, tables and pictures out. */
(() => {
  const explorer = Kvroof.open(JSON.parse(document.getElementById("tables").textContent));
  const { tables } = explorer;
  const byId = (id) => document.getElementById(id);
  const SLOW_MS = 180;
  /** Decode steps that a point of a curve, and a row of the comparison, is the mean of at most. */
  const CURVE_STEPS = 3;
  const ROW_STEPS = 257;

  /** The sliders: their values where they are not every number between their limits. */
  const nice = (most) => {
    const values = [1, 2, 3];
    for (let power = 4; power <= most; power *= 2) values.push(power, power * 1.25, power * 1.5, power * 1.75);
    return values.filter((value) => value <= most);
  };
  const SLIDERS = {
    tp: { label: "Tensor-parallel ranks", unit: (v) => (v === 1 ? "device" : "devices"), values: () => ranks(), exact: false },
    isl: { label: "Prompt", unit: () => "tokens", values: () => nice(2 ** 20), exact: true },
    osl: { label: "Output", unit: () => "tokens", values: () => nice(2 ** 15), exact: true },
    batch: { label: "Batch", unit: (v) => (v === 1 ? "request" : "requests"), values: () => nice(2 ** 12), exact: true },
    percent: { label: "Memory that may be used", unit: () => "%", values: () => range(50, 100, 1), exact: true },
    reserve: { label: "Kept for activations and runtime", unit: () => "GiB", values: () => range(0, 32, 0.5), exact: true },
  };

  let choice = Choice.mended(Choice.fromHash(location.hash), tables);
  let phase = "decode";
  let versus = "machines";
  let shownMachine = null;

  function ranks() {
    return Object.keys(explorer.models.get(choice.model).ranks).map(Number);
  }
  function range(low, high, step) {
    return Array.from({ length: Math.round((high - low) / step) + 1 }, (_, i) => low + i * step);
  }

  /** Returns an HTML element; attributes that begin with "on" are listeners. */
  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null));
    return element;
  }

  function table(id, head, rows) {
    const cells = (row, name) => row.map((cell, i) => cell instanceof Node && /^T[HD]$/.test(cell.tagName) ? cell : make(i === 0 && name === "td" ? "th" : name, name === "th" ? { scope: "col" } : i === 0 ? { scope: "row" } : {}, cell));
    byId(id).replaceChildren(
      make("thead", {}, make("tr", {}, cells(head, "th"))),
      make("tbody", {}, rows.map(({ row, look }) => make("tr", look ? { class: look } : {}, cells(row, "td"))))
    );
  }
  const word = (parts, tag = "td") => make(tag, { class: "word", scope: tag === "th" && "col" }, parts);

  // Controls ---------------------------------------------------------------------------------------------

  function change(part) {
    choice = Choice.mended({ ...choice, ...part }, tables);
    schedule();
  }

  function buildControls() {
    const groups = (records, label) => {
      const found = new Map();
      for (const record of records) found.set(label(record), [...(found.get(label(record)) || []), record.name]);
      return [...found].sort(([a], [b]) => a.localeCompare(b)).map(([name, names]) =>
        make("optgroup", { label: name }, names.map((text) => make("option", { value: text }, text))));
    };
    byId("model").append(...groups(tables.models, (model) => family(model.name)));
    byId("machine").append(...groups(tables.machines, (machine) => machine.vendor));
    for (const axis of ["weights", "cached"]) {
      byId(axis).append(...tables.choices[axis].map((name) => make("option", { value: name }, name)));
    }
    for (const name of ["model", "machine", "weights", "cached", "calibration"]) {
      byId(name).addEventListener("change", (event) => change({ [name]: event.target.value }));
    }
    for (const holder of document.querySelectorAll(".slider")) buildSlider(holder, holder.dataset.name);
    radios("phase", ["decode", "prefill"], (name) => (phase = name), (name) => name);
    radios("versus", ["machines", "models"], (name) => (versus = name), (name) => (name === "machines" ? "this model on every machine" : "every model on this machine"));
    byId("reset").addEventListener("click", () => change(Choice.start(tables)));
    byId("copy-commands").addEventListener("click", () => copy(byId("commands").textContent, "commands copied"));
    byId("copy-link").addEventListener("click", () => copy(location.href, "link copied"));
  }

  /** Returns the part of a model's name by which models are grouped. */
  const family = (name) => name.includes("/") ? "your own" : name.split(/[-_]?\d|-/)[0].replace(/^c4ai$/, "command");

  function buildSlider(holder, name) {
    const { label, values, exact } = SLIDERS[name];
    const slide = make("input", { type: "range", id: name, min: 0, step: 1, oninput: (e) => change({ [name]: values()[Number(e.target.value)] }) });
    const [least, most] = Choice.LIMITS[name] || [1, 16];
    const typed = exact
      ? make("input", { type: "number", id: `${name}-exact`, min: least, max: most, step: name === "reserve" ? "any" : 1, "aria-label": `${label}, exact number`, onchange: (e) => change({ [name]: e.target.value }) })
      : make("output", { for: name, id: `${name}-exact` });
    holder.append(
      make("label", { for: name }, label, make("span", { class: "hint", id: `${name}-unit` })),
      make("div", { class: "row" }, slide, typed)
    );
  }

  function radios(id, names, set, text) {
    byId(id).append(...names.map((name, i) =>
      make("label", {}, make("input", { type: "radio", name: id, value: name, checked: i === 0, onchange: () => { set(name); schedule(); } }), text(name))));
  }

  async function copy(text, done) {
    let said = done;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", {});
      area.value = text;
      document.body.append(area);
      area.select();
      said = document.execCommand("copy") ? done : "your browser does not allow copying";
      area.remove();
    }
    byId("copied").textContent = said;
    setTimeout(() => (byId("copied").textContent = ""), 3000);
  }

  function showControls(asked) {
    for (const name of ["model", "machine", "weights", "cached"]) byId(name).value = choice[name];
    const { model, machine, times } = asked;
    if (shownMachine !== machine) {
      byId("calibration").replaceChildren(
        make("option", { value: "auto" }, machine.times.length > 1 ? `auto (${machine.times[1].calibration})` : "auto (none known: bounds)"),
        ...machine.times.map((one) => make("option", { value: one.calibration }, one.calibration === "none" ? "none: bounds" : one.calibration))
      );
      shownMachine = machine;
    }
    byId("calibration").value = choice.calibration;
    byId("model-hint").textContent = `${Words.params(model.params_total)} parameters` +
      (model.params_active < model.params_total ? `, ${Words.params(model.params_active)} active a token` : "");
    byId("machine-hint").textContent = `${Words.bytes(machine.capacity_bytes)}, HBM ${Words.decimal(machine.hbm_bytes_per_s, "B/s")}, ` +
      Object.entries(machine.peak_flops_per_s).filter(([name]) => ["bf16", "fp16", "fp8", "fp4"].includes(name)).map(([name, peak]) => `${name} ${Words.decimal(peak, "FLOP/s")}`).join(", ");
    byId("calibration-hint").textContent = times.name === null ? "Times are bounds: engines are slower." : calibrated(times);
    byId("weights").options[0].textContent = `auto (${model.weights_auto})`;
    byId("cached").options[0].textContent = `auto (${model.cached_auto})`;
    for (const [name, { unit, values, exact }] of Object.entries(SLIDERS)) {
      const [slide, shown, all] = [byId(name), byId(`${name}-exact`), values()];
      slide.max = all.length - 1;
      slide.disabled = all.length === 1;
      slide.value = all.reduce((best, value, i) => (Math.abs(value - choice[name]) < Math.abs(all[best] - choice[name]) ? i : best), 0);
      slide.setAttribute("aria-valuetext", `${Words.digits(choice[name], 12)} ${unit(choice[name])}`);
      byId(`${name}-unit`).textContent = unit(choice[name]);
      if (!exact) shown.textContent = choice[name];
      else if (document.activeElement !== shown) shown.value = choice[name];
    }
  }

  const calibrated = (times) =>
    `Calibrated: ${times.name}` + (times.held_out_mape === null ? "" : `, kernels off by ${Words.percent(times.held_out_mape, 0)} on points not fitted`);

  // Answers ----------------------------------------------------------------------------------------------

  /** Returns the speed, or why there is none. */
  function speedOf(asked, most) {
    try {
      return { speed: explorer.speed(asked, most), why: null };
    } catch (error) {
      if (!(error instanceof Kvroof.Unknown)) throw error;
      return { speed: null, why: error.message };
    }
  }

  let frame = 0;
  let later = 0;
  function schedule() {
    byId("results").setAttribute("aria-busy", "true");
    cancelAnimationFrame(frame);
    clearTimeout(later);
    frame = requestAnimationFrame(show);
    later = setTimeout(showSlow, SLOW_MS);
  }

  function show() {
    Charts.measure(document.querySelectorAll("figure"));
    const asked = Choice.asked(choice);
    const resolved = explorer.resolve(asked);
    const memory = explorer.memory(asked);
    const { speed, why } = speedOf(asked);
    const bound = speed && speed.times.name !== null ? speedOf({ ...asked, calibration: "none" }).speed : speed;
    showControls(resolved);
    showVerdict(memory, speed, why);
    showTiles(memory, speed, bound);
    showMemory(memory);
    showCache(asked, memory);
    showRoofline(resolved, speed, why);
    showBatch(asked, memory, speed, why);
    byId("commands").textContent = Choice.commands(choice, speed !== null).join("\n");
    showAssumed(resolved, memory, speed);
  }

  /** What takes longer, what is read out, and the address, once the slider rests. */
  function showSlow() {
    if (location.hash !== Choice.toHash(choice)) history.replaceState(null, "", Choice.toHash(choice));
    showCompare(Choice.asked(choice));
    const text = byId("verdict").textContent + ". " + [...byId("tiles").children].slice(0, 6)
      .map((tile) => `${tile.children[0].textContent}: ${tile.children[1].textContent}`).join(". ");
    if (byId("said").textContent !== text) byId("said").textContent = text;
    byId("results").setAttribute("aria-busy", "false");
  }

  function showVerdict(memory, speed, why) {
    const devices = choice.tp > 1 ? `${choice.tp} × ${choice.machine}` : choice.machine;
    const requests = `${Words.count(choice.batch)} × (${Words.count(choice.isl)} in + ${Words.count(choice.osl)} out) of ${choice.model}`;
    const spare = Words.bytes(Math.abs(memory.headroom_bytes));
    byId("answer").classList.toggle("no", !memory.fits);
    byId("verdict").replaceChildren(
      make("b", {}, memory.fits ? "Yes" : "No"), ": ", make("span", { class: "long" }, requests),
      memory.fits ? " fits" : " does not fit", ` on ${devices}, `, make("b", {}, spare), memory.fits ? " to spare" : " short",
      why ? `. No times: ${why}` : ""
    );
    byId("brief").replaceChildren(
      ...[["KV", Words.bytes(memory.payload_bytes)], ...(speed ? [["TTFT", Words.time(speed.ttft_s)], ["TPOT", Words.time(speed.tpot_s)]] : []), ["most", Words.count(memory.max_seqs)]]
        .map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))
    );
  }

  function showTiles(memory, speed, bound) {
    const kind = speed && speed.times.name === null ? "bound" : "calibrated";
    const times = (name, what) => {
      if (speed === null) return [];
      const { seconds, interval, lower_bound_s, bound: by } = speed[what];
      const likely = interval ? [`likely ${Words.time(interval[0])} to ${Words.time(interval[1])}`, `bound ${Words.time(bound[what].seconds)}`] : [];
      return [[`${name}, ${kind}`, Words.time(seconds), [...likely, `no schedule beats ${Words.time(lower_bound_s)}`, `waits for ${Words.BOUNDS[by]}`]]];
    };
    const tiles = [
      ["KV and state, one sequence", Words.bytes(memory.payload_bytes_per_seq), `${Words.count(memory.bytes_per_token)} B a token` + (memory.fixed_bytes_per_seq ? `, ${Words.bytes(memory.fixed_bytes_per_seq)} fixed` : "")],
      ["KV and state, whole batch", Words.bytes(memory.payload_bytes), `${Words.bytes(memory.kv_bytes)} allocated on each device`],
      ["Most sequences that fit", Words.count(memory.max_seqs), `of ${Words.count(memory.tokens)} tokens`],
      ["Longest context that fits", Words.tokens(memory.max_tokens), `tokens, ${Words.count(choice.batch)} at once`],
      ...times("TTFT", "prefill"), ...times("TPOT", "decode"),
      ...(speed === null ? [] : [
        ["One user reads", `${Words.rate(1 / speed.tpot_s)} tokens/s`, `a whole answer in ${Words.time(speed.e2e_s)}`],
        ["Output of each device", `${Words.rate(speed.tokens_per_s_per_device)} tokens/s`, `MFU ${Words.percent(speed.prefill.mfu, 0)} in prefill, MBU ${Words.percent(speed.decode.mbu, 0)} in decode`],
      ]),
    ];
    byId("tiles").replaceChildren(...tiles.map(([name, value, note]) =>
      make("div", {}, make("dt", {}, name), make("dd", { class: "value" }, value), [note].flat().map((line) => make("dd", { class: "note" }, line)))));
  }

  function showMemory(memory) {
    Charts.memory(byId("memory-chart"), memory);
    const swatch = (colour, text) => make("th", { scope: "row" }, make("span", { class: "swatch", style: `background:${colour}` }), text);
    const line = (name, bytes, look) => ({ row: [name, Words.bytes(bytes), `${Words.count(bytes)} B`], look });
    table("ledger", ["item", "size", "exactly"], [
      line(`budget, ${choice.percent} % of ${Words.bytes(memory.capacity_bytes)}`, memory.budget_bytes),
      line(swatch("var(--blue)", "less weights"), memory.weights_bytes),
      line(swatch("var(--orange)", `less KV cache and state, in blocks of ${tables.block_size} tokens`), memory.kv_bytes),
      line(swatch("var(--purple)", "less reserve"), memory.reserve_bytes),
      line("leaves", memory.headroom_bytes, "sum"),
    ]);
  }

  function showCache(asked, memory) {
    const last = Math.max(asked.model_limit || 0, explorer.models.get(choice.model).max_tokens || 0, memory.tokens, 2 ** 17);
    const lengths = range(4, Math.ceil(Math.log2(last)), 0.25).map((power) => 2 ** power);
    Charts.cache(byId("cache-chart"), memory.kinds, lengths, explorer.payloads(asked, lengths.map(Math.round)), memory,
      `KV and state of one sequence of ${choice.model} against its length: ${Words.bytes(memory.payload_bytes_per_seq)} at ${Words.count(memory.tokens)} tokens`);
    const rows = memory.kinds.map((kind) => ({ row: [
      kind.kind, Words.bytes(kind.payload_bytes), memory.payload_bytes_per_seq ? Words.percent(kind.payload_bytes / memory.payload_bytes_per_seq) : "–",
      Words.bytes(choice.batch * kind.payload_bytes), Words.count(kind.layers), kind.window ? Words.count(kind.window) : "–",
      kind.bytes_per_token ? `${Words.count(kind.bytes_per_token)} B` : "–", kind.state_bytes ? Words.bytes(kind.state_bytes) : "–",
    ] }));
    table("kinds", ["kind", "one sequence", "share", "whole batch", "layers", "window", "a token, while it grows", "fixed state"], [
      ...rows, { look: "sum", row: ["together", Words.bytes(memory.payload_bytes_per_seq), "", Words.bytes(memory.payload_bytes), "", "", `${Words.count(memory.bytes_per_token)} B now`, ""] },
    ]);
  }

  function showRoofline(resolved, speed, why) {
    if (speed === null) {
      byId("roofline-chart").replaceChildren(make("figcaption", {}, why));
      byId("operations").replaceChildren();
      return;
    }
    const operations = explorer.byName(speed[phase].ops);
    const seconds = speed[phase].seconds;
    const largest = [...operations].sort((a, b) => b.seconds - a.seconds)[0];
    const what = phase === "decode" ? "the mean decode step" : "the prefill";
    Charts.roofline(byId("roofline-chart"), resolved.machine, operations,
      `Operations of ${what} on ${choice.machine} under its roofline; ${largest.name} takes most, ${Words.percent(largest.seconds / seconds)} of ${Words.time(seconds)}`,
      `Of one device in ${what}. The larger the mark, the longer it takes. Circles: products; squares: attention and scans; diamonds: experts. Under the roof: time lost to launches, queues and what kernels do not reach. Collectives and norms, without FLOPs, are in the table alone.`);
    table("operations", ["operation", "time", word("share", "th"), word("waits for", "th"), "times", "FLOP", "HBM", "link"],
      operations.filter((op) => op.seconds > 0).map((op) => ({ row: [
        op.name, Words.time(op.seconds),
        word([make("span", { class: "bar", style: `width:${Math.max(1, (60 * op.seconds) / seconds)}px` }), Words.percent(op.seconds / seconds)]),
        word(Words.BOUNDS[op.bound]), Words.digits(op.count, 6),
        op.flops ? Words.decimal(op.flops, "") : "–", op.hbm_bytes ? Words.decimal(op.hbm_bytes, "B") : "–",
        op.net_bytes ? Words.decimal(op.net_bytes, "B") : "–",
      ] })));
  }

  function showBatch(asked, memory, speed, why) {
    const figure = byId("batch-chart");
    if (speed === null) {
      figure.replaceChildren(make("figcaption", {}, why));
      return;
    }
    const most = Math.max(256, 2 ** Math.ceil(Math.log2(choice.batch)), Math.min(4096, 2 ** Math.ceil(Math.log2(memory.max_seqs + 1))));
    const batches = range(0, Math.log2(most), 0.5).map((power) => Math.round(2 ** power));
    const curve = (calibration) => batches.map((batch) => [batch, explorer.decodeSeconds({ ...asked, batch, calibration }, CURVE_STEPS)]);
    const curves = speed.times.name === null ? [] : [{ name: `calibrated: ${speed.times.name}`, points: curve(choice.calibration) }];
    curves.push({ name: "bound, at the peaks", points: curve("none") });
    const fits = memory.max_seqs ? `up to ${Words.count(memory.max_seqs)} requests fit` : "none fits";
    Charts.batch(figure, curves, [choice.batch, speed.tpot_s], memory,
      `Time per output token against the batch: ${Words.time(speed.tpot_s)} at ${Words.count(choice.batch)}; ${fits}`,
      `Every request with ${Words.count(choice.isl)} tokens in and ${Words.count(choice.osl)} out; ${fits}. The dot is the choice.`);
  }

  function showCompare(asked) {
    const machines = versus === "machines";
    const names = (machines ? tables.machines : tables.models).map((record) => record.name);
    const part = machines ? "machine" : "model";
    const wanted = ["auto", "none"].includes(choice.calibration) ? choice.calibration : "auto";
    const rows = names.map((name) => {
      const other = { ...asked, [part]: name };
      if (!explorer.models.get(other.model).ranks[other.tp]) return { name, why: `does not divide into ${other.tp}` };
      const { speed, why } = speedOf({ ...other, calibration: "none" }, ROW_STEPS);
      const calibration = name === choice[part] ? choice.calibration : wanted;
      const likely = calibration === "none" || why ? null : speedOf({ ...other, calibration }, ROW_STEPS).speed;
      return { name, why, speed, likely: likely && likely.times.name === null ? null : likely, memory: explorer.memory(other) };
    });
    const rank = (row) => (row.memory && row.memory.fits ? 0 : 1e6) + (row.speed ? row.speed.tpot_s : 1e5);
    rows.sort((a, b) => rank(a) - rank(b));
    byId("compare-hint").textContent = `${Words.count(choice.batch)} × (${Words.count(choice.isl)} in + ${Words.count(choice.osl)} out)` +
      (machines ? ` of ${choice.model}` : ` on ${choice.machine}`) + `, TP ${choice.tp}; what fits first, then by the bound of TPOT. ` +
      "TTFT is a bound, marked ≥, where none is calibrated. Sequences: the most of this length; context: the longest at this batch. A name brings it up.";
    table("compare", [part, word("fits", "th"), "TPOT bound", "TPOT calibrated", "TTFT", "sequences", "context", ...(machines ? [] : ["KV of one"]), word("waits for", "th")],
      rows.map(({ name, memory, speed, likely, why }) => {
        const time = (answer, key) => (answer ? Words.time(answer[key]) : "–");
        const show = () => {
          change({ [part]: name });
          byId("answer").focus();
        };
        return { look: name === choice[part] ? "here" : "", row: [
          name === choice[part] ? name : make("button", { type: "button", class: "link", title: `show ${name}`, onclick: show }, name),
          word(memory ? (memory.fits ? "yes" : "no") : "–"), time(speed, "tpot_s"), time(likely, "tpot_s"),
          (speed && !likely ? "≥ " : "") + time(likely || speed, "ttft_s"),
          memory ? Words.count(memory.max_seqs) : "–", memory ? Words.tokens(memory.max_tokens) : "–",
          ...(machines ? [] : [memory ? Words.bytes(memory.payload_bytes_per_seq) : "–"]),
          word(speed ? Words.BOUNDS[speed.decode.bound].split(" ")[0] : why),
        ] };
      }));
  }

  function showAssumed({ model, machine, times }, memory, speed) {
    const limit = model.max_tokens;
    const used = speed ? [...new Set([...speed.prefill.ops, ...speed.decode.ops].filter((op) => op.flops > 0 && op.compute).map((op) => op.compute))] : [];
    const said = [
      times.name === null
        ? "A bound, not a prediction: no calibration is applied and engines are slower; only overlapping operations could come below it."
        : `${calibrated(times)}; host time per step is a stated prior.`,
      "Queueing and scheduling are left out; the prompts of the whole batch run in one prefill, and all requests decode together.",
      `TPOT is the mean over the decode steps; the cache then grows from ${Words.count(choice.isl + 1)} to ${Words.count(Math.max(memory.tokens, choice.isl + 1))} tokens.`,
      ...(used.length ? [`Matrices multiply in ${used.join(", ")} at the dense peak of ${machine.name}.`] : []),
      ...(choice.tp > 1 && machine.joined[choice.tp] ? [`${choice.tp} devices, collectives over ${machine.joined[choice.tp]} one way, not overlapped. KV heads shard over the ranks; with fewer heads than ranks they are held more than once.`] : []),
      ...(limit && memory.tokens > limit ? [`${Words.count(memory.tokens)} tokens are beyond the ${Words.count(limit)} that ${model.name} was made for.`] : []),
      ...(choice.reserve === 0 ? ["Nothing is reserved for activations, graphs or the runtime."] : []),
      `Capacity is ${machine.nominal ? "nominal" : "what software sees"}; the sources of every number: kvroof show ${machine.name}.`,
      ...machine.disagreements.map((text) => `Sources disagree: ${text}`),
      ...model.notes, ...tables.pool[times.notes],
    ];
    byId("assumed").replaceChildren(...said.map((text) => make("li", {}, /^[a-z]+ /.test(text) ? text[0].toUpperCase() + text.slice(1) : text)));
  }

  buildControls();
  addEventListener("hashchange", () => {
    if (location.hash === Choice.toHash(choice)) return;
    choice = Choice.mended(Choice.fromHash(location.hash), tables);
    schedule();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) schedule();
    width = innerWidth;
  });
  schedule();
})();
