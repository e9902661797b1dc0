# %% [markdown]
# # Reproduce a table of a paper
#
# SimCSE's Table 3: how much dropout? `SCALE = "smoke"` makes it of tiny random models in a minute,
# to see how it goes; its numbers mean nothing. `"small"` trains the encoder and text at hand, and
# `"paper"` is the paper's own setting.

# %% tags=["parameters"]
TABLE = "simcse/T3"
ROWS = "dropout 0.1,dropout 0.5"
SCALE = "smoke"
SEEDS = "42,43"
# Of "small" and "paper": ["--encoder", "bert-base-uncased", "--material", "sentences=wiki1m.txt"]
MORE = []

# %%
import csv
import subprocess
import sys
from pathlib import Path

contrasent = [sys.executable, "-m", "contrasent", "reproduce"]
settings = ["--scale", SCALE, "--output", "reproduction", *MORE]
subprocess.run([*contrasent, TABLE, "--rows", ROWS, "--seeds", SEEDS, *settings], check=True)

# %% [markdown]
# Each cell has the published number, ours as the mean and standard deviation over the seeds, and
# the difference. The folder has all of it in full precision:

# %%
with Path("reproduction", TABLE.replace("/", "-") + ".csv").open(encoding="utf-8") as file:
    cells = [cell for cell in csv.DictReader(file) if cell["ours"]]
for cell in cells:
    print(f"{cell['row']:15} {cell['column']:12} {float(cell['ours']):6.2f}  ({cell['published']})")

# %% [markdown]
# Do the numbers carry what the paper claims of them? At scale `smoke` nothing does.

# %%
subprocess.run([*contrasent, "verdicts", TABLE, *settings], check=True)
