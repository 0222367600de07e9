// Perfetto's trace processor, as its pages run it (engine_bundle.js and trace_processor.wasm), in Node:
//
//     node trace_processor.js FOLDER TRACE QUERY…
//
// Prints the rows of every query as a line of JSON. The messages are TraceProcessorRpcStream of Perfetto's
// trace_processor.proto.
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
const [folder, trace, ...queries] = process.argv.slice(2);

// ---- Protocol buffers ----------------------------------------------------------------------------------------------

function varint(value) {
    const bytes = [];
    for (; value >= 128; value = Math.floor(value / 128)) { bytes.push(value % 128 + 128); }
    return Buffer.from([...bytes, value]);
}
const number = (field, value) => Buffer.concat([varint(field * 8), varint(value)]);
const message = (field, bytes) => Buffer.concat([varint(field * 8 + 2), varint(bytes.length), bytes]);

// [[field, a BigInt or bytes], …]
function fields(bytes) {
    const found = [];
    let at = 0;
    const next = () => {
        let value = 0n;
        for (let shift = 0n;; shift += 7n) {
            const byte = bytes[at++];
            value |= BigInt(byte & 127) << shift;
            if (byte < 128) { return value; }
        }
    };
    while (at < bytes.length) {
        const key = Number(next()), kind = key & 7;
        if (kind === 0) {
            found.push([key >> 3, next()]);
            continue;
        }
        const n = kind === 1 ? 8 : kind === 5 ? 4 : Number(next());
        found.push([key >> 3, bytes.subarray(at, at += n)]);
    }
    return found;
}
function varints(bytes) {
    const found = [];
    let value = 0n, shift = 0n;
    for (const byte of bytes) {
        value |= BigInt(byte & 127) << shift;
        shift += 7n;
        if (byte >= 128) { continue; }
        found.push(BigInt.asIntN(64, value));
        value = shift = 0n;
    }
    return found;
}

// Rows of a QueryResult: cells by type, each type's values in a list of its own.
function rows(result) {
    const names = [], cells = [];
    for (const [field, value] of result) {
        if (field === 1) { names.push(value.toString()); }
        if (field === 2 && value.length > 0) { throw new Error(value.toString()); }
        if (field !== 3) { continue; }
        const batch = fields(value);
        const of = (f) => Buffer.concat(batch.filter(([key]) => key === f).map(([, bytes]) => bytes));
        const integers = varints(of(2)), texts = of(5).toString().split("\0"), doubles = of(3);
        let double = 0;
        for (const type of varints(of(1))) {
            cells.push([null, null, () => Number(integers.shift()), () => doubles.readDoubleLE(8 * double++),
                        () => texts.shift()][Number(type)]?.() ?? null);
        }
    }
    const found = [];
    for (let i = 0; i < cells.length; i += names.length) { found.push(cells.slice(i, i + names.length)); }
    return found;
}

// ---- The worker ----------------------------------------------------------------------------------------------------

const APPEND_TRACE_DATA = 1, FINALIZE_TRACE_DATA = 2, QUERY_STREAMING = 3;
let sequence = 0, answers = [];

function ask(port, request, ...members) {
    const rpc = Buffer.concat([number(1, sequence++), number(2, request), ...members]);
    answers = [];
    port.onmessage({data: new Uint8Array(message(1, rpc))});
    return answers.flatMap((bytes) => fields(bytes)).flatMap(([, bytes]) => fields(bytes));
}

function work(port) {
    ask(port, APPEND_TRACE_DATA, message(101, fs.readFileSync(trace)));
    ask(port, FINALIZE_TRACE_DATA);
    for (const query of queries) {
        const answer = ask(port, QUERY_STREAMING, message(103, message(1, Buffer.from(query))));
        const fatal = answer.find(([field]) => field === 5);
        if (fatal !== undefined) { throw new Error(fatal[1].toString()); }
        console.log(JSON.stringify(rows(answer.filter(([field]) => field === 203).flatMap(([, b]) => fields(b)))));
    }
    process.exit(0);
}

// What a worker of a browser has.
const port = {onmessage: null, postMessage: (bytes) => answers.push(Buffer.from(bytes))};
globalThis.self = globalThis;
globalThis.location = {href: `file://${folder}/engine_bundle.js`};
globalThis.importScripts = globalThis.WorkerGlobalScope = () => {};
globalThis.XMLHttpRequest = class {
    open(method, name) { this.name = name; }
    send() {
        this.status = 200;
        this.response = new Uint8Array(fs.readFileSync(path.join(folder, path.basename(this.name))));
    }
};
const node = process;
globalThis.process = undefined; // else the bundle sees Node and refuses it
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), "engine_bundle.js");
globalThis.process = node;
globalThis.onmessage({data: port});
setTimeout(() => work(port), 0);
