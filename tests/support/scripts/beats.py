import subprocess
import sys

from ftrun.monitor import client

print(client.is_running_under_ftrun(), client.resume_from())
client.heartbeat(step=10)
client.heartbeat(step=11)
client.checkpoint_saved("checkpoints/11", step=11)
code = "from ftrun.monitor import client; client.heartbeat(12)"
subprocess.run([sys.executable, "-c", code], check=True)
