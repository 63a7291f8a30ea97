"""specdec_runtime: exact speculative decoding, pure Python, standard library only.

The same files run under CPython and, as a wheel, under Pyodide in a web worker. Read decode/round.py first.
"""

__version__ = "0.1.0"
