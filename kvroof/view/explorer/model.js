"use strict";
/* What the page knows: the tables' expressions, evaluated; then sums, means and limits over them.
 *
 * Formulas are in the tables, traced from the Python functions; here is no other arithmetic than what
 * `serving/latency.py`, `roofline/roofline.py` and `memory/budget.py` do with the answers, in the same order.
 */
const Kvroof = (() => {
  const OPERATIONS = ["add", "subtract", "multiply", "divide", "power", "minimum", "maximum", "floor", "ceil"];
  const MAX_SEQS = 2 ** 24;
  const MAX_TOKENS = 2 ** 40;

  /** The steps of a tape that the wanted lines need, ready to run. Constants stand before line 0. */
  class Program {
    constructor(tape, wanted) {
      const offset = tape.constants.length;
      const inputs = tape.inputs.length;
      const steps = tape.steps;
      const needed = new Uint8Array(offset + inputs + steps.length / 3);
      for (const line of wanted) needed[offset + line] = 1;
      const kept = [];
      for (let step = steps.length / 3 - 1; step >= 0; step--) {
        if (!needed[offset + inputs + step]) continue;
        const [a, b] = [offset + steps[3 * step + 1], offset + steps[3 * step + 2]];
        needed[a] = needed[b] = 1;
        kept.push([steps[3 * step], a, b, offset + inputs + step]);
      }
      this.offset = offset;
      this.last = offset + inputs - 1;
      this.moving = new Uint8Array(needed.length);
      this.moving[this.last] = 1;
      kept.reverse();
      for (const [, a, b, step] of kept) this.moving[step] = this.moving[a] | this.moving[b];
      this.fixed = Int32Array.from(kept.filter(([, , , step]) => !this.moving[step]).flat());
      this.moved = Int32Array.from(kept.filter(([, , , step]) => this.moving[step]).flat());
      this.values = new Float64Array(needed.length);
      tape.constants.forEach((constant, number) => (this.values[offset - 1 - number] = constant));
    }

    /** Evaluates the steps for inputs in the order of the tape. */
    run(inputs) {
      for (let i = 0; i < inputs.length; i++) this.values[this.offset + i] = inputs[i];
      this.evaluate(this.fixed);
      this.evaluate(this.moved);
    }

    /** Evaluates the steps again for another last input. */
    again(input) {
      this.values[this.last] = input;
      this.evaluate(this.moved);
    }

    evaluate(code) {
      const values = this.values;
      for (let at = 0; at < code.length; at += 4) {
        const a = values[code[at + 1]];
        const b = values[code[at + 2]];
        let answer;
        switch (code[at]) {
          case 0: answer = a + b; break;
          case 1: answer = a - b; break;
          case 2: answer = a * b; break;
          case 3: answer = a / b; break;
          case 4: answer = Math.pow(a, b); break;
          case 5: answer = Math.min(a, b); break;
          case 6: answer = Math.max(a, b); break;
          case 7: answer = Math.floor(a); break;
          default: answer = Math.ceil(a);
        }
        values[code[at + 3]] = answer;
      }
    }

    line(number) {
      return this.values[this.offset + number];
    }

    /** Returns whether a line changes with the last input. */
    moves(number) {
      return this.moving[this.offset + number] === 1;
    }
  }

  /** Returns `answer` of the arguments, remembered by `key` of them; the oldest are forgotten. */
  function remembered(key, answer, most = 400) {
    const known = new Map();
    return (...asked) => {
      const name = key(...asked);
      if (!known.has(name)) {
        if (known.size >= most) known.delete(known.keys().next().value);
        known.set(name, answer(...asked));
      }
      return known.get(name);
    };
  }

  /** Returns the largest n in 0 ... limit for which `holds`, which is monotone; 0 when none does. */
  function largest(holds, limit) {
    let low = 0;
    let high = 1;
    while (high <= limit && holds(high)) [low, high] = [high, high * 2];
    high = Math.min(high, limit + 1);
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (holds(middle)) low = middle;
      else high = middle;
    }
    return low;
  }

  /** Returns what can be asked of the tables. */
  function open(tables) {
    const { columns, pool } = tables;
    if (String(tables.operations) !== String(OPERATIONS)) throw new Error("the tables are of another version");
    const models = new Map(tables.models.map((model) => [model.name, model]));
    const machines = new Map(tables.machines.map((machine) => [machine.name, machine]));
    const traced = columns.op.slice(columns.op.indexOf("flops"));
    const priced = columns.priced;
    const kernels = Object.fromEntries(
      ["hard", "soft"].map((form) => {
        const lines = tables.kernel_forms[form];
        return [form, { lines, program: new Program(tables.kernel_forms.tape, lines) }];
      })
    );
    const collectives = tables.collective_forms.forms.map((lines) => ({
      lines,
      program: new Program(tables.collective_forms.tape, lines),
    }));

    /** Returns the operations of a phase under the choices, with the program of their lines. */
    function rowsOf(model, tp, phase, form, kind, weights, cached) {
      const laid = model.ranks[tp];
      const rows = (phase === "decode" ? laid.decode : laid.prefill[form])[kind];
      const axes = { weights, cached };
      const ops = rows.map((row) => {
        const op = {};
        model.pool[row].forEach((cell, column) => {
          let value = model.pool[cell];
          if (value !== null && typeof value === "object") {
            const [[axis, values]] = Object.entries(value);
            value = values[axes[axis]];
          }
          op[columns.op[column]] = value;
        });
        return op;
      });
      const wanted = ops.flatMap((op) => traced.map((name) => op[name]));
      return { ops, program: new Program(model.tape, wanted) };
    }
    const rows = remembered((model, ...rest) => [model.name, ...rest].join(" "), rowsOf);

    /** Returns the program of a model's cache: its lines for a dtype and ranks. */
    const cacheOf = remembered(
      (model, tp, cached) => [model.name, tp, cached].join(" "),
      (model, tp, cached) => {
        const held = model.ranks[tp].held_bytes[cached];
        const growth = model.growth_bytes[cached];
        const kinds = model.kinds.map((kind) => kind.payload_bytes[cached]);
        return { held, growth, kinds, program: new Program(model.tape, [held, growth, ...kinds]) };
      }
    );

    /** Returns the cached tokens of the decode steps: all, or evenly spaced ones where they are many. */
    function lengths(isl, osl, most) {
      const [first, last] = [isl + 1, Math.max(isl + osl - 1, isl + 1)];
      const count = Math.max(1, Math.min(last - isl, most));
      if (count === 1) return [first];
      const step = (last - first) / (count - 1);
      return Array.from({ length: count }, (_, i) => (i === count - 1 ? last : first + i * step));
    }

    /** Returns the operations of a phase with their seconds: means over the lengths. */
    function timed(asked, phase, form, over) {
      const { model, machine, tp, times } = asked;
      const kind = times.name === null ? "bound" : "calibrated";
      const { ops, program } = rows(model, tp, phase, form, kind, asked.weights, asked.cached);
      const prices = ops.map((op) => priceOf(op, asked, times));
      const sums = ops.map(() => new Float64Array(traced.length + 7));
      const moves = ops.map((op) => traced.some((name) => program.moves(op[name])));
      program.run([asked.batch, over[0]]);
      prices.forEach((price, i) => price(program, sums[i]));
      const moving = prices.map((price, i) => [price, sums[i]]).filter((_, i) => moves[i]);
      for (let step = 1; step < over.length; step++) {
        program.again(over[step]);
        for (const [price, into] of moving) price(program, into);
      }
      const timedOps = ops.map((op, i) => {
        const mean = Array.from(sums[i], (sum) => (moves[i] ? sum / over.length : sum));
        const one = { name: op.name, kind: op.kind, collective: op.collective, count: op.count, family: op.family };
        traced.forEach((name, at) => (one[name] = mean[at]));
        const [seconds, compute_s, hbm_s, overhead_s, , network_s, net_bytes] = mean.slice(traced.length);
        const excess_s = seconds - overhead_s - Math.max(compute_s, hbm_s, network_s);
        const peak = op.collective === null ? machine.peak_flops_per_s[machine.arithmetic[op.compute]] : null;
        return Object.assign(one, {
          seconds, compute_s, hbm_s, network_s, overhead_s, excess_s, net_bytes, peak,
          compute: op.collective === null ? machine.arithmetic[op.compute] : null,
        });
      });
      if (kind === "calibrated") timedOps.push(hostTime(asked, times));
      return timedOps;
    }

    function hostTime(asked, times) {
      const seconds = times.host_step_s + times.host_seq_s * asked.batch;
      const none = Object.fromEntries(traced.map((name) => [name, 0]));
      return {
        ...none, name: "host", kind: "host", collective: null, count: 1, family: "host", seconds,
        compute_s: 0, hbm_s: 0, network_s: 0, overhead_s: seconds, excess_s: 0, net_bytes: 0, peak: null, compute: null,
      };
    }

    /** Returns what adds an operation's figures of one step to its sums. */
    function priceOf(op, asked, times) {
      const at = traced.length;
      const lines = traced.map((name) => op[name]);
      const add = (program, sums) => lines.forEach((line, i) => (sums[i] += program.line(line)));
      if (op.collective !== null) {
        const { form, rest } = sending(op, asked, times);
        return (program, sums) => {
          add(program, sums);
          form.program.run([op.count, program.line(op.message_bytes), ...rest]);
          const network = form.program.line(form.lines[0]);
          sums[at] += network;
          sums[at + 5] += network;
          sums[at + 6] += form.program.line(form.lines[1]);
        };
      }
      const machine = asked.machine;
      const peak = machine.peak_flops_per_s[machine.arithmetic[op.compute]];
      if (peak === undefined) {
        throw new Unknown(`${machine.name} has no peak for any of ${op.compute.split("/").join(", ")}`);
      }
      const parameters = pool[times.kernels[op.family]];
      const form = kernels[parameters[columns.kernel.indexOf("sharpness")] === null ? "hard" : "soft"];
      const inputs = [
        ...columns.work.map((name) => (name === "count" || name === "launches" ? op[name] : 0)),
        ...parameters.map((value) => value ?? 0), peak, machine.hbm_bytes_per_s,
      ];
      const work = columns.work.flatMap((name, i) => (traced.includes(name) ? [[i, op[name]]] : []));
      return (program, sums) => {
        add(program, sums);
        for (const [i, line] of work) inputs[i] = program.line(line);
        form.program.run(inputs);
        for (let i = 0; i < priced.length; i++) sums[at + i] += form.program.line(form.lines[i]);
      };
    }

    /** Returns the form of a collective and its inputs behind the message. */
    function sending(op, asked, times) {
      const number = times.sent[op.collective][asked.tp];
      if (number === undefined) {
        throw new Unknown(`no link among ${asked.tp} devices is known for ${asked.machine.name}`);
      }
      const wire = pool[times.wires[op.collective]].map((value) => value ?? 0);
      return { form: collectives[number], rest: [...wire, ...asked.machine.links] };
    }

    const total = (ops, value) => ops.reduce((sum, op) => sum + value(op), 0);

    /** Returns the resource that most of the serial time is spent waiting for. */
    function boundOf(ops) {
      const shares = { compute: 0, hbm: 0, network: 0, overhead: 0 };
      for (const op of ops) {
        const parts = { compute: op.compute_s, hbm: op.hbm_s, network: op.network_s };
        const busiest = first(parts);
        shares[busiest] += parts[busiest] + op.excess_s;
        shares.overhead += op.overhead_s;
      }
      return first(shares);
    }

    const first = (parts) => Object.keys(parts).reduce((best, name) => (parts[name] > parts[best] ? name : best));

    /** Returns the least time of any schedule: every resource busy all the time, at its peak. */
    function overlapped(ops, asked) {
      const at_peak = asked.machine.times[0];
      const network = total(ops, (op) => {
        if (op.collective === null) return 0;
        const { form, rest } = sending(op, asked, at_peak);
        form.program.run([op.count, op.message_bytes, ...rest]);
        return form.program.line(form.lines[0]);
      });
      return Math.max(peakCompute(ops), compulsory(ops, asked.machine), network);
    }

    const peakCompute = (ops) => total(ops, (op) => (op.peak === null ? 0 : (op.count * op.flops) / op.peak));
    const compulsory = (ops, machine) =>
      total(ops, (op) => op.count * (op.weight_bytes + op.kv_bytes)) / machine.hbm_bytes_per_s;

    /** Returns one standard deviation of the log around a time: families err apart, within one together. */
    function around(ops, times) {
      const families = {};
      for (const op of ops) {
        const name = op.collective || op.family;
        families[name] = (families[name] || 0) + op.seconds;
      }
      const squares = Object.entries(families).map(([name, s]) => (s * (times.sigma[name] || 0)) ** 2);
      const seconds = total(ops, (op) => op.seconds);
      const spread = Math.sqrt(squares.reduce((a, b) => a + b, 0)) / seconds;
      return [seconds * Math.exp(-spread), seconds * Math.exp(spread)];
    }

    function phaseOf(ops, asked) {
      const seconds = total(ops, (op) => op.seconds);
      return {
        ops, seconds, bound: boundOf(ops), lower_bound_s: overlapped(ops, asked),
        mfu: peakCompute(ops) / seconds, mbu: compulsory(ops, asked.machine) / seconds,
        interval: asked.times.name === null ? null : around(ops, asked.times),
      };
    }

    /** Returns the records behind a choice of names and numbers. */
    function resolve(choice) {
      const [model, machine] = [models.get(choice.model), machines.get(choice.machine)];
      const own = machine.times;
      const named = own.find((times) => times.calibration === choice.calibration);
      const times = named || (choice.calibration === "auto" && own[1]) || own[0];
      return {
        ...choice, model, machine, times,
        weights: tables.choices.weights.indexOf(choice.weights),
        cached: tables.choices.cached.indexOf(choice.cached),
      };
    }

    /** Returns the seconds of prefill and of the mean decode step, and what is in them. */
    function speed(choice, most = tables.max_points) {
      const asked = resolve(choice);
      const forms = asked.model.ranks[asked.tp].prefill.map((_, form) => timed(asked, "prefill", form, [asked.isl]));
      const serial = (ops) => total(ops, (op) => op.seconds);
      const cheapest = forms.reduce((best, ops) => (serial(ops) < serial(best) ? ops : best));
      const prefill = phaseOf(cheapest, asked);
      const decode = phaseOf(timed(asked, "decode", 0, lengths(asked.isl, asked.osl, most)), asked);
      const e2e_s = prefill.seconds + (asked.osl - 1) * decode.seconds;
      const tokens_per_s = (asked.batch * asked.osl) / e2e_s;
      return {
        prefill, decode, e2e_s, tokens_per_s, tokens_per_s_per_device: tokens_per_s / asked.tp,
        ttft_s: prefill.seconds, tpot_s: decode.seconds, times: asked.times,
      };
    }

    /** Returns the seconds of the mean decode step alone. */
    function decodeSeconds(choice, most) {
      const asked = resolve(choice);
      return total(timed(asked, "decode", 0, lengths(asked.isl, asked.osl, most)), (op) => op.seconds);
    }

    /** Returns what the batch holds, against the budget of one device. */
    function memory(choice) {
      const asked = resolve(choice);
      const { model, machine, tp, batch } = asked;
      const tokens = asked.isl + asked.osl - 1;
      const { held, growth, kinds, program } = cacheOf(model, tp, asked.cached);
      const heldBytes = (seqs, length) => {
        program.run([seqs, length]);
        return program.line(held);
      };
      const kv_bytes = heldBytes(batch, tokens);
      const byKind = model.kinds.map((kind, i) => ({
        ...kind,
        bytes_per_token: kind.bytes_per_token[asked.cached],
        payload_bytes: program.line(kinds[i]),
      }));
      const bytes_per_token = program.line(growth);
      const budget_bytes = Math.floor((machine.capacity_bytes * asked.percent) / 100);
      const weights_bytes = model.ranks[tp].weights_bytes[asked.weights];
      const available = budget_bytes - weights_bytes - asked.reserve_bytes;
      const most = (holds, limit) => (available < 0 ? 0 : largest(holds, limit));
      const payload = total(byKind, (kind) => kind.payload_bytes);
      return {
        tokens, kinds: byKind, bytes_per_token, payload_bytes_per_seq: payload, payload_bytes: batch * payload,
        fixed_bytes_per_seq: total(byKind, (kind) => kind.state_bytes),
        kv_bytes, weights_bytes, budget_bytes, available_bytes: available,
        capacity_bytes: machine.capacity_bytes, reserve_bytes: asked.reserve_bytes,
        total_bytes: weights_bytes + kv_bytes + asked.reserve_bytes,
        headroom_bytes: available - kv_bytes, fits: kv_bytes <= available,
        max_seqs: most((n) => heldBytes(n, tokens) <= available, MAX_SEQS),
        max_tokens: most((n) => heldBytes(batch, n) <= available, MAX_TOKENS),
      };
    }

    /** Returns the bytes of one sequence by kind, at other lengths. */
    function payloads(choice, tokensList) {
      const asked = resolve(choice);
      const { kinds, program } = cacheOf(asked.model, asked.tp, asked.cached);
      return tokensList.map((tokens) => {
        program.run([1, tokens]);
        return kinds.map((line) => program.line(line));
      });
    }

    /** Returns the operations of a phase as people read them: those of one name together. */
    function byName(ops) {
      const groups = new Map();
      for (const op of ops) groups.set(op.name, [...(groups.get(op.name) || []), op]);
      return [...groups].map(([name, group]) => ({
        name,
        count: total(group, (op) => op.count),
        flops: total(group, (op) => op.count * op.flops),
        hbm_bytes: total(group, (op) => op.count * (op.weight_bytes + op.kv_bytes + op.activation_bytes)),
        net_bytes: total(group, (op) => op.net_bytes),
        seconds: total(group, (op) => op.seconds),
        bound: boundOf(group),
        compute: group[0].compute,
        kind: group[0].kind,
      }));
    }

    return { tables, models, machines, resolve, speed, decodeSeconds, memory, payloads, byName };
  }

  /** What no table knows: a peak or a link of a machine. */
  class Unknown extends Error {}

  return { open, Unknown };
})();
