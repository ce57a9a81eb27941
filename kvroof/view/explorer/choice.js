"use strict";
/* A choice of model, machine and requests: what it may be, as part of an address, and as commands. */
const Choice = (() => {
  const GIB = 2 ** 30;
  const START = {
    tp: 1, isl: 2048, osl: 256, batch: 8, weights: "auto", cached: "auto",
    percent: 90, reserve: 0, calibration: "auto",
  };
  /** Names of an address's parts, the command line's where it has them. */
  const PARTS = {
    model: "model", machine: "hw", tp: "tp", isl: "isl", osl: "osl", batch: "batch", weights: "weights-dtype",
    cached: "kv-dtype", percent: "utilization", reserve: "reserve", calibration: "calibration",
  };
  /** The least and the most of each number. */
  const LIMITS = { isl: [1, 2 ** 22], osl: [1, 2 ** 16], batch: [1, 2 ** 14], percent: [10, 100], reserve: [0, 64] };

  /** Returns the choice to start from: the first model on the first machine. */
  function start(tables) {
    return { ...START, model: tables.models[0].name, machine: tables.machines[0].name };
  }

  /** Returns the choice with everything possible: names that the page has, ranks that divide, numbers in reach. */
  function mended(asked, tables) {
    const known = start(tables);
    const choice = { ...known, ...asked };
    const model = tables.models.find((m) => m.name === choice.model) || tables.models[0];
    const machine = tables.machines.find((m) => m.name === choice.machine) || tables.machines[0];
    choice.model = model.name;
    choice.machine = machine.name;
    for (const [name, [least, most]] of Object.entries(LIMITS)) {
      const number = Number(choice[name]);
      const usable = choice[name] !== "" && Number.isFinite(number) ? number : known[name];
      choice[name] = Math.min(most, Math.max(least, name === "reserve" ? usable : Math.round(usable)));
    }
    const ranks = Object.keys(model.ranks).map(Number);
    choice.tp = ranks.filter((tp) => tp <= Number(choice.tp)).pop() || ranks[0];
    for (const axis of ["weights", "cached"]) {
      if (!tables.choices[axis].includes(choice[axis])) choice[axis] = "auto";
    }
    const profiles = machine.times.map((times) => times.calibration);
    if (!profiles.includes(choice.calibration)) choice.calibration = "auto";
    return choice;
  }

  /** Returns the part of an address that holds a choice. */
  function toHash(choice) {
    const parts = Object.entries(PARTS).map(([name, part]) => [part, String(choice[name])]);
    return "#" + new URLSearchParams(parts).toString();
  }

  /** Returns what an address says of a choice. */
  function fromHash(hash) {
    const said = new URLSearchParams(hash.replace(/^#/, ""));
    return Object.fromEntries(
      Object.entries(PARTS).flatMap(([name, part]) => (said.has(part) ? [[name, said.get(part)]] : []))
    );
  }

  /** Returns the choice in the units that the tables are asked in. */
  function asked(choice) {
    return { ...choice, reserve_bytes: Math.round(choice.reserve * GIB) };
  }

  /** Returns the commands that answer the same; what is left out is the default. Without times, the memory's. */
  function commands(choice, timed) {
    const option = (name, value, usual) => (value === usual ? "" : ` --${name} ${value}`);
    const tokens = choice.isl + choice.osl - 1;
    const ranks = option("tp", choice.tp, 1);
    const cached = option("kv-dtype", choice.cached, "auto");
    const memory = ranks + option("weights-dtype", choice.weights, "auto") + cached +
      option("utilization", choice.percent / 100, 0.9) + option("reserve", `${choice.reserve}GiB`, "0GiB");
    const place = `${choice.model} ${choice.machine}`;
    const asked = option("isl", choice.isl, 2048) + option("osl", choice.osl, 256) + option("batch", choice.batch, 8);
    return [
      timed
        ? `kvroof estimate ${place}${asked}${memory}${option("calibration", choice.calibration, "auto")}`
        : `kvroof fit ${place}${option("tokens", tokens, 8192)}${option("seqs", choice.batch, 1)}${memory}`,
      `kvroof kv ${choice.model}${option("tokens", tokens, 8192)}${option("seqs", choice.batch, 1)}${ranks}${cached}`,
    ];
  }

  return { LIMITS, start, mended, toHash, fromHash, asked, commands };
})();
