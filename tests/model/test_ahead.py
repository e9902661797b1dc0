import threading
from itertools import count

import pytest

from contrasent.data.loader import prefetch


def threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("contrasent-prefetch")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert not threads()
    yield
    assert not threads()


def test_the_next_item_is_worked_on_while_the_caller_has_this_one():
    begun = [threading.Event() for _ in range(4)]
    found = prefetch(range(3), lambda i: begun[i].set() or i)
    assert next(found) == 0
    assert begun[1].wait(10)
    assert not begun[2].is_set()
    assert list(found) == [1, 2]


def test_items_are_taken_on_the_callers_thread_and_one_more_than_asked_for():
    taken = []

    def items():
        for i in count():
            taken.append((i, threading.current_thread()))
            yield i

    found = prefetch(items(), lambda i: (i, threading.current_thread().name))
    number, name = next(found)
    assert number == 0 and name.startswith("contrasent-prefetch")
    assert taken == [(0, threading.current_thread()), (1, threading.current_thread())]
    found.close()
    assert len(taken) == 2


def test_closing_early_ends_the_thread():
    found = prefetch(count(), str)
    assert next(found) == "0"
    assert threads()
    found.close()
    assert not threads()


@pytest.mark.parametrize("where", range(4))
def test_what_taking_an_item_raises_comes_after_all_that_was_before_it(where):
    def items():
        yield from range(where)
        raise KeyError("no more")

    found = prefetch(items(), str)
    assert [next(found) for _ in range(where)] == [str(i) for i in range(where)]
    with pytest.raises(KeyError, match="no more"):
        next(found)


@pytest.mark.parametrize("where", range(4))
def test_what_the_work_raises_comes_in_its_place(where):
    def work(item):
        if item == where:
            raise ValueError("bad item")
        return item

    found = prefetch(range(10), work)
    assert [next(found) for _ in range(where)] == list(range(where))
    with pytest.raises(ValueError, match="bad item"):
        next(found)
    assert list(found) == []
