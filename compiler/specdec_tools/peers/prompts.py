"""Prompts of exact lengths: the first ids of one text, to be continued: every runtime gets the same ids and none stops early."""

from __future__ import annotations

from specdec_runtime.faults import RequestError

from ..text import BundleText

TEXT = """\
The lighthouse at the end of the northern pier was built after the great storm, when eleven fishing boats were lost in one
night. For two years the town collected stones from the quarry behind the mill and carried them down the hill on sledges,
because the road was too narrow for carts. The tower is thirty metres high, and its walls are so thick at the base that a
person can lie across a window sill without touching either side. The first keeper was a woman called Marta, who had taught
herself to read from almanacs. She wrote down the weather four times a day, the names of all ships that passed, and what the
gulls were doing, and her books are still the best record of that coast. In winter the ice closed the harbour for weeks.
Supplies were pulled over it by dogs, and letters came in a tin box that was tied to the lead dog's collar. When the lamp was
changed from oil to electric light, the children of the town were allowed to stay up late and watch. The engineer explained
that the beam could now be seen from forty kilometres away, and that the lens alone weighed more than two horses. Nobody
believed him until a captain, who had been far out beyond the islands that evening, came ashore and told them what he had
seen. Today the tower is a museum. Visitors climb the narrow stairs, look at the old instruments, and read how the keepers
lived. The most popular room is the smallest one, at the very top, where a bed, a stove and a desk fill all of the floor. On
the desk lies a copy of Marta's last book, open at the page where she describes the morning after the storm:
"""


def prompt_of(text: BundleText, length: int) -> list[int]:
    """The first `length` ids of the text."""
    ids = text.raw_ids(TEXT)
    if not 2 <= length <= len(ids):
        raise RequestError(
            f"{length} prompt tokens asked", "prompt tokens", f"Give a number from 2 to {len(ids)}"
        )
    return ids[:length]
