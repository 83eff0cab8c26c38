// Resizing as Pillow does it, and so as the model's pictures are: browsers shrink by other rules of their own.

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
// how far a kernel reaches, and its value at a distance
const KERNELS = {
  nearest: [0, () => 1],
  bilinear: [1, (x) => 1 - x],
  bicubic: [2, (x) => (x < 1 ? (1.5 * x - 2.5) * x * x + 1 : ((-0.5 * x + 2.5) * x - 4) * x + 2)],
  lanczos: [3, (x) => sinc(x) * sinc(x / 3)],
};

/** A part of an image, which may reach over its edges, as width x height pixels: bytes of red, green, blue, alpha. */
export function resample(image, part, width, height, interpolation) {
  const across = taps(part.left, part.width, width, image.width, KERNELS[interpolation]);
  const down = taps(part.top, part.height, height, image.height, KERNELS[interpolation]);
  const [top, bottom] = [Math.min(...down.map((tap) => tap.first)), Math.max(...down.map((tap) => tap.last))];
  const narrow = new Float32Array(Math.max(0, bottom - top) * width * 3);
  for (let row = top; row < bottom; row++) {
    across.forEach(({ first, weights }, column) => {
      const to = ((row - top) * width + column) * 3;
      weights.forEach((weight, k) => {
        const from = (row * image.width + first + k) * 4;
        for (let channel = 0; channel < 3; channel++) narrow[to + channel] += weight * image.data[from + channel];
      });
    });
  }
  const result = new Uint8ClampedArray(width * height * 4);
  down.forEach(({ first, weights }, row) => {
    for (let column = 0; column < width; column++) {
      const to = (row * width + column) * 4;
      for (let channel = 0; channel < 3; channel++) {
        result[to + channel] = weights.reduce((sum, weight, k) => sum + weight * narrow[((first + k - top) * width + column) * 3 + channel], 0);
      }
      result[to + 3] = 255;
    }
  });
  return new ImageData(result, width, height);
}

/** For each pixel of the result which pixels it is made of; none where it lies outside. */
function taps(start, length, count, size, [reach, kernel]) {
  const scale = length / count;
  const stretch = Math.max(scale, 1); // a kernel widens when it shrinks a picture
  return Array.from({ length: count }, (_, i) => {
    const centre = start + (i + 0.5) * scale;
    if (centre < 0 || centre >= size) return { first: size, last: 0, weights: [] };
    if (!reach) return { first: Math.floor(centre), last: Math.floor(centre) + 1, weights: [1] };
    const first = Math.max(0, Math.floor(centre - reach * stretch + 0.5));
    const last = Math.min(size, Math.floor(centre + reach * stretch + 0.5));
    const weights = Array.from({ length: last - first }, (_, k) => {
      const away = Math.abs((first + k + 0.5 - centre) / stretch);
      return away < reach ? kernel(away) : 0;
    });
    const sum = weights.reduce((total, weight) => total + weight, 0);
    return { first, last, weights: weights.map((weight) => weight / sum) };
  });
}
