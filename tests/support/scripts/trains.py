"""Three optimizer steps of a tiny model; the argument says what else is done."""

import os
import sys

import neighbour  # noqa: F401
import torch

parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
if sys.argv[1:] == ["closed"]:
    os.closerange(3, 256)
    stranger = os.open("stranger", os.O_RDWR | os.O_CREAT)
for _ in range(3):
    parameter.sum().backward()
    optimizer.step()
child = os.fork()
if child == 0:
    optimizer.step()
    os._exit(0)
os.waitpid(child, 0)
if sys.argv[1:] == ["closed"]:
    print("stranger holds", os.path.getsize("stranger"), "bytes")
