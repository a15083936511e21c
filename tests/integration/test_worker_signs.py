"""What a worker's page shows of a script that knows nothing of ftrun: optimizer steps and samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.worker_harness import Outcome, run_worker

HEAD = """
import time
import torch
from ftrun.monitor.page_writer import attached, BYTECODE_CHANGES, SAMPLER_AT, SECONDS, UNSIGNED
def looked_at():
    return SECONDS.unpack_from(attached().memory, SAMPLER_AT)[0]
def look_again():
    before = looked_at()
    while looked_at() == before:
        time.sleep(0.01)
    return looked_at()
model = torch.nn.Linear(2, 1)
def loss():
    model.zero_grad()
    value = model(torch.ones(4, 2)).square().sum()
    value.backward()
    return value
"""


def run(code: str, directory: Path) -> Outcome:
    """A worker that runs `code` after `HEAD`, successfully."""
    (directory / "script.py").write_text(HEAD + code)
    outcome = run_worker(["script.py"], directory)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    return outcome


SCRIPTS = {
    "two optimizers": (
        """
first = torch.optim.SGD([model.weight], lr=0.1)
second = torch.optim.AdamW([model.bias], lr=0.1)
for _ in range(3):
    loss()
    first.step()
    second.step()
""",
        6,
    ),
    "LBFGS, whose step calls a closure many times": (
        """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
for _ in range(2):
    optimizer.step(loss)
optimizer.step(closure=loss)
""",
        3,
    ),
    "an optimizer of the user's own": (
        """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= 0.1 * parameter.grad
optimizer = Own(model.parameters())
for _ in range(4):
    loss()
    optimizer.step()
""",
        4,
    ),
    "one optimizer for each parameter, in the backward pass": (
        """
for parameter in model.parameters():
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
for _ in range(2):
    loss()
""",
        4,
    ),
    "a compiled step": (
        """
import warnings
optimizer = torch.optim.Adam(model.parameters())
step = torch.compile(lambda: optimizer.step(), backend="eager")
torch._logging.set_logs(dynamo=40)
with warnings.catch_warnings(record=True) as caught:
    for _ in range(3):
        loss()
        step()
assert not [str(one.message) for one in caught if "trace" in str(one.message)]
""",
        3,
    ),
}


@pytest.mark.parametrize(("code", "steps"), SCRIPTS.values(), ids=SCRIPTS.keys())
def test_each_step_of_each_optimizer_counts(code: str, steps: int, tmp_path: Path) -> None:
    """Without an edit, whatever optimizer it is."""
    assert run(code, tmp_path).page.steps == steps


def test_steps_that_a_gradient_scaler_leaves_out_do_not_count_but_move(tmp_path: Path) -> None:
    """Infinite gradients: `step` is not called, while bytecode shows that the rank is alive."""
    code = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
def iterate(factor):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 2)).sum() * factor).backward()
    scaler.step(optimizer)
    scaler.update()
iterate(1.0)
look_again(); look_again()
before = UNSIGNED.unpack_from(attached().memory, BYTECODE_CHANGES)[0]
looks = set()
while len(looks) < 4:  # so three whole times between two of them
    looks.add(looked_at())
    iterate(float("inf"))
print(UNSIGNED.unpack_from(attached().memory, BYTECODE_CHANGES)[0] - before)
iterate(1.0)
"""
    outcome = run(code, tmp_path)
    assert outcome.page.steps == 2
    assert int(outcome.stdout) >= 2


def test_a_worker_is_sampled_from_before_its_imports_to_its_end(tmp_path: Path) -> None:
    """Each half second; then the page says that nobody looks any more."""
    code = """
print(looked_at() > 0)
looks = [look_again() for _ in range(5)]
gaps = [after - before for before, after in zip(looks, looks[1:])]
print(0.49 < min(gaps) < 0.99)
"""
    outcome = run(code, tmp_path)
    assert outcome.stdout.split() == ["True", "True"]
    page = outcome.page
    assert page.bytecode_changes >= 3
    assert page.main_thread_cpu_s > 0
    assert (page.sampler_at, page.sampler_tid) == (None, None)


def test_the_sampler_is_in_no_scripts_way(tmp_path: Path) -> None:
    """Neither in the number of threads, nor for a child of a fork, nor at an exit in the midst of threads."""
    code = """
import os, threading
assert threading.active_count() == 1
child = os.fork()
if child == 0:
    os._exit(len(os.listdir("/proc/self/task")) - 1)
assert os.waitpid(child, 0)[1] == 0
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
threading.Thread(target=time.sleep, args=(0.2,)).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
"""
    run(code, tmp_path)
