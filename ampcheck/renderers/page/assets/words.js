/* How numbers are written: the rules of wording.py. */

const NONE = "–";

/** Return a number with so many decimals, what lies in the middle rounded to even. */
function fixed(value, decimals) {
  const exact = value.toFixed(decimals + 60);
  const cut = exact.length - 60;
  const middle = /^50*$/.test(exact.slice(cut));
  const down = exact.slice(0, decimals ? cut : cut - 1);
  const even = middle && Number(down.at(-1)) % 2 === 0;
  const [whole, rest] = (even ? down : value.toFixed(decimals)).split(".");
  return Number(whole).toLocaleString("en-US") + (rest ? `.${rest}` : "");
}

/** Return a share as percent; what is not zero never looks like zero, what is not all never like all. */
function percent(share) {
  const value = 100 * share;
  if (!Number.isFinite(value)) return "inf";
  if (value > 0 && value < 0.01) return "<0.01 %";
  if (value > 99.9 && value < 100) return ">99.9 %";
  const whole = value === 0 || value === 100 || (value >= 10 && value < 99) || value > 100;
  return `${fixed(value, whole ? 0 : value >= 1 ? 1 : 2)} %`;
}

/** Return a count with thousands kept apart. */
function count(number) {
  return number.toLocaleString("en-US");
}

/** Return a count that is known to lie between two numbers. */
function span([low, high]) {
  return low === high ? count(low) : `${count(low)} to ${count(high)}`;
}

function power(exponent) {
  return `2^${exponent}`;
}

/** Return a magnitude in three digits. */
function magnitude(value) {
  const plain = value === 0 || (value >= 1e-3 && value < 1e6);
  return plain ? Number(value.toPrecision(3)).toLocaleString("en-US") : value.toExponential(2);
}
