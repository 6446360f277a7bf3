// Difference between two texts, by lines.

/** Maximum number of cells of the table. Larger texts are shown as removed and added as a whole. */
const CELLS = 4_000_000;

/** Returns `[["same" | "added" | "removed", line], …]`. */
export function diff(before, after) {
  let [from, end, was, is] = [0, 0, before.split("\n"), after.split("\n")];
  while (from < was.length && from < is.length && was[from] === is[from]) from++;
  while (end < was.length - from && end < is.length - from && was.at(-1 - end) === is.at(-1 - end)) end++;
  const same = (lines) => lines.map((line) => ["same", line]);
  return [...same(was.slice(0, from)), ...middle(was.slice(from, was.length - end), is.slice(from, is.length - end)), ...same(was.slice(was.length - end))];
}

function middle(was, is) {
  if (was.length * is.length > CELLS) return [...was.map((line) => ["removed", line]), ...is.map((line) => ["added", line])];
  const width = is.length + 1;
  // Length of the longest common subsequence of was[i..] and is[j..].
  const common = new Uint32Array((was.length + 1) * width);
  for (let i = was.length - 1; i >= 0; i--) {
    for (let j = is.length - 1; j >= 0; j--) {
      common[i * width + j] = was[i] === is[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < was.length || j < is.length) {
    if (i < was.length && j < is.length && was[i] === is[j]) {
      lines.push(["same", was[i]]);
      [i, j] = [i + 1, j + 1];
    } else if (j >= is.length || (i < was.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) lines.push(["removed", was[i++]]);
    else lines.push(["added", is[j++]]);
  }
  return lines;
}

/** Returns the changed lines with a few lines around them. Null stands for lines that are left out. */
export function hunks(lines, around = 2) {
  const near = lines.map(([kind], i) => lines.slice(Math.max(0, i - around), i + around + 1).some(([kind]) => kind !== "same"));
  const kept = [];
  lines.forEach((line, i) => {
    if (near[i]) kept.push(line);
    else if (kept.length === 0 || kept.at(-1) !== null) kept.push(null);
  });
  return kept;
}
