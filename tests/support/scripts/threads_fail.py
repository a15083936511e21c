import threading


def fail():
    raise OSError("in a thread")


thread = threading.Thread(target=fail, name="worker")
thread.start()
thread.join()
print("goes on")
