"""Conversations on one scripted device as a state machine: requests, edits, drops, cancels, faults, other work in between.

After every step: the answer is the plain one, only what is new was prefilled, every kept KV cell is that of its session's
id, the host knows no more of the device than is there, and the pages are accounted for. tests/meta runs it on mutants.
"""

from exactness_suite import COSTS, VOCAB
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from plan_factory import load_made
from simulate import Run, generate, mostly, plain_ids, seeded
from specdec_runtime import drive
from specdec_runtime.backends.scripted import POISON, Script, ScriptedBackend
from specdec_runtime.decode.pages import UNKNOWN
from specdec_runtime.decode.programs import Programs
from specdec_runtime.decode.score import score
from specdec_runtime.decode.session import Memory
from specdec_runtime.faults import DeviceFault
from specdec_runtime.schedule.policy import Policy
from specdec_runtime.schedule.registry import make_schedule

CONTEXT = 48
NAMES = st.sampled_from(["a", "b", "c"])
IDS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)
POLICIES = [
    Programs(),
    Programs(prefill=False),
    Programs("widest"),
    Programs("plain"),
    Programs("plain", False),
]


def common(first, second):
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


class Conversations(RuleBasedStateMachine):
    """Up to three sessions that often begin alike, in a context that they cannot all fill."""

    @initialize(page_size=st.sampled_from([1, 2, 4, 8]), width=st.sampled_from([3, 4, 8]), data=st.data())
    def load(self, page_size, width, data):
        sizes = {"max_context": CONTEXT, "page_size": page_size, "prefill_width": width}
        draft = {**sizes, "page_size": data.draw(st.sampled_from([2, 4])), "widths": [1, 2]}
        self.plan = load_made(vocab_size=VOCAB, draft=draft, **sizes)
        self.programs = data.draw(st.sampled_from(POLICIES))
        self.memory = Memory(self.plan, self.programs)
        self.target = seeded(data.draw(st.integers(0, 5)), VOCAB, data.draw(st.sampled_from([0, 2])))
        self.draft = mostly(self.target, seeded(77, VOCAB), data.draw(st.sampled_from([0, 70, 100])))
        self.script = Script()
        self.backend = ScriptedBackend(self.plan, self.target, self.draft, self.script)
        self.history = {}  # name -> ids of the last request that came to its end
        self.num_reused = 0

    def ask(self, data, prompt, session, max_tokens, cancel_at=None):
        drafter = data.draw(st.sampled_from(["off", "ngram", "model", "chain"]))
        schedule = data.draw(st.sampled_from(["fixed", "fixed", "break_even", "confidence"]))
        if schedule == "confidence" and drafter != "model":
            schedule = "fixed"
        k = data.draw(st.sampled_from([0, 1, 3, 7]))
        return generate(
            self.plan,
            self.target,
            prompt,
            max_tokens,
            drafter,
            k,
            eos_ids=data.draw(st.sampled_from([(), (3,)])),
            backend=self.backend,
            cancel_at=cancel_at,
            steps=data.draw(st.sampled_from([1, 4])),
            programs=self.programs,
            rounds=data.draw(st.sampled_from([1, 3])),
            schedule=make_schedule(schedule, COSTS["gpu"], Policy(), k),
            memory=self.memory,
            session=session,
        )

    def prompt(self, data):
        """A session's history (its own or another's), cut anywhere or not at all, and something new."""
        known = list(self.history.values())
        base = data.draw(st.sampled_from(known)) if known else []
        keep = data.draw(st.one_of(st.just(len(base)), st.integers(0, len(base))))
        return (base[:keep] + data.draw(st.one_of(st.just([]), IDS)) or [1])[: CONTEXT - 1]

    def held(self, name, role="target"):
        session = self.memory._sessions.get(name)
        return (list(session.ids), session.tables[role].length) if session else ([], 0)

    @rule(
        name=NAMES,
        data=st.data(),
        max_tokens=st.integers(0, 14),
        bad=st.integers(0, 60),
        call=st.integers(0, 9),
    )
    def request(self, name, data, max_tokens, bad, call):
        """Sometimes a row of a model is not finite."""
        prompt, first = self.prompt(data), len(self.backend.submits)
        least = self.least_cached(name, prompt)
        self.script.not_finite_calls = {(first + bad, call)} if bad < 9 else set()
        run = self.ask(data, prompt, name, max_tokens)
        expected = plain_ids(self.target, prompt, max_tokens, CONTEXT)
        assert run.ids == expected[: len(run.ids)], "the plain answer"
        assert run.result["finish_reason"] == "stop" or run.ids == expected
        self.check_prefill(run, first, prompt, least)
        self.history[name] = prompt + run.ids

    @precondition(lambda self: bool(getattr(self, "history", None)))
    @rule(data=st.data(), other=NAMES)
    def branch(self, data, other):
        """Another session goes on from one's history; then that one is edited, maybe in what both hold."""
        name = data.draw(st.sampled_from(sorted(self.history)))
        self.script.not_finite_calls = set()
        history = self.history[name][: CONTEXT - 9]
        for session, prompt in (
            (other, [*history, 5]),
            (name, [*history[: data.draw(st.integers(0, len(history)))], 7, 1]),
        ):
            first, least = len(self.backend.submits), self.least_cached(session, prompt)
            run = self.ask(data, prompt, session, 4)
            assert run.ids == plain_ids(self.target, prompt, 4, CONTEXT)[: len(run.ids)]
            self.check_prefill(run, first, prompt, least)
            self.history[session] = prompt + run.ids

    def least_cached(self, name, prompt):
        """What must be kept at least: all that the session has of the prompt, but for a page that is shared, or a chunk."""
        ids, length = self.held(name)
        own = min(common(ids, prompt), length, len(prompt) - 1)
        model, unit = self.plan.target_model, self.unit()
        slack = 0 if unit == 1 else unit + model.page_size * unit
        partial = own // model.page_size
        pages = self.memory._sessions[name].tables["target"].pages if length else []
        if partial < len(pages) and self.memory._pools["target"].is_shared(pages[partial]):
            slack += model.page_size
        return own - slack

    def unit(self):
        """What is kept may end anywhere, but for a prefill program whose slots nobody has compared."""
        anywhere = self.programs.verify == "any" or not self.programs.prefill
        return 1 if anywhere else self.plan.target_model.prefill_width

    def check_prefill(self, run: Run, first, prompt, least):
        cached = run.result["usage"]["cached_tokens"]
        assert max(0, least) <= cached < len(prompt)
        self.num_reused += cached
        rows, (program, width) = 0, self.programs.feeding(self.plan.target_model)
        for batch in self.backend.submits[first:]:
            if batch.kind == "prefill":
                ((start, num_rows, *_),) = [args for name, _, args in batch.writes if name == "target.args"]
                assert batch.calls == [program] and start == cached + rows
                rows += num_rows
                end = start + num_rows
                assert end % width == 0 or end == len(prompt) - 1, "chunks end where those of a cold run end"
                if self.unit() > 1:
                    assert start % width == 0, "and begin there, where rows may differ by slot"
        if run.result["speculation"]["num_target_passes"]:
            assert rows == len(prompt) - 1 - cached, "only what is new"

    @rule(name=st.one_of(NAMES, st.none()), data=st.data(), at=st.integers(0, 12))
    def cancelled(self, name, data, at):
        self.script.not_finite_calls = set()
        prompt = self.prompt(data)
        run = self.ask(data, prompt, name, 12, cancel_at=at)
        assert run.ids == plain_ids(self.target, prompt, 12, CONTEXT)[: len(run.ids)]
        if name:
            self.history[name] = prompt + run.ids

    @rule(name=st.one_of(NAMES, st.none()), data=st.data(), at=st.integers(0, 12), after=st.booleans())
    def faulty(self, name, data, at, after):
        """The run may survive it; the device's memory is not trusted after it, and here all of it is lost."""
        self.script.not_finite_calls = set()
        prompt, first = self.prompt(data), len(self.backend.submits)
        when = self.script.fail_after if after else self.script.fail_before
        when[first + at] = DeviceFault("lost", "submit", "reload")
        try:
            run = self.ask(data, prompt, name, 12)
            assert run.ids == plain_ids(self.target, prompt, 12, CONTEXT)[: len(run.ids)]
        except DeviceFault:
            assert len(self.backend.submits) > first + at
        if len(self.backend.submits) > first + at:
            report = self.memory.report()
            assert report["sessions"] == [] and all(not pages["held"] for pages in report["pages"].values())
            self.scramble()
        when.clear()

    def scramble(self):
        for tensor in self.backend.tensors.values():
            tensor[:] = [POISON] * len(tensor)
        for lane in self.backend._lanes.values():
            for cells in lane._cells:
                cells[:] = [(POISON, POISON)] * len(cells)

    @rule(data=st.data(), width=st.sampled_from([1, 4]))
    def scored(self, data, width):
        """It needs pages of its own."""
        prompt = self.prompt(data)[: CONTEXT - 4]
        effects = score(self.plan, prompt, [1, 2, 3], width, self.programs, self.memory)
        assert len(drive.run(effects, self.backend)["positions"]) == 3

    @rule(data=st.data(), max_tokens=st.integers(0, 9))
    def without_a_session(self, data, max_tokens):
        self.script.not_finite_calls = set()
        prompt, first = self.prompt(data), len(self.backend.submits)
        run = self.ask(data, prompt, None, max_tokens)
        assert run.ids == plain_ids(self.target, prompt, max_tokens, CONTEXT)[: len(run.ids)]
        assert run.result["usage"]["cached_tokens"] == 0
        self.check_prefill(run, first, prompt, 0)

    @rule(name=NAMES)
    def drop(self, name):
        held = name in self.memory._sessions
        assert self.memory.drop(name) == held and self.held(name) == ([], 0)

    @precondition(lambda self: hasattr(self, "memory"))
    @rule()
    def probed(self):
        """Somebody else used the device."""
        self.memory.forget()
        self.scramble()

    @invariant()
    def every_cell_is_its_sessions(self):
        if not hasattr(self, "memory"):
            return
        for session in self.memory._sessions.values():
            for role, table in session.tables.items():
                cells, size = self.backend._lanes[role]._cells, table._page_size
                assert len(table.pages) == -(-table.length // size), "no page for nothing"
                assert table.length <= len(session.ids)
                kept = [cells[table.pages[at // size]][at % size] for at in range(table.length)]
                assert kept == list(enumerate(session.ids[: table.length]))

    @invariant()
    def pages_are_accounted_for(self):
        if not hasattr(self, "memory"):
            return
        report = self.memory.report()
        for role, pool in self.memory._pools.items():
            tables = [session.tables[role] for session in self.memory._sessions.values()]
            held = {page for table in tables for page in table.pages}
            num_shared = sum(len(table.pages) for table in tables) - len(held)
            sums = sum(-(-table.length // table._page_size) for table in tables)
            assert pool.num_held == len(held) == sums - num_shared
            assert report["pages"][role]["held"] == len(held)
            for page in held:
                assert pool._holders[page] == sum(page in table.pages for table in tables)

    @invariant()
    def nothing_is_believed_of_the_device_that_is_not_there(self):
        if not hasattr(self, "memory"):
            return
        tokens = self.memory._tokens
        assert self.backend.tensors["tokens"][: len(tokens)] == tokens
        for role, entries in self.memory._entries.items():
            table = self.backend.tensors[f"{role}.page_table"]
            assert all(entry in (UNKNOWN, there) for entry, there in zip(entries, table, strict=False))
