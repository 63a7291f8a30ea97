"""The decode core: a generator that yields effects and is sent readbacks. No I/O, no clock, no randomness."""
