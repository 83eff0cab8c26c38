// From a number to a colour: the anchors of viridis, which can be told apart without seeing colours too.

const ANCHORS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"].map(
  (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
);

/** Red, green and blue for a share of the scale. */
export function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (ANCHORS.length - 1);
  const low = Math.min(Math.floor(at), ANCHORS.length - 2);
  return ANCHORS[low].map((value, channel) => value + (at - low) * (ANCHORS[low + 1][channel] - value));
}

/** The colour of a class in a mask, as the service paints it: the bits of its number, three by three, from the highest down. */
export function classColour(number) {
  const channels = [0, 0, 0];
  for (let shift = 0; shift < 8; shift++) {
    for (let channel = 0; channel < 3; channel++) channels[channel] |= ((number >> (3 * shift + channel)) & 1) << (7 - shift);
  }
  return `rgb(${channels.join(" ")})`;
}

/** Values into a canvas of one pixel each. Over a picture, what is high lets it through and what is low veils it. */
export function paint(canvas, values, rows, columns, { low, high, veil = false }) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  values.forEach((value, place) => {
    const share = high > low ? (value - low) / (high - low) : 0.5;
    image.data.set([...colour(share), veil ? 225 - 115 * share : 255], 4 * place);
  });
  context.putImageData(image, 0, 0);
}
