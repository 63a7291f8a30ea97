"""What schedules promise, on made-up machines and on the scripted backend; tests/meta runs it on mutants.

`run_schedule_suite` raises at the first promise that is broken. Deterministic, a few seconds.
"""

from dataclasses import replace

from exactness_suite import COSTS
from plan_factory import load_made
from simulate import Run, generate, mostly, plain_ids, seeded
from specdec_runtime.backends.scripted import ScriptedBackend
from specdec_runtime.decode.choice import MODEL, NGRAM, Done
from specdec_runtime.schedule.break_even import BreakEven
from specdec_runtime.schedule.confidence import Confidence
from specdec_runtime.schedule.costs import Costs
from specdec_runtime.schedule.policy import Policy
from specdec_tools.schedule_sim import (
    ALPHAS,
    MACHINES,
    Machine,
    World,
    flipping,
    oracle_ms,
    plain_ms,
    run,
    steady,
)

SEEDS = range(4)
MAX_LOSS = 1.03
VOCAB = 13
PLAN = load_made(vocab_size=VOCAB, draft={})
TARGET = seeded(3, VOCAB)
PROMPT = [5, 6, 7, 8, 9, 5, 6]


def share(world: World, machine: Machine, name: str = "break_even") -> float:
    """Time over plain decoding's."""
    return run(name, world, machine).ms / plain_ms(world, machine)


def check_losses(seeds=SEEDS) -> None:
    """Never more than 3 % under plain decoding over 256 tokens, on any machine, at any acceptance, also one that turns."""
    for name, machine in MACHINES.items():
        for seed in seeds:
            worlds = [steady(alpha, seed) for alpha in (0.0, *ALPHAS)]
            worlds += [flipping(alphas, seed) for alphas in ((0.9, 0.1), (0.1, 0.9), (0.5, 0.1))]
            worlds += [flipping((0.9, 0.1) * 4, seed, each=32), World(((256, 0.1, 0.1, 0.9),), seed)]
            for world in worlds:
                found = share(world, machine)
                assert found <= MAX_LOSS, f"{name}, {world.strata}, seed {seed}: {found:.3f} of plain"


def check_following() -> None:
    """When acceptance falls, k follows within 8 rounds; when it rises again, within 8 rounds from the next trial on."""
    for name, low in (("flat", 3), ("stepped", 1), ("gpu", 0), ("gpu, 4 rounds", 1)):
        for seed in SEEDS:
            trace = run("break_even", flipping((0.95, 0.05, 0.95), seed), MACHINES[name])
            high, fallen, risen = (trace.ks(start, start + 128) for start in (0, 128, 256))
            assert max(high[4:]) == 7, f"{name}: {high}"
            assert max(fallen[8:12]) <= low, f"{name}, seed {seed}: after the fall {fallen[:16]}"
            if any(risen):
                first = next(i for i, k in enumerate(risen) if k)
                tried = [k for k in risen[first:] if k]
                assert max(tried[:8]) >= 3, f"{name}, seed {seed}: after the rise {risen}"
    back = [
        any(run("break_even", flipping((0.95, 0.05, 0.95), seed), MACHINES["flat"]).ks(256, 320))
        for seed in SEEDS
    ]
    assert all(back), "where a trial costs little it is made soon"


def check_regret(seeds=SEEDS, most: float = 0.05) -> float:
    """Within 5 % of the best fixed action, on average over machines and acceptances; the average excess."""
    excess = []
    for machine in MACHINES.values():
        for alpha in ALPHAS:
            for seed in seeds:
                world = steady(alpha, seed)
                excess.append(run("break_even", world, machine).ms / oracle_ms(world, machine) - 1)
    mean = sum(excess) / len(excess)
    assert mean <= most, f"{100 * mean:.1f} % over the oracle"
    return mean


def check_sources() -> None:
    """Lookup that is always right beside a model that is always wrong, and the other way round: each keeps its own record."""
    for ngram, model, good, bad in ((0.97, 0.03, NGRAM, MODEL), (0.03, 0.97, MODEL, NGRAM)):
        trace = run("break_even", World(((256, model, ngram, 0.5),), 1), MACHINES["stepped"])
        drafts = {
            source: sum(c.k for _, c, _ in trace.cycles if c.source == source) for source in (good, bad)
        }
        assert drafts[good] > 4 * drafts[bad], drafts


def confident(quality: int, k: int = 7, drafter: str = "model") -> Run:
    """A draft that says how sure it is: sure where the target agrees, unsure elsewhere."""
    draft = mostly(TARGET, seeded(4, VOCAB), quality)
    backend = ScriptedBackend(
        PLAN,
        TARGET,
        draft,
        stats=lambda prefix: (-0.005 if TARGET(prefix) == draft(prefix) else -3.0, 1.0),
    )
    schedule = Confidence(Policy(), k)
    return generate(PLAN, TARGET, PROMPT, 30, drafter, k, eos_ids=(), backend=backend, schedule=schedule)


def is_measured(call: str) -> bool:
    return call.startswith("draft.measure_")


def check_confidence() -> None:
    """Exact; every token that was drawn is verified (F10); it stops after the first unsure one, not before it."""
    for quality in (0, 40, 80, 100):
        for drafter in ("model", "chain"):
            done = confident(quality, drafter=drafter)
            assert done.ids == plain_ids(TARGET, PROMPT, 30, 48)
        done = confident(quality)
        drawn = sum(is_measured(call) for batch in done.backend.submits for call in batch.calls)
        counts = done.result["speculation"]
        assert drawn > 10
        assert drawn == counts["num_drafted"] == counts["num_draft_passes"], f"{drawn} drawn, {counts}"
        last = done.emits[-1]
        for emit in done.emits:
            sure = emit.num_accepted + (emit.num_accepted < emit.num_drafted)
            assert emit.num_drafted == sure or emit is last, "the unsure one is the last of its round"


class Listening(BreakEven):
    """Remembers what it was told."""

    def __init__(self, costs: Costs, k: int = 7):
        super().__init__(costs, Policy(), k)
        self.heard: list[Done] = []

    def observe(self, done: Done) -> None:
        self.heard.append(done)
        super().observe(done)


def check_rounds() -> None:
    """Several rounds a submit where one costs much, one where going on does; all of them are told; the ids are plain's."""
    dear = replace(COSTS["far"], accept=50.0)
    for costs, k, chosen in ((COSTS["far"], 7, {2, 4}), (COSTS["far"], 1, {2, 4}), (dear, 7, set())):
        schedule, draft = Listening(costs, k), mostly(TARGET, seeded(4, VOCAB), 90)
        sizes = {"steps": 4, "rounds": 4, "eos_ids": (), "schedule": schedule}
        done = generate(PLAN, TARGET, PROMPT, 40, "model", k, draft, **sizes)
        assert done.ids == plain_ids(TARGET, PROMPT, 40, 48), "several rounds changed the ids"
        several = {heard.choice.rounds for heard in schedule.heard} - {1}
        assert several <= {2, 3, 4} and bool(several & {2, 4}) == bool(chosen), f"{costs}, k {k}: {several}"
        counts = done.result["speculation"]
        rounds = [one for heard in schedule.heard for one in heard.rounds]
        plain = sum(not heard.rounds for heard in schedule.heard)
        told = len(rounds) + plain, sum(accepted for accepted, _ in rounds)
        assert told == (counts["num_cycles"], counts["num_accepted"]), "a round was not told"
        assert sum(heard.num_committed for heard in schedule.heard) == len(done.ids)
        spent = [sum(read.ms) for read in done.backend.readbacks if read is not None]
        assert [heard.ms for heard in schedule.heard] == spent[-len(schedule.heard) :], "each by its own time"


def run_schedule_suite() -> None:
    check_rounds()
    check_sources()
    check_confidence()
    check_following()
    check_losses()
    check_regret()
