"""The evaluation matrix: which configurations, which prompts, as the page and the native run take them.

Does not know how they are run. Invariants: the first configuration is plain, one step a submit; options of a
configuration are handed on as they are given; prompts fit the bundle's context.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specdec_runtime.bundle import Bundle
from specdec_runtime.decode.sampling import COUPLED, MODES
from specdec_runtime.drafters.registry import drafter_names
from specdec_runtime.faults import RequestError

from .json_file import read_json_file
from .strata import Prompt
from .text import BundleText

PLAIN = {"drafter": "off", "k": 0, "plain_steps": 1}

Config = dict[str, Any]  # {"name", "options"}: options of a request


def config_of(**options: Any) -> Config:
    """A configuration, named after its options."""
    rest = {key: value for key, value in options.items() if key not in ("drafter", "k")}
    if options["drafter"] == "off":
        return {"name": f"plain {rest.get('plain_steps', 1)}", "options": options}
    more = [str(value) if key == "schedule" else f"{key} {value}" for key, value in rest.items()]
    return {"name": " ".join([options["drafter"], f"k{options['k']}", *more]), "options": options}


def is_plain(config: Config) -> bool:
    """Nothing is drafted."""
    return config["options"].get("drafter") == "off" or config["options"].get("k") == 0


def check_modes(modes: Sequence[str], temperature: float) -> Sequence[str]:
    """Those to run, where anything is drawn; a mode that would change nothing is refused."""
    if unknown := sorted(set(modes) - set(MODES)):
        raise RequestError(f"there is no mode {', '.join(unknown)}", "--modes", f"Of {', '.join(MODES)}")
    if not modes:
        raise RequestError("no mode is named", "--modes", f"Of {', '.join(MODES)}, or leave it out")
    if temperature == 0:
        raise RequestError("at temperature 0 nothing is drawn", "--modes", "Leave it out, or --temperature T")
    return modes


def sampled(
    configs: list[Config], temperature: float, seed: int, modes: Sequence[str] | None = None
) -> list[Config]:
    """The same configurations above temperature 0: plain ones once, the others in every mode (none named: coupled).

    Nothing changes at temperature 0.
    """
    chosen = [COUPLED] if modes is None else check_modes(modes, temperature)
    if temperature == 0:
        return configs
    draw = {"temperature": temperature, "seed": seed}
    found = []
    for config in configs:
        for mode in chosen[:1] if is_plain(config) else chosen:
            name = config["name"] if len(chosen) == 1 or is_plain(config) else f"{config['name']} {mode}"
            more = draw if is_plain(config) else {**draw, "mode": mode}
            found.append({"name": name, "options": {**config["options"], **more}})
    return check_configs(found)


_CHOOSE_NOTHING = ("drafter", "k", "schedule", "rounds", "plain_steps", "mode", "max_tokens")


def sampling_of(config: Config) -> str:
    """How its tokens are chosen, whatever drafts: configurations that share it are compared."""
    chosen = {name: value for name, value in config["options"].items() if name not in _CHOOSE_NOTHING}
    return json.dumps(chosen, sort_keys=True)


def references(configs: Sequence[Config]) -> dict[str, str]:
    """By name: the configuration whose ids it must have, the first that chooses tokens so. Modes other than coupled promise none."""
    first: dict[str, str] = {}
    for config in configs:
        first.setdefault(sampling_of(config), config["name"])
    return {
        config["name"]: first[sampling_of(config)]
        for config in configs
        if config["options"].get("mode", COUPLED) == COUPLED
    }


def make_configs(
    steps: Sequence[int],
    drafters: Sequence[str],
    ks: Sequence[int],
    rounds: Sequence[int],
    schedules: Sequence[str],
) -> list[Config]:
    """Plain ones first; then every drafter with every k, rounds and schedule. An empty list leaves an option to the runtime."""
    configs = [config_of(**PLAIN | {"plain_steps": count}) for count in dict.fromkeys([1, *steps])]
    for drafter in drafters:
        for k in ks:
            for count in rounds or [None]:
                for schedule in schedules or [None]:
                    more = {"rounds": count, "schedule": schedule}
                    more = {key: value for key, value in more.items() if value is not None}
                    configs.append(config_of(drafter=drafter, k=k, **more))
    return check_configs(configs)


def read_configs(path: Path) -> list[Config]:
    """A file of options: [{"drafter": "chain", "k": 4, "rounds": 2}, ...]; the plain step comes before them."""
    listed = read_json_file(path, "Give a JSON list")
    good = isinstance(listed, list) and all(
        isinstance(o, dict) and {"drafter", "k"} <= set(o) for o in listed
    )
    if not good:
        action = "Give a list of objects with drafter, k and further options of generate()"
        raise RequestError("it is no list of configurations", str(path), action)
    rest = [options for options in listed if options != PLAIN]
    return check_configs([config_of(**PLAIN), *(config_of(**options) for options in rest)])


def check_configs(configs: list[Config]) -> list[Config]:
    names = [config["name"] for config in configs]
    if len(set(names)) != len(names):
        raise RequestError(
            f"a configuration is named twice: {', '.join(names)}", "configurations", "Leave one out"
        )
    if all(map(is_plain, configs)):
        raise RequestError(
            "there is no speculative configuration", "configurations", "Name a drafter and a k"
        )
    return configs


def chosen_drafters(bundle: Bundle, names: Sequence[str] | None) -> list[str]:
    """Those asked for; all of the bundle's, where nobody asked."""
    known = [name for name in drafter_names(bundle.plan) if name != "off"]
    if unknown := sorted(set(names or ()) - set(known)):
        raise RequestError(
            f"the bundle has no drafter {', '.join(unknown)}", "drafters", f"Of {', '.join(known)}"
        )
    return list(dict.fromkeys(names or known))


def prompt_ids(bundle: Bundle, prompts: Sequence[Prompt], tokens: int) -> list[dict[str, Any]]:
    """The prompts as the page and the native run take them, by the bundle's template. Refuses what does not fit its context."""
    plan = bundle.plan
    text = BundleText.open(bundle, plan.text, plan.ids.chat_template is not None)
    room = plan.target_model.max_context
    found = []
    for prompt in prompts:
        ids = text.encode(text.render(list(prompt.messages)))
        if len(ids) + min(tokens, prompt.max_tokens) > room:
            action = f"Its context is {room}: take fewer tokens, or leave out {prompt.stratum}"
            raise RequestError(f"{len(ids)} prompt tokens do not fit this bundle", prompt.id, action)
        most = min(tokens, prompt.max_tokens)
        found.append({"id": prompt.id, "stratum": prompt.stratum, "prompt_ids": ids, "max_tokens": most})
    return found


def page_config(
    bundle: Bundle, prompts: Sequence[Prompt], configs: list[Config], pairs: int, tokens: int, load: dict
) -> dict[str, Any]:
    """All that a run needs but the bundle; `told` of it goes into the outcome."""
    return {
        "strata_format": 1,
        "name": bundle.plan.name,
        "kernels": bundle.plan.ids.kernels,
        "weights": bundle.plan.ids.weights,
        "bundle": "../bundle/",
        "load": load,
        "pairs": pairs,
        "max_tokens": tokens,
        "prompts": prompt_ids(bundle, prompts, tokens),
        "configs": configs,
    }
