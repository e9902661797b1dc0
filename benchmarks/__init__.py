"""Speed and memory against the peers, both sides in one run: ``python -m benchmarks --help``.

Every contestant is a job (:mod:`benchmarks.jobs`) in a process of its own, so that it has its own
heap, its own peak of memory and, where a peer asks for other versions of the same packages, its
own Python. The processes take turns, round by round, so that a noisy machine is fair to all.
"""
