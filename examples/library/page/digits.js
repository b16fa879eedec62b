// From a gray picture to a digit: what the network of ../../digits was trained on.

export const SIDE = 32;

/** Halve a line of pixels, bilinear: weights 1 3 3 1, at the ends of those that have a pixel. */
function halve(from, fromAt, fromStep, to, toAt, toStep) {
  for (let i = 0; i < SIDE; i++) {
    const at = fromAt + 2 * i * fromStep;
    const [before, after] = [i > 0, i < SIDE - 1];
    const total = 6 + before + after;
    let sum = 3 * (from[at] + from[at + fromStep]);
    if (before) sum += from[at - fromStep];
    if (after) sum += from[at + 2 * fromStep];
    to[toAt + i * toStep] = Math.floor((2 * sum + total) / (2 * total));
  }
}

/** The network's input for 64x64 gray pixels, 0 to 255. */
export function prepared(pixels) {
  const narrow = new Uint8Array(2 * SIDE * SIDE);
  const small = new Uint8Array(SIDE * SIDE);
  for (let row = 0; row < 2 * SIDE; row++) halve(pixels, row * 2 * SIDE, 1, narrow, row * SIDE, 1);
  for (let column = 0; column < SIDE; column++) halve(narrow, column, SIDE, small, column, SIDE);
  return Float32Array.from(small, (pixel) => (pixel / 255 - 0.5) / 0.5);
}

/** What a network takes 64x64 gray pixels for: the digit, and its probability. */
export function classify(network, pixels) {
  const [scores] = network.run(prepared(pixels));
  const digit = scores.indexOf(Math.max(...scores));
  const sum = scores.reduce((total, score) => total + Math.exp(score - scores[digit]), 0);
  return { digit, probability: 1 / sum };
}
