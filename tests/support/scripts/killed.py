import os
import signal
import sys

print("last words")
os.kill(os.getpid(), int(getattr(signal, sys.argv[1])))
