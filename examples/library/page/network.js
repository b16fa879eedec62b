// A network that `leanconv compile MODEL -o NAME.wasm` wrote, for browsers and Node.js.

const ARRAYS = { float32: Float32Array, float64: Float64Array, uint8: Uint8Array, int8: Int8Array, int32: Int32Array };

export class Network {
  #function;

  /** Prepare the bytes of a module; `name` is the prefix of its functions. */
  static async from(bytes, name) {
    const { instance } = await WebAssembly.instantiate(bytes);
    return new Network(instance.exports, name);
  }

  constructor(exports, name) {
    if (!(`${name}_json` in exports)) throw new Error(`the module has no ${name}_run`);
    this.exports = exports;
    this.facts = JSON.parse(this.#text(exports[`${name}_json`].value));
    const { function: run, inputs, outputs } = this.facts.runs[0]; // the shape that was given first
    this.#function = exports[run];
    // Behind __heap_base the memory is ours: the arena, all arrays, and a pointer to each of these.
    let end = exports.__heap_base.value;
    const take = (bytes) => {
      const at = Math.ceil(end / 64) * 64;
      end = at + bytes;
      return at;
    };
    this.arena = take(this.facts.block_bytes);
    this.inputs = inputs.map((each) => ({ ...each, at: take(each.bytes) }));
    this.outputs = outputs.map((each) => ({ ...each, at: take(each.bytes) }));
    const values = [...this.inputs, ...this.outputs];
    this.io = take(4 * values.length);
    const pages = Math.ceil((end - exports.memory.buffer.byteLength) / 65536);
    if (pages > 0) exports.memory.grow(pages);
    new Uint32Array(exports.memory.buffer, this.io).set(values.map((each) => each.at));
    this.#check(exports[`${name}_init`](this.arena));
  }

  /** Run on one array for each input, in order; gives a new array for each output. */
  run(...arrays) {
    this.inputs.forEach((each, i) => {
      const place = this.#array(each);
      if (arrays[i].length !== place.length) throw new Error(`${each.name} has ${place.length} elements`);
      place.set(arrays[i]);
    });
    this.#check(this.#function(this.io, this.arena));
    return this.outputs.map((each) => this.#array(each).slice());
  }

  #array({ dtype, at, bytes }) {
    const kind = ARRAYS[dtype];
    return new kind(this.exports.memory.buffer, at, bytes / kind.BYTES_PER_ELEMENT);
  }

  #check(code) {
    if (code !== 0) throw new Error(`the network returns ${code}`);
  }

  #text(at) {
    const memory = new Uint8Array(this.exports.memory.buffer);
    return new TextDecoder().decode(memory.subarray(at, memory.indexOf(0, at)));
  }
}
