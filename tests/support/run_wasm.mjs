// node run_wasm.mjs JOB: run a function of a compiled network some times.
//
// JOB is a JSON file: module, name (the prefix), run (the function), weights (files, none or one),
// inputs (files), outputs (a file and its bytes each), times. What the functions return is printed as
// JSON.
import fs from "node:fs";

const job = JSON.parse(fs.readFileSync(process.argv[2], "utf8"));
const module_ = new WebAssembly.Module(fs.readFileSync(job.module));
const { exports } = new WebAssembly.Instance(module_);
const call = (name, ...values) => exports[`${job.name}_${name}`](...values);

let end = exports.__heap_base.value;
const take = (bytes) => {
  const place = Math.ceil(end / 64) * 64;
  end = place + bytes;
  return place;
};
const given = [...job.inputs, ...job.weights].map((file) => fs.readFileSync(file));
const places = given.map((body) => take(body.length));
const inputs = places.slice(0, job.inputs.length);
const weights = places.slice(job.inputs.length);
const outputs = job.outputs.map(([, bytes]) => take(bytes));
const io = take(4 * (inputs.length + outputs.length));
const arena = take(call("arena_bytes"));
const missing = Math.ceil(end / 65536) - exports.memory.buffer.byteLength / 65536;
if (missing > 0) exports.memory.grow(missing);
const memory = new Uint8Array(exports.memory.buffer);
memory.fill(255, exports.__heap_base.value, end);
places.forEach((place, i) => memory.set(given[i], place));
new Uint32Array(exports.memory.buffer, io).set([...inputs, ...outputs]);

const init = (place) => call("init", place, ...weights);
const codes = [init(0), init(arena + 8), call("check_cpu"), init(arena)];
let began = performance.now();
for (let i = 0; i < job.times; i++) {
  codes.push(exports[job.run](io, arena));
  if (i === 0) began = performance.now();
}
const ms = (performance.now() - began) / Math.max(1, job.times - 1);
codes.push(call("close", arena));
job.outputs.forEach(([file, bytes], i) => fs.writeFileSync(file, memory.slice(outputs[i], outputs[i] + bytes)));
const text = exports[`${job.name}_json`].value;
const about = Buffer.from(memory.subarray(text, memory.indexOf(0, text))).toString();
console.log(JSON.stringify({ codes, ms, about, imports: WebAssembly.Module.imports(module_) }));
