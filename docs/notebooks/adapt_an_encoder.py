# %% [markdown]
# # Adapt an encoder to your text
#
# From a file of text to an encoder that fits it, or to the knowledge that yours fits already.

# %% tags=["parameters"]
ENCODER = "all-MiniLM-L6-v2"
TEXT = "sentences.txt"  # a text per line
PAIRS = "pairs.tsv"  # rated pairs of your own: sentence, sentence, score
OUTPUT = "runs/adapted"
MINUTES = 18
SETTINGS = {}

# %% [markdown]
# ## Measure first
#
# Half of the rated pairs chooses the encoder, the other half judges the choice.

# %%
from pathlib import Path

import contrasent

rows = Path(PAIRS).read_text("utf-8").splitlines()
Path("dev.tsv").write_text("\n".join(rows[::2]) + "\n", "utf-8")
Path("test.tsv").write_text("\n".join(rows[1::2]) + "\n", "utf-8")

start = contrasent.SentenceEncoder(ENCODER)
print(contrasent.evaluate(start, ["test.tsv"]).table())

# %% [markdown]
# ## Search for something better
#
# Each candidate is trained for a few steps; the better half goes on. The encoder as it comes is a
# candidate too.

# %%
result = contrasent.adapt(
    ENCODER,
    data=TEXT,
    dev="dev.tsv",
    test=["test.tsv"],
    minutes=MINUTES,
    output=OUTPUT,
    settings=SETTINGS,
)
print(*result.sentences, sep="\n")
for trial in result.trials:
    print(f"{trial.candidate:15} {trial.steps:5} steps  {trial.score or trial.failure}")
print(f"start {result.start_score} ({result.dev_metric})")

# %% [markdown]
# ## Believe the interval
#
# "Helped" is said only if the interval of the difference excludes 0, on pairs that chose nothing.

# %%
for gain in result.scores.gains:
    print(gain.sentence)

# %% [markdown]
# ## Look at neighbours, then use it

# %%
adapted = contrasent.SentenceEncoder(result.encoder)
texts = Path(TEXT).read_text("utf-8").splitlines()
query = texts[0]
for name, encoder in {"start": start, "adapted": adapted}.items():
    index = contrasent.Index.build(encoder, texts, f"{OUTPUT}/index-{name}")
    [hits] = index.search(encoder, [query], top_k=3)
    print(name, *(f"  {hit.score:.2f} {hit.text}" for hit in hits), sep="\n")
