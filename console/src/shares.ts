/** Divides `total` as evenly as possible, with no share above its limit: `fairShares(5, [1, 9, 9])` is `[1, 2, 2]`. */
export function fairShares(total: number, available: number[]): number[] {
  const shares = available.map(() => 0);
  let left = total;
  const smallestFirst = available.map((_, index) => index).sort((a, b) => available[a]! - available[b]!);
  smallestFirst.forEach((index, done) => {
    shares[index] = Math.min(available[index]!, Math.floor(left / (available.length - done)));
    left -= shares[index]!;
  });
  return shares;
}
