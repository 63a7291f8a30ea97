"""The budget of losses: a bucket that bounds what speculation may cost, whatever the text.

In tokens' worth of plain decoding. It holds at most FULL, gains RATE with every committed token and whatever a cycle saves, and
loses whatever a cycle costs more than plain decoding of the tokens that it committed. Once, it also gets SHARE of what the target
needed for the prompt, for the draft has to read it too. A cycle is allowed only while its worst outcome (every draft rejected) does
not overdraw it. So over any stretch of n tokens speculation costs at most FULL + RATE * n tokens' worth more than plain: 7.0
over 256, which is 2.7 % (and of the prompt's time SHARE). The bound holds for the costs that the schedule knows; it does not know
what the device does between two measurements.
"""

from __future__ import annotations

FULL = 5.2
RATE = 0.007
SHARE = 0.03  # of plain decoding, over HORIZON tokens: what FULL and RATE keep
HORIZON = 256


class Allowance:
    """The bucket."""

    def __init__(self, prompt_tokens: float = 0.0) -> None:
        """prompt_tokens: plain steps that reading the prompt took the time of."""
        self.level = FULL + SHARE * prompt_tokens
        self.spent = 0.0  # all losses, to report

    def allows(self, worst_loss: float) -> bool:
        return worst_loss <= self.level

    def settle(self, num_tokens: int, plain_tokens: float) -> None:
        """A cycle committed num_tokens in the time that plain decoding needs for plain_tokens."""
        loss = plain_tokens - num_tokens
        self.spent += max(0.0, loss)
        self.level = min(max(FULL, self.level), self.level - loss + RATE * num_tokens)
