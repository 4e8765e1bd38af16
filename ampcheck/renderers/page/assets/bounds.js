/* What a loss scale makes of a histogram: the arithmetic of TensorStats in stats.py, number for number. */

const TINY = -127;
const HUGE = 128;

/** Return [low, high]: the elements that become zero. */
function underflowed(stats, format, scale) {
  const tie = format.underflow - 1;
  let sure = 0;
  let edge = 0;
  stats.counts.forEach((count, index) => {
    const exponent = stats.lowest + index;
    if (exponent !== HUGE && exponent + scale < tie) sure += count;
    if (exponent + scale === tie) edge += count;
  });
  const unsure = stats.counts.length && stats.lowest === TINY && tie - scale < TINY;
  return [sure, sure + edge + (unsure ? stats.counts[0] : 0)];
}

/** Return [low, high]: the elements that become subnormal. */
function subnormal(stats, format, scale) {
  let sure = 0;
  let edge = 0;
  stats.counts.forEach((count, index) => {
    const exponent = stats.lowest + index;
    const scaled = exponent + scale;
    if (format.underflow <= scaled && scaled < format.min && exponent !== TINY) sure += count;
    if (scaled === format.underflow - 1) edge += count;
  });
  const tiny = stats.counts.length && stats.lowest === TINY && TINY + scale >= format.underflow;
  return [sure, sure + edge + (tiny ? stats.counts[0] : 0)];
}

/** Return [low, high]: the finite elements that no finite number can stand for. */
function overflowed(stats, format, scale) {
  const top = format.max - scale;
  const highest = stats.lowest + stats.counts.length - 1;
  if (!stats.counts.length || highest < Math.min(top, HUGE)) return [0, 0];
  let sure = 0;
  let edge = 0;
  stats.counts.forEach((count, index) => {
    const exponent = stats.lowest + index;
    if (exponent > top) sure += count;
    if (exponent === top || (exponent === HUGE && exponent < top)) edge += count;
  });
  if (!edge || sure) return [sure, sure + edge];
  const scaled = stats.amax * 2 ** scale;
  const over = format.hasInf ? scaled >= format.overflowFrom : scaled > format.overflowFrom;
  return over ? [1, edge] : [0, 0];
}

const COUNTS = { underflowed, subnormal, overflow: overflowed };

/** Return [low, high] over several tensors, each by itself. */
function summed(kind, sites, format, scale) {
  return sites.reduce(
    ([low, high], site) => {
      const [more, most] = COUNTS[kind](site, format, scale);
      return [low + more, high + most];
    },
    [0, 0],
  );
}

/** Return what becomes of the magnitudes of one power of two. */
function zoneOf(exponent, format, scale) {
  const scaled = exponent + scale;
  if (scaled < format.underflow - 1) return "underflowed";
  if (scaled < format.min) return "subnormal";
  return scaled <= format.max ? "normal" : "overflow";
}
