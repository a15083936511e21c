import atexit
import os
import signal

atexit.register(print, "atexit")
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
