// Answers questions for the twin tests: JSON on standard input, JSON on standard output.
// {"plans": [text...]} -> the path of each plan's first fault, or null; {"tokenizer", "template", "plan", "texts",
// "chats", "ids"} -> what text.js makes of them.
import { readFileSync } from "node:fs";

import { loadPlan } from "../../web/executor/plan.js";
import { ByteMap } from "../../web/worker/byte_map.js";
import { Matchers, walk } from "../../web/worker/grammar.js";
import { BundleText } from "../../web/worker/text.js";

function verdict(text) {
  try {
    loadPlan(text);
    return null;
  } catch (error) {
    return `${error.type} ${error.where}`;
  }
}

function attempt(work) {
  try {
    return work();
  } catch (error) {
    return error.type ?? String(error);
  }
}

async function textTwin({ tokenizer, template, plan, texts, chats, ids, bad_words }) {
  const text = await BundleText.load(tokenizer, template, plan);
  return {
    texts: texts.map((raw) => attempt(() => text.promptIds({ prompt: raw, raw: true }))),
    chats: chats.map(({ prompt, system }) => attempt(() => text.promptIds({ prompt, system }))),
    decoded: ids.map((list) => {
      const stream = text.stream();
      return [...list.map((id) => stream.push(id)), stream.finish()];
    }),
    table: text.map.table(),
    banned: bad_words.map((words) => attempt(() => text.bannedIds(words))),
  };
}

/** Walks of grammars, one after another; the engine takes a worker's address for granted. */
async function grammarTwin({ grammars, tokenizer, hidden }) {
  globalThis.location = { href: import.meta.url };
  const matchers = new Matchers(new ByteMap(tokenizer, hidden));
  const answers = [];
  for (const { constrain, walks } of grammars) {
    const matcher = await matchers.open(constrain);
    const found = [];
    for (const asked of walks) {
      const { walked, rows } = await walk(matcher, asked);
      found.push({ ...walked, rows: rows.map((row) => [...row]) });
    }
    answers.push(found);
    matcher.close();
  }
  return answers;
}

const question = JSON.parse(readFileSync(0, "utf8"));
const other = () => (question.grammars ? grammarTwin(question) : textTwin(question));
const answer = question.plans ? question.plans.map(verdict) : await other();
process.stdout.write(JSON.stringify(answer));
