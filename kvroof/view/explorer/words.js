"use strict";
/* Numbers as people read them: the units and digits of the command line's tables. */
const Words = (() => {
  const KIB = 1024;
  const SIZES = [["TiB", KIB ** 4], ["GiB", KIB ** 3], ["MiB", KIB ** 2], ["KiB", KIB]];
  const DECIMAL = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["K", 1e3]];
  const BOUNDS = { compute: "compute", hbm: "HBM bandwidth", network: "link", overhead: "launch overhead" };

  const count = (value) => Math.round(value).toLocaleString("en-US");
  const digits = (value, most) => Number(value.toPrecision(most)).toLocaleString("en-US", { maximumFractionDigits: 12 });

  function bytes(size) {
    const unit = SIZES.find(([, scale]) => Math.abs(size) >= scale);
    if (!unit) return `${count(size)} B`;
    return `${(size / unit[1]).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })} ${unit[0]}`;
  }

  function time(seconds) {
    if (seconds === 0) return "0 s";
    const [unit, scale] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]].find(
      ([, scale]) => seconds >= 0.9995 * scale
    ) || ["ns", 1e-9];
    return `${seconds < 999.5 ? (seconds / scale).toPrecision(3).replace(/e\+?/, "e") : count(seconds)} ${unit}`;
  }

  function decimal(value, unit) {
    const prefix = DECIMAL.find(([, scale]) => Math.abs(value) >= scale) || ["", 1];
    return `${digits(value / prefix[1], 4)} ${prefix[0]}${unit}`;
  }

  function params(value) {
    const [suffix, scale] = [["T", 1e12], ["B", 1e9], ["M", 1e6], ["K", 1e3]].find(([, s]) => value >= s) || ["", 1];
    return `${(value / scale).toFixed(2)}${suffix}`;
  }

  const percent = (share, places = 1) => `${(100 * share).toFixed(places)} %`;
  const rate = (value) => (value >= 100 ? count(value) : digits(value, 3));
  const tokens = (value) => (value > 2 ** 32 ? "no limit" : count(value));

  return { BOUNDS, bytes, count, decimal, digits, params, percent, rate, time, tokens };
})();
