"""The options of specdec-run that say how tokens are chosen and where an answer ends, as fields of a request.

Does not know how they are served: values are judged by the decode core (specdec_runtime/decode/options.py), so that native and
page refuse the same. Invariant: an option that is not given is no field.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from specdec_runtime.decode.sampling import MODES

_NUMBERS = {
    "temperature": (float, "0 (default): always the likeliest token; above it, drawn"),
    "top_k": (int, "draw from the K likeliest tokens; 0: off"),
    "top_p": (float, "draw from the likeliest tokens that hold this share; 1: off"),
    "min_p": (float, "draw from tokens at least so likely as this times the likeliest; 0: off"),
    "seed": (int, "of the random draws; left out, one is drawn and told"),
    "repetition_penalty": (float, "above 1: tokens of prompt and answer become less likely"),
    "frequency_penalty": (float, "taken from a token's logit for each time the answer has it, -2 to 2"),
    "presence_penalty": (float, "taken from a token's logit once the answer has it, -2 to 2"),
    "min_tokens": (int, "no end token before so many tokens"),
    "logprobs": (int, "tell each token's log-probability and the N likeliest, 0 to 5; shown with --json"),
}
_LISTS = {
    "stop": ("TEXT", "end the answer where this text appears; may be given several times"),
    "bad_word": ("TEXT", "never say this (as it stands, or after a space); may be given several times"),
    "logit_bias": ("ID=V", "add V to the logit of a token id; may be given several times"),
}


def _bias(text: str) -> tuple[str, float]:
    match = re.fullmatch(r"([0-9]{1,10})=(\S+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=V")
    try:
        return match[1], float(match[2])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{match[2]!r} is not a number") from None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option of this file; None where it is not given."""
    group = parser.add_argument_group("how tokens are chosen, and where the answer ends")
    for name, (kind, text) in _NUMBERS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)
    group.add_argument(
        "--mode", choices=MODES, help="how drafts are judged above temperature 0 (default coupled)"
    )
    for name, (metavar, text) in _LISTS.items():
        kind = _bias if name == "logit_bias" else str
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=kind, action="append", metavar=metavar, help=text)
    group.add_argument("--ignore-eos", action="store_true", help="go on after an end token")


def option_fields(args: argparse.Namespace) -> dict[str, Any]:
    """What was given, named as requests name it."""
    names = [*_NUMBERS, "mode", "stop"]
    fields = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.bad_word is not None:
        fields["bad_words"] = args.bad_word
    if args.logit_bias is not None:
        fields["logit_bias"] = dict(args.logit_bias)
    if args.ignore_eos:
        fields["ignore_eos"] = True
    return fields
