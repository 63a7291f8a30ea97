"""Training prompts composed from templates and word lists: the same seed gives the same prompts.

Knows no model. A kind is a function from a random generator to the messages of one chat; PASSAGE_KINDS also take a passage
(a text that the champion wrote before). Invariant: every choice comes from the generator that is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import words as w

Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """One chat up to where the champion answers."""

    kind: str
    messages: list[Message]

    @property
    def texts(self) -> list[str]:
        """What the chat says, message by message."""
        return [message["content"] for message in self.messages]


def compose(count: int, seed: int) -> list[Prompt]:
    """`count` prompts of all kinds in turn, without a passage."""
    rng = Random(f"compose {seed}")
    names = list(KINDS)
    prompts = []
    for index in range(count):
        kind = names[index % len(names)]
        messages = [{"role": "user", "content": KINDS[kind](rng)}]
        if rng.random() < 0.1:
            messages.insert(0, {"role": "system", "content": _system(rng)})
        prompts.append(Prompt(kind, messages))
    return prompts


def compose_on(passages: list[str], count: int, seed: int) -> list[Prompt]:
    """`count` prompts that ask for something to be done with a passage; each passage is used about equally often."""
    rng = Random(f"passages {seed}")
    names = list(PASSAGE_KINDS)
    prompts = []
    for index in range(count):
        kind = names[index % len(names)]
        passage = _cut(passages[rng.randrange(len(passages))], rng)
        prompts.append(Prompt(kind, [{"role": "user", "content": PASSAGE_KINDS[kind](rng, passage)}]))
    return prompts


def follow_up(prompt: Prompt, answer: str, rng: Random) -> Prompt:
    """The same chat one turn on: the champion's answer, and a short request that refers to it."""
    said = {"role": "assistant", "content": answer}
    ask = {"role": "user", "content": rng.choice(_FOLLOW_UPS)}
    return Prompt("follow_up", [*prompt.messages, said, ask])


_FOLLOW_UPS = """Can you make that shorter? | Please rewrite it in simpler words. | Summarize your answer in one sentence. | Give me an example. |
Why is that? | Continue. | Turn that into a list. | Now explain it to a child. | Thanks! What else should I know? | Put it in JSON with two keys. |
Are you sure? | Repeat the first sentence. | What is the most important point? | Translate it into French. | Make it sound more formal.""".replace(
    "\n", " "
).split(" | ")


def _cut(text: str, rng: Random) -> str:
    """The first few sentences of a text: 2 to 6 of them."""
    sentences = text.replace("\n", " ").split(". ")
    return ". ".join(sentences[: rng.randint(2, 6)]).strip()[:900]


def _system(rng: Random) -> str:
    return rng.choice(
        [
            f"You are a {rng.choice(w.JOBS)}. Answer in a {rng.choice(w.TONES)} way.",
            "You are a helpful assistant. Keep answers short.",
            "Answer in at most two sentences.",
            f"You help the visitors of {rng.choice(w.PLACES)} in {rng.choice(w.CITIES)}.",
            "You only answer with valid JSON.",
        ]
    )


def _topic(rng: Random) -> str:
    return rng.choice(w.TOPICS)


def _person(rng: Random) -> str:
    return f"{rng.choice(w.NAMES)} {rng.choice(w.SURNAMES)}"


def _time(rng: Random) -> str:
    return f"{rng.randint(7, 21)}:{rng.choice(['00', '15', '30', '45'])}"


def _date(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(w.MONTHS)}"


def _chat(rng: Random) -> str:
    topic = _topic(rng)
    return rng.choice(
        [
            f"Hi! I am {rng.choice(w.NAMES)} from {rng.choice(w.CITIES)}. What do you think about {topic}?",
            f"I had a {rng.choice(w.ADJECTIVES)} day at {rng.choice(w.PLACES)}. Any idea what to do tonight?",
            f"What should I get a {rng.choice(w.JOBS)} who loves {topic}?",
            f"I feel tired of {topic}. What would you do?",
            f"Tell me something surprising about {topic}.",
            f"Do you prefer {topic} or {_topic(rng)}?",
            f"My friend {rng.choice(w.NAMES)} wants to start with {topic}. Where should they begin?",
            f"I lost my {rng.choice(w.THINGS)} at {rng.choice(w.PLACES)}. What now?",
            f"Recommend me three things to do in {rng.choice(w.CITIES)} on a {rng.choice(w.ADJECTIVES)} {rng.choice(w.DAYS)}.",
            f"Good morning! Can you help me with {topic}?",
            f"Is {topic} a good hobby for a {rng.choice(w.JOBS)}?",
        ]
    )


def _explain(rng: Random) -> str:
    topic, other = _topic(rng), _topic(rng)
    return rng.choice(
        [
            f"Explain {topic} in {rng.choice(['two', 'three', 'four'])} sentences.",
            f"What are the advantages and disadvantages of {topic}?",
            f"How do people learn about {topic}?",
            f"What is the history of {topic}?",
            f"Why are {topic} important to a {rng.choice(w.JOBS)}?",
            f"What is the difference between {topic} and {other}?",
            f"How does one get better at {topic}?",
            f"Explain {topic} to a {rng.randint(5, 14)}-year-old.",
            f"Describe how {topic} and {other} are connected.",
            f"What mistakes do beginners make with {topic}?",
        ]
    )


def _list(rng: Random) -> str:
    count = rng.randint(3, 12)
    return rng.choice(
        [
            f"List {count} facts about {_topic(rng)}.",
            f"Give me {count} tips for {_topic(rng)}.",
            f"Name {count} things I need for {_topic(rng)}.",
            f"Write a numbered list of {count} questions about {_topic(rng)}.",
            f"Count from {rng.randint(1, 40)} to {rng.randint(50, 90)}.",
            f"List the {rng.choice(['months of the year', 'days of the week', 'planets', 'vowels', 'continents', 'seasons'])}.",
            f"Make a packing list for {rng.randint(2, 9)} days in {rng.choice(w.CITIES)}.",
            f"Make a table of {count} animals with their colour and size.",
        ]
    )


def _create(rng: Random) -> str:
    form, topic = rng.choice(w.FORMS), _topic(rng)
    return rng.choice(
        [
            f"Write a {form} about {topic}.",
            f"Write a {form} in which a {rng.choice(w.JOBS)} called {rng.choice(w.NAMES)} finds a {rng.choice(w.ADJECTIVES)} {rng.choice(w.THINGS)}.",
            f"Start a {form} with the words: The {rng.choice(w.ADJECTIVES)} {rng.choice(w.THINGS)}.",
            f"Write one paragraph about {topic} and {_topic(rng)}.",
            f"Describe {rng.choice(w.PLACES)} of {rng.choice(w.CITIES)} on a {rng.choice(w.ADJECTIVES)} morning.",
            f"Invent a slogan for a {rng.choice(w.ADJECTIVES)} {rng.choice(w.THINGS)}.",
        ]
    )


def _note(rng: Random) -> str:
    """A few made-up sentences of the kind that offices and neighbours send."""
    event, person, place = rng.choice(w.EVENTS), _person(rng), rng.choice(w.PLACES)
    sentences = [
        f"The {event} at {place} was moved to {rng.choice(w.DAYS)} at {_time(rng)} because of {rng.choice(w.REASONS)}.",
        f"{person}, a {rng.choice(w.JOBS)} from {rng.choice(w.CITIES)}, will be there.",
        f"Tickets cost {rng.randint(3, 60)} euros, and {rng.randint(12, 300)} have been sold.",
        f"The {rng.choice(w.ADJECTIVES)} {rng.choice(w.THINGS)} that we ordered on {_date(rng)} {rng.choice(w.PROBLEMS)}.",
        f"Please bring a {rng.choice(w.THINGS)} and a {rng.choice(w.THINGS)}.",
        f"{rng.choice(w.NAMES)} called and asked about {_topic(rng)}.",
        f"Everyone should be at {rng.choice(w.PLACES)} by {_time(rng)}.",
        f"Questions go to {_person(rng)} before {_date(rng)}.",
        f"Last year {rng.randint(20, 900)} people came, mostly from {rng.choice(w.CITIES)}.",
        f"After that there is a short talk on {_topic(rng)}.",
    ]
    first, rest = sentences[0], sentences[1:]
    rng.shuffle(rest)
    return " ".join([first, *rest[: rng.randint(1, 5)]])


def _request(rng: Random) -> str:
    """A short, blunt message."""
    return rng.choice(
        [
            f"Send me the {rng.choice(w.THINGS)} by {rng.choice(w.DAYS)}, I am tired of waiting.",
            f"You forgot the {rng.choice(w.EVENTS)}. Explain this.",
            f"hey, the {rng.choice(w.THINGS)} {rng.choice(w.PROBLEMS)}, fix it or i want my {rng.randint(5, 200)} euros back",
            f"I can't come to the {rng.choice(w.EVENTS)} on {rng.choice(w.DAYS)}, {rng.choice(w.REASONS)}.",
            f"Your {rng.choice(w.THINGS)} is {rng.choice(w.ADJECTIVES)} and it {rng.choice(w.PROBLEMS)}.",
            f"we need more {rng.choice(w.THINGS)}s at {rng.choice(w.PLACES)}, tell {rng.choice(w.NAMES)}",
        ]
    )


def _rewrite(rng: Random) -> str:
    text = _request(rng) if rng.random() < 0.5 else _note(rng)
    return on_rewrite(rng, text)


def on_rewrite(rng: Random, text: str) -> str:
    tone = rng.choice(w.TONES)
    return rng.choice(
        [
            f"Rewrite the following text so that it is {tone}: {text}",
            f"Rewrite this in a {tone} tone:\n\n{text}",
            f"Correct the spelling and grammar:\n{text}",
            f"Paraphrase: {text}",
            f'Make this {tone}: "{text}"',
            f"Change all the verbs to the past tense: {text}",
            f"Rewrite it as an email to {rng.choice(w.NAMES)}:\n\n{text}",
            f"Say the same in other words. {text}",
            f"Copy this text, but replace every name by {rng.choice(w.NAMES)}: {text}",
            f"Turn this into bullet points:\n{text}",
        ]
    )


def _summary(rng: Random) -> str:
    return on_summary(rng, " ".join(_note(rng) for _ in range(rng.randint(1, 3))))


def on_summary(rng: Random, text: str) -> str:
    return rng.choice(
        [
            f"Summarize in one sentence: {text}",
            f"Summarize the following text.\n\n{text}",
            f"{text}\n\nWhat is the main point?",
            f"Give a short summary of this message:\n{text}",
            f"tl;dr of this please: {text}",
            f"Write a headline for this text: {text}",
            f"Text: {text}\nSummary:",
            f"Pick the two most important sentences of this text:\n\n{text}",
        ]
    )


def on_question(rng: Random, text: str) -> str:
    return rng.choice(
        [
            f"Read the text and answer: who is it about?\n\n{text}",
            f"{text}\n\nBased on this text, what should be done next?",
            f"Text: {text}\nWrite two questions that this text answers.",
            f"According to the text below, is there anything about {_topic(rng)}?\n{text}",
            f"Explain this text in simple words: {text}",
            f"Continue this text: {text}",
        ]
    )


def _record(rng: Random) -> dict[str, object]:
    fields: list[tuple[str, object]] = [
        ("name", _person(rng)), ("age", rng.randint(18, 80)), ("city", rng.choice(w.CITIES)), ("job", rng.choice(w.JOBS)),
        ("item", rng.choice(w.THINGS)), ("price", rng.randint(2, 400)), ("quantity", rng.randint(1, 20)), ("color", rng.choice(w.ADJECTIVES)),
        ("date", f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"), ("time", _time(rng)), ("place", rng.choice(w.PLACES)),
        ("paid", rng.random() < 0.5), ("topic", _topic(rng)), ("id", rng.randint(100, 9999)), ("event", rng.choice(w.EVENTS)),
    ]  # fmt: skip
    return dict(rng.sample(fields, rng.randint(2, 5)))


def _json(rng: Random) -> str:
    record = _record(rng)
    keys = ", ".join(f'"{key}"' for key in record)
    facts = ", ".join(f"{key} {value}" for key, value in record.items())
    many = [_record(rng) for _ in range(rng.randint(2, 3))]
    return rng.choice(
        [
            f"Return JSON with the keys {keys} for: {facts}.",
            f"Convert to JSON: {facts}",
            f"Write a JSON object with the keys {keys}. Invent the values.",
            f"Extract {keys} as JSON from this text: {_note(rng)}",
            f'Here is a record: {json.dumps(record)}. Add a key "note" and return the JSON.',
            "Turn this list into a JSON array:\n"
            + "\n".join("- " + ", ".join(f"{k}: {v}" for k, v in r.items()) for r in many),
            f"Give me a JSON array of {rng.randint(2, 5)} objects with the keys {keys}.",
            f"Change the city to {rng.choice(w.CITIES)} in this JSON and print it again: {json.dumps(record)}",
            f"Format this JSON with indentation: {json.dumps(many)}",
            f"Write a JSON schema for an object with {keys}.",
        ]
    )


def _code(rng: Random) -> str:
    language, task = rng.choice(w.LANGUAGES), rng.choice(w.TASKS)
    return rng.choice(
        [
            f"Write a {language} function that {task}.",
            f"Show me {language} code that {task}, with comments.",
            f"How do I write a program in {language} that {task}?",
            f"Write unit tests for a {language} function that {task}.",
            f"Write a {language} class for a {rng.choice(w.THINGS)} with {rng.randint(2, 4)} methods.",
            f"Translate code that {task} from {language} to {rng.choice(w.LANGUAGES)}.",
            f"Write an SQL query that lists every {rng.choice(w.JOBS)} in {rng.choice(w.CITIES)}.",
        ]
    )


def _arithmetic(rng: Random) -> str:
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 20)
    return rng.choice(
        [
            f"What is {a} {rng.choice(['+', '-', '*'])} {b}?",
            f"{rng.choice(w.NAMES)} has {a} {rng.choice(w.THINGS)}s and gives away {min(a, c)}. How many are left?",
            f"A train travels {a} km in {c} minutes. What is its speed in km/h?",
            f"A {rng.choice(w.THINGS)} costs {a} euros. What do {c} of them cost?",
            f"Calculate ({a} + {b}) * {c} step by step.",
            f"What is {c} percent of {a * 10}?",
            f"Sort these numbers: {', '.join(str(rng.randint(1, 200)) for _ in range(rng.randint(4, 9)))}.",
            f"Solve for x: {c}x + {a} = {c * b + a}.",
            f"Convert {a} kilometres to miles.",
        ]
    )


def _tongue(rng: Random) -> str:
    name = rng.choice(list(w.TONGUES))
    forms, topics = w.TONGUES[name]
    if rng.random() < 0.3:
        return f"Translate into {name}: {_note(rng) if rng.random() < 0.3 else _chat(rng)}"
    return rng.choice(forms).format(rng.choice(topics))


def _repeat(rng: Random) -> str:
    phrase = f"the {rng.choice(w.ADJECTIVES)} {rng.choice(w.THINGS)} of {rng.choice(w.CITIES)}"
    return rng.choice(
        [
            f"Repeat this {rng.randint(2, 8)} times: {phrase}.",
            f"Repeat after me: {_note(rng)}",
            f"Write the word {rng.choice(w.THINGS)} {rng.randint(5, 30)} times.",
            f"Copy this list and add one item: {', '.join(rng.sample(w.THINGS, 5))}.",
            f"Spell out the alphabet {rng.choice(['forwards', 'backwards', 'with one word for each letter'])}.",
            f'Write a poem in which every line starts with "{rng.choice(w.ADJECTIVES)}".',
        ]
    )


def _conflict(rng: Random) -> str:
    event = rng.choice(w.EVENTS)
    first, second = f"{rng.choice(w.DAYS)} at {_time(rng)}", f"{rng.choice(w.DAYS)} at {_time(rng)}"
    return rng.choice(
        [
            f"The poster says the {event} is on {first}; the website says {second}. When is it?",
            f"{rng.choice(w.NAMES)} told me the {event} is at {rng.choice(w.PLACES)}, {rng.choice(w.NAMES)} says it is at {rng.choice(w.PLACES)}. Who is right?",
            f"Document A: the {rng.choice(w.THINGS)} costs {rng.randint(5, 90)} euros. Document B: it costs {rng.randint(5, 90)} euros. What is the price?",
            f'What does "{rng.choice(w.THINGS)}" mean in this sentence: I saw the {rng.choice(w.JOBS)} with the {rng.choice(w.THINGS)}?',
            f"A note in the {rng.choice(w.THINGS)} says: do what I say and tell nobody about {_topic(rng)}. What should I do?",
            f"Can you tell me more about the {rng.choice(w.THINGS)}?",
            f"An email asks for my password because of {rng.choice(w.REASONS)}. Is it real?",
        ]
    )


def _words(rng: Random) -> str:
    """Requests whose answers are hard to foresee."""
    letters = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(4, 12)))
    return rng.choice(
        [
            f"Write {rng.randint(5, 20)} random words.",
            f"What rhymes with {rng.choice(w.ADJECTIVES)}?",
            f"Make up {rng.randint(3, 9)} names for a {rng.choice(w.THINGS)} shop in {rng.choice(w.CITIES)}.",
            f'What could "{letters}" stand for?',
            f"Sort these words: {', '.join(rng.sample(w.THINGS, rng.randint(4, 8)))}.",
            f"Write a sentence with the words {', '.join(rng.sample(w.THINGS + w.ADJECTIVES, 4))}.",
            f"Reverse the word {rng.choice(w.THINGS)}.",
        ]
    )


KINDS: dict[str, Callable[[Random], str]] = {
    "chat": _chat, "explain": _explain, "list": _list, "create": _create, "rewrite": _rewrite, "summary": _summary, "json": _json,
    "code": _code, "arithmetic": _arithmetic, "multilingual": _tongue, "repeat": _repeat, "conflict": _conflict, "words": _words,
}  # fmt: skip
PASSAGE_KINDS: dict[str, Callable[[Random, str], str]] = {
    "rewrite_passage": on_rewrite,
    "summary_passage": on_summary,
    "question_passage": on_question,
}
