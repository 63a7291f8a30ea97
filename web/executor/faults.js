// The four families of error, the same four as specdec_runtime.faults in Python.
//
// RequestError   the user asked for something that cannot be done
// ArtifactError  the bundle (manifest, plan, kernels, weights, tokenizer) is wrong
// DeviceFault    the machine, browser or GPU failed or lacks something
// ContractError  a bug: one part of specdec broke its contract with another
//
// Does not know: who shows the error. Invariant: everything thrown to a caller outside web/ is one of these.

/** @typedef {{type: string, message: string, where: string, action: string}} ErrorJson */

export class SpecdecError extends Error {
  /**
   * @param {string} message what is wrong
   * @param {string} [where] the file, field or part at fault
   * @param {string} [action] what the reader can do about it
   */
  constructor(message, where = "", action = "") {
    super(message);
    this.type = "SpecdecError";
    this.where = where;
    this.action = action;
  }

  /** @returns {string} "message (where). action" */
  toString() {
    const where = this.where ? ` (${this.where})` : "";
    return `${this.message}${where}${this.action ? `. ${this.action}` : ""}`;
  }

  /** @returns {ErrorJson} */
  toJson() {
    return { type: this.type, message: this.message, where: this.where, action: this.action };
  }
}

export class RequestError extends SpecdecError {
  type = "RequestError";
}
export class ArtifactError extends SpecdecError {
  type = "ArtifactError";
}
export class DeviceFault extends SpecdecError {
  type = "DeviceFault";
}
export class ContractError extends SpecdecError {
  type = "ContractError";
}

const FAMILIES = { RequestError, ArtifactError, DeviceFault, ContractError };

/**
 * The error a JSON record stands for; an unknown family is itself a broken contract.
 * @param {Partial<ErrorJson>} json
 * @returns {SpecdecError}
 */
export function errorFromJson(json) {
  const family = FAMILIES[/** @type {keyof typeof FAMILIES} */ (json.type)] ?? ContractError;
  return new family(String(json.message ?? "unknown error"), json.where ?? "", json.action ?? "");
}

/**
 * Any thrown value as one of the four families: what nobody foresaw is a ContractError.
 * @param {unknown} thrown
 * @param {string} where
 * @returns {SpecdecError}
 */
export function asSpecdecError(thrown, where) {
  if (thrown instanceof SpecdecError) return thrown;
  const text = thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : String(thrown);
  return new ContractError(text, where, "This is a bug in specdec: please report it");
}

/**
 * A promise that cannot hang: rejects with the fault when nothing came within the time.
 * @template T
 * @param {Promise<T>} promise
 * @param {number} limitMs
 * @param {() => SpecdecError} fault
 * @returns {Promise<T>}
 */
export function withTimeout(promise, limitMs, fault) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(fault()), limitMs);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}
