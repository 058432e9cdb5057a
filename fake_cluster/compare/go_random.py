"""The random numbers of Go's math/rand (its additive lagged Fibonacci source), so that the tasks of a seed arrive in
the same order as in the published study.

The source gives y[n] = y[n-607] + y[n-273] modulo 2^64, seeded from a Lehmer sequence that is mixed with the state of
such a generator after 7.8e12 steps. That state is worked out here: in the ring of polynomials modulo
x^607 - x^334 - 1, the power x^N says how y[N] follows from the first 607 values.
"""

from __future__ import annotations

import functools
from collections.abc import MutableSequence
from typing import Any

import numpy as np
import numpy.typing as npt

LENGTH, TAP = 607, 273
MIX_STEPS = 7_800_000_000_000
_LEHMER, _PRIME, _SEED_OF_ZERO = 48271, (1 << 31) - 1, 89482311
_MASK63 = (1 << 63) - 1
Words = npt.NDArray[np.uint64]


class GoRandom:
    """`rand.New(rand.NewSource(seed))` of Go, the calls that the study needs."""

    def __init__(self, seed: int) -> None:
        vector = _from_lehmer(seed, 40, 20) ^ _mixing()
        self._vector: list[int] = [int(word) for word in vector]
        self._tap, self._feed = 0, LENGTH - TAP

    def int63(self) -> int:
        """A number below 2^63."""
        self._tap = (self._tap - 1) % LENGTH
        self._feed = (self._feed - 1) % LENGTH
        word = (self._vector[self._feed] + self._vector[self._tap]) & ((1 << 64) - 1)
        self._vector[self._feed] = word
        return word & _MASK63

    def intn(self, bound: int) -> int:
        """A number below `bound`, which is below 2^31."""
        if bound & (bound - 1) == 0:
            return (self.int63() >> 32) & (bound - 1)
        highest = (1 << 31) - 1 - (1 << 31) % bound
        value = self.int63() >> 32
        while value > highest:
            value = self.int63() >> 32
        return value % bound

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle in place, as `rand.Shuffle` does (which draws otherwise than `intn`)."""
        for at in range(len(items) - 1, 0, -1):
            other = self._scaled(at + 1)
            items[at], items[other] = items[other], items[at]

    def permutation(self, count: int) -> list[int]:
        """`rand.Perm`."""
        order = [0] * count
        for at in range(count):
            other = self.intn(at + 1)
            order[at] = order[other]
            order[other] = at
        return order

    def _scaled(self, bound: int) -> int:
        product = (self.int63() >> 31) * bound
        if product & 0xFFFFFFFF < bound:
            least = -bound % (1 << 32) % bound
            while product & 0xFFFFFFFF < least:
                product = (self.int63() >> 31) * bound
        return product >> 32


def _from_lehmer(seed: int, first: int, second: int) -> Words:
    """607 words, each of three Lehmer numbers shifted by `first`, `second` and 0 bits, after 20 that are dropped."""
    value = seed % _PRIME or _SEED_OF_ZERO
    for _ in range(20):
        value = value * _LEHMER % _PRIME
    words = []
    for _ in range(LENGTH):
        word = 0
        for shift in (first, second, 0):
            value = value * _LEHMER % _PRIME
            word ^= value << shift
        words.append(word & ((1 << 64) - 1))
    return np.array(words, dtype=np.uint64)


@functools.cache
def _mixing() -> Words:
    """The state that seeds are mixed with: of a generator that began with seed 1, after MIX_STEPS steps."""
    vector = _from_lehmer(1, 20, 10)
    # Step k writes place (334 - k) mod 607; before the first step that place holds what is called y[k - 607] here.
    places = [(LENGTH - TAP - step) % LENGTH for step in range(1, LENGTH + 1)]
    start = vector[places]  # y[-606] to y[0]
    power = _power(MIX_STEPS)  # of x: gives y[MIX_STEPS - 606] from the start values
    mixed = np.zeros(LENGTH, dtype=np.uint64)
    for back in range(LENGTH - 1, -1, -1):
        step = MIX_STEPS - back
        mixed[(LENGTH - TAP - step) % LENGTH] = (power * start).sum(dtype=np.uint64)
        power = _times_x(power)
    return mixed


def _power(exponent: int) -> Words:
    result = np.zeros(LENGTH, dtype=np.uint64)
    result[0] = 1
    for bit in bin(exponent)[2:]:
        result = _square(result)
        if bit == "1":
            result = _times_x(result)
    return result


def _times_x(polynomial: Words) -> Words:
    shifted = np.roll(polynomial, 1)  # x^607 = x^334 + 1
    shifted[LENGTH - TAP : LENGTH - TAP + 1] += polynomial[-1:]  # slices: numpy warns when a scalar wraps around
    return shifted


def _square(polynomial: Words) -> Words:
    wide = np.zeros(2 * LENGTH, dtype=np.uint64)
    for at, factor in enumerate(polynomial):
        wide[at : at + LENGTH] += factor * polynomial
    for at in range(2 * LENGTH - 1, LENGTH - 1, -1):
        top = wide[at : at + 1]
        wide[at - LENGTH : at - LENGTH + 1] += top
        wide[at - TAP : at - TAP + 1] += top
    return wide[:LENGTH]
