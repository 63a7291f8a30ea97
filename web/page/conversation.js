// The chat so far: its messages, each with its turn on the screen; what editing and regenerating leave of it.
//
// Does not know: the client. Invariant: the messages are those of the turns on the screen, in their order.

/** @typedef {{role: string, content: string}} Message */

export class Conversation {
  constructor() {
    /** @type {{message: Message, turn: HTMLElement}[]} */
    this.entries = [];
  }

  /** @returns {Message[]} */
  get messages() {
    return this.entries.map(({ message }) => message);
  }

  /** @param {string} role @param {string} content @param {HTMLElement} turn */
  add(role, content, turn) {
    this.entries.push({ message: { role, content }, turn });
  }

  /** @param {HTMLElement} turn @returns {number} its place, -1: it is none of the chat's */
  place(turn) {
    return this.entries.findIndex((entry) => entry.turn === turn);
  }

  /** Keeps the first `length` turns. @param {number} length */
  cut(length) {
    for (const { turn } of this.entries.splice(length)) turn.remove();
  }
}
