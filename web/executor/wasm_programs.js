// A plan's programs as lists of tickets: plain data that travels to helper threads, then bound to an instance's functions.
//
// Does not know: who runs them. Invariant: the tickets of a program are the same for every thread, in the same order; a
// step's parts are as many as there are threads, or fewer where the plan says that its work cannot be cut so far.

import { ArtifactError } from "./faults.js";

/** @typedef {import("./types.js").PlanTarget} PlanTarget */
/** @typedef {import("./wasm_team.js").Ticket} Ticket */
/** @typedef {{entries: string[], lists: [number, number[], number][][]}} Programs lists: (entry, arguments, after) */

/**
 * @param {PlanTarget} target @param {number[]} addresses of the buffers @param {number} threads
 * @returns {Programs} one list for each program of the plan, in its order
 */
export function listPrograms(target, addresses, threads) {
  const pointers = target.tensors.map((tensor) => addresses[tensor.buffer] + tensor.offset);
  const lists = target.programs.map(({ dispatches }) => {
    /** @type {[number, number[], number][]} */
    const tickets = [];
    for (const { kernel, tensors, grid } of dispatches) {
      const after = tickets.length;
      const parts = Math.min(threads, grid[0]);
      for (let part = 0; part < parts; part++) {
        tickets.push([kernel, [...tensors.map((index) => pointers[index]), part, parts], after]);
      }
    }
    return tickets;
  });
  return { entries: target.kernels.map(({ entry }) => entry), lists };
}

/** @param {Programs} programs @param {WebAssembly.Exports} exports @returns {Ticket[][]} */
export function bindPrograms({ entries, lists }, exports) {
  const functions = entries.map((entry) => {
    const found = exports[entry];
    if (typeof found === "function") return found;
    throw new ArtifactError(`the module has no function "${entry}"`, "kernels.wasm", "Build the bundle again");
  });
  return lists.map((list) => list.map(([entry, args, after]) => ({ kernel: functions[entry], args, after })));
}
