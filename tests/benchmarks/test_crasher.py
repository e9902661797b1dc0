"""The soak finds acknowledged texts that are lost, and texts that should not be there."""

from types import SimpleNamespace

from benchmarks.crasher import Load


def test_an_index_holds_what_was_acknowledged_and_of_other_requests_all_or_nothing():
    load = Load(1)
    load.there, load.gone = {"a": "text of a", "b": "text of b"}, {"removed"}
    load.open = [["x1", "x2", "x3"], ["y1", "y2", "y3"], ["z1", "z2", "z3"]]

    def wrong(texts):
        rows = SimpleNamespace(ids=[*texts], texts=[*texts.values()])
        return load.wrong(SimpleNamespace(blocks=lambda: [rows]))

    whole = {**load.there, **dict.fromkeys(("y1", "y2", "y3"), "one that was not answered")}
    assert wrong(whole) == []
    assert wrong({"a": "another", "removed": "back", "x2": "a part"}) == [
        "lost: a",
        "lost: b",
        "back: removed",
        "back: ['x1', 'x2', 'x3']",
    ]
