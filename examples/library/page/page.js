// Classify what is drawn, and the pictures of ../../digits.
import { Network } from "./network.js";
import { SIDE, classify } from "./digits.js";

const PICTURES = [..."0123456789"].flatMap((digit) => [`digit_${digit}_a.png`, `digit_${digit}_b.png`]);
const drawing = document.querySelector("canvas");
const answer = document.querySelector("#answer");
const pen = drawing.getContext("2d", { willReadFrequently: true });

/** 64x64 gray pixels of a picture or a canvas. */
function grayPixels(source) {
  const canvas = new OffscreenCanvas(2 * SIDE, 2 * SIDE);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(source, 0, 0, 2 * SIDE, 2 * SIDE);
  const { data } = context.getImageData(0, 0, 2 * SIDE, 2 * SIDE);
  return Uint8Array.from({ length: data.length / 4 }, (_, i) => data[4 * i]); // red, green and blue are equal
}

function clear() {
  pen.fillStyle = "black";
  pen.fillRect(0, 0, drawing.width, drawing.height);
  answer.textContent = "draw a digit";
}

function shown({ digit, probability }) {
  return `${digit} (${(100 * probability).toFixed(1)} %)`;
}

async function start() {
  const network = await Network.from(await (await fetch("digits.wasm")).arrayBuffer(), "digits");
  let last = null;
  const draw = (event) => {
    if (!event.buttons) {
      last = null;
      return;
    }
    const scale = drawing.width / drawing.clientWidth;
    const here = [event.offsetX * scale, event.offsetY * scale];
    pen.beginPath();
    pen.moveTo(...(last ?? here));
    pen.lineTo(...here);
    pen.stroke();
    last = here;
    answer.textContent = shown(classify(network, grayPixels(drawing)));
  };
  drawing.addEventListener("pointerdown", draw);
  drawing.addEventListener("pointermove", draw);
  drawing.addEventListener("pointerleave", () => (last = null));
  document.querySelector("button").addEventListener("click", clear);
  clear();
  await Promise.all(
    PICTURES.map(async (name) => {
      const figure = document.createElement("figure");
      const picture = new Image(2 * SIDE, 2 * SIDE);
      const caption = document.createElement("figcaption");
      picture.src = `../../digits/images/${name}`;
      figure.append(picture, caption);
      document.querySelector("#pictures").append(figure);
      await picture.decode();
      caption.textContent = shown(classify(network, grayPixels(picture)));
    }),
  );
}

Object.assign(pen, { strokeStyle: "white", lineCap: "round", lineJoin: "round", lineWidth: drawing.width / 9 });
start().catch((error) => (answer.textContent = `${error}`));
