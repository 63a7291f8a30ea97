"""Drafters: one a file, behind decode/interfaces.py. Whatever they propose, the answer is the target's."""
