"""Prints what a script can see of how it was started."""

import sys

print(list(globals()))
print(__name__, __file__, __package__, __spec__, __doc__, type(__loader__).__name__)
print(sys.argv, sys.path[0], sys.orig_argv[1:], type(__builtins__).__name__)
print(sys.modules["__main__"].__dict__ is globals(), [p for p in sys.path if p.endswith("launcher")])
