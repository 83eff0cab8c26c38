// A visitor's picture: what goes to the service, and what the model sees of it.

import { resample } from "./resample.js";
import { ServiceError } from "./service.js";

const TYPES = { "image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP", "image/gif": "GIF", "image/bmp": "BMP" };
const LARGE = 2_000_000; // bytes: every step sends the picture again
const LONGEST = 1600; // pixels of the copy that is sent instead, fewer where the service takes no more
const SHORTEST = 64;

/** Decode a file in the browser, find the part that the model sees, and decide what is sent. */
export async function openPicture(file, model) {
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    if (!image.naturalWidth) throw new Error("no size");
    const taken = model.limits.formats.includes(TYPES[file.type]);
    const fits = file.size <= LARGE && takes(model, file, image.naturalWidth, image.naturalHeight);
    const copied = !(taken && fits);
    const body = copied ? await copy(image, model, "image/jpeg") : file;
    const crop = seen(image.naturalWidth, image.naturalHeight, model.preprocess);
    const view = draw(image, crop, model);
    return { image, body, copied, crop, view, url: URL.createObjectURL(await toBlob(view, "image/png")) };
  } catch {
    throw new ServiceError("unreadable", "The browser cannot show this file as a picture.");
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** The same picture with some places covered, as a file to send. */
export async function covered(picture, places, rows, columns, model) {
  const [height, width] = model.preprocess.size;
  const { image, crop, view } = picture;
  return copy(image, model, "image/png", (context, scale) => {
    const down = (crop.height / height) * (view.height / rows) * scale;
    const across = (crop.width / width) * (view.width / columns) * scale;
    context.fillStyle = zero(model);
    for (const place of places) {
      const [row, column] = [Math.floor(place / columns), place % columns];
      context.fillRect(crop.left * scale + column * across, crop.top * scale + row * down, across, down);
    }
  });
}

/** The colour that is zero after normalisation. */
export function zero(model) {
  return `rgb(${model.preprocess.mean.map((mean) => Math.round(255 * mean)).join(" ")})`;
}

/** The part of a picture that preprocessing leaves, in its own pixels. */
function seen(width, height, { size, resize, shortest_edge: edge }) {
  if (resize === "squash") return { left: 0, top: 0, width, height };
  const [high, wide] = size;
  const [short, long] = [Math.min(width, height), Math.max(width, height)];
  const small = edge ?? Math.min(high, wide);
  const large = Math.trunc((small * long) / short);
  const across = width / (width <= height ? small : large); // pixels of the picture to one of the model's
  const down = height / (width <= height ? large : small);
  const left = offset(Math.round(width / across), wide);
  const top = offset(Math.round(height / down), high);
  return { left: left * across, top: top * down, width: wide * across, height: high * down };
}

/** Where the crop begins: in the middle, a half rounded to the even side; or what is added before a side too short. */
function offset(have, want) {
  if (have < want) return -Math.floor((want - have) / 2);
  const nearest = Math.round((have - want) / 2);
  return (have - want) % 2 && nearest % 2 ? nearest - 1 : nearest;
}

/** What the model sees, a pixel of the model's a pixel; where patches reach over the edge, nothing is there. */
function draw(image, crop, model) {
  const [height, width] = model.preprocess.size;
  const { canvas: source, scale } = scaled(image, LONGEST);
  const part = Object.fromEntries(Object.entries(crop).map(([side, pixels]) => [side, pixels * scale]));
  const pixels = source.getContext("2d").getImageData(0, 0, source.width, source.height);
  const canvas = document.createElement("canvas");
  canvas.height = model.patch ? model.patch[0] * model.grid[0] : height;
  canvas.width = model.patch ? model.patch[1] * model.grid[1] : width;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.putImageData(resample(pixels, part, width, height, model.preprocess.interpolation), 0, 0);
  return canvas;
}

/** A copy of the whole picture, painted on, that is small enough for the service. */
async function copy(image, model, type, paintOn = () => {}) {
  for (let longest = LONGEST; ; longest /= 2) {
    const { canvas, scale } = scaled(image, longest);
    paintOn(canvas.getContext("2d"), scale);
    const blob = await toBlob(canvas, type);
    if (takes(model, blob, canvas.width, canvas.height) || longest <= SHORTEST) return blob;
  }
}

function takes({ limits }, blob, width, height) {
  return blob.size <= limits.body_bytes && width * height <= limits.pixels;
}

function scaled(image, longest) {
  const scale = Math.min(1, longest / Math.max(image.naturalWidth, image.naturalHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(image.naturalHeight * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // behind what is transparent, as the service does
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return { canvas, scale };
}

function toBlob(canvas, type) {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the canvas gives no file"))), type, 0.93);
  });
}
