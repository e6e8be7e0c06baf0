"""Measures this program beside others: same texts, same tokens, each in a process of its own, rounds interleaved."""
