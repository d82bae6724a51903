"""Each example runs to its own verdict, with one thread a library: they share the machine with
other tests."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "python"


def test_there_are_examples_and_they_are_short():
    files = sorted(FOLDER.glob("*.py"))
    assert [f.name for f in files] == [
        "ppo_update.py",
        "prompt_logprobs.py",
        "train_transformer.py",
    ]
    assert all(len(f.read_text().splitlines()) < 150 for f in files)


@pytest.mark.parametrize("name", ["ppo_update", "prompt_logprobs", "train_transformer"])
def test_example(name):
    environment = dict(os.environ, OMP_NUM_THREADS="1", WEFT_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
