"""The order of everything that happens after the last line."""

import atexit
import threading


class Last:
    def __del__(self):
        print("del", __name__)


def late():
    threading.main_thread().join(20)
    print("thread", threading.main_thread().is_alive())


last = Last()
atexit.register(print, "atexit 1")
atexit.register(print, "atexit 2")
threading.Thread(target=late).start()
print("end of script")
