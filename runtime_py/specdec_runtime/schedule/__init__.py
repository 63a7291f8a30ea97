"""Schedules: what a submit tries, one policy a file, behind decode/choice.py. Whatever they choose, the ids are the target's."""
