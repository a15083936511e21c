import os
import sys

how = sys.argv[1]
print("before", how)
if how == "os":
    os._exit(7)
sys.exit({"number": 42, "text": "a text", "none": None, "large": 300, "negative": -1}.get(how, how))
