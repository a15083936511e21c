import os
import sys

child = os.fork()
if child == 0:
    raise LookupError("in the child")
_, status = os.waitpid(child, 0)
print("child ended with", os.waitstatus_to_exitcode(status))
sys.exit(3)
