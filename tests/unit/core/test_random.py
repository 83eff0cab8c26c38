"""Counted randomness: the same numbers in plain Python, NumPy and torch, and random enough."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from vitlab.core.random import bits, key, normal, permutation, uniform, uniform_at

WORD = (1 << 32) - 1


def reference(run_key: int, counter: int, draw: int) -> int:
    """The hash as its definition reads: lowbias32 of the counter's two words and the draw, one after the other."""

    def mix(x: int) -> int:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            x = (x ^ x >> shift) * factor & WORD
        return x ^ x >> 16

    return mix(mix(mix(counter & WORD ^ run_key) ^ counter >> 32) ^ mix(draw + 0x05EBCA6B & WORD))


@given(
    seed=st.integers(0, 2**63 - 1),
    counters=st.lists(st.integers(0, 2**60), min_size=1, max_size=5),
    draws=st.lists(st.integers(0, 2**20), min_size=1, max_size=4),
)
def test_python_numpy_and_torch_agree(seed: int, counters: list[int], draws: list[int]):
    run_key = key(seed, "test")
    array, tensor = np.array(counters), torch.tensor(counters)
    expected = np.array([[reference(run_key, counter, draw) for draw in draws] for counter in counters])
    assert np.array_equal(bits(run_key, array[:, None], np.array(draws)), expected)
    assert np.array_equal(bits(run_key, tensor[:, None], torch.tensor(draws)).numpy(), expected)
    assert np.array_equal(bits(torch.tensor(run_key), tensor, draws[0]).numpy(), expected[:, 0])
    numbers = uniform(run_key, array, draws[0])
    assert numbers.dtype == np.float32
    assert np.array_equal(uniform(run_key, tensor, draws[0]).numpy(), numbers)
    assert [uniform_at(run_key, counter, draws[0]) for counter in counters] == numbers.tolist()
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_numbers_are_uniform_over_counters_draws_and_keys():
    over_counters = uniform(key(0, "a"), np.arange(4000))
    over_draws = uniform(key(0, "a"), np.array([5]), np.arange(4000))
    over_keys = np.array([uniform_at(key(0, "a", epoch), 5) for epoch in range(4000)])
    for sample in (over_counters, over_draws, over_keys):
        assert stats.kstest(sample, "uniform").pvalue > 0.01
        assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 0.05


@given(seed=st.integers(0, 2**40), num=st.integers(1, 300))
def test_permutations_hold_every_number_once(seed: int, num: int):
    order = permutation(key(seed, "order", 0), num)
    assert sorted(order.tolist()) == list(range(num))


def test_keys_tell_their_parts_apart():
    keys = {key(seed, what, epoch) for seed in range(10) for what in ("order", "augment") for epoch in range(50)}
    assert len(keys) == 1000
    assert key("ab", "c") != key("a", "bc")


def test_normal_numbers_are_counted_and_normal() -> None:
    found = normal(key(0, "noise"), torch.arange(4000), 6)
    assert found.shape == (4000, 6)
    assert torch.equal(normal(key(0, "noise"), torch.tensor([17, 3]), 6), found[[17, 3]])
    assert torch.equal(normal(key(0, "noise"), torch.arange(4), 3), found[:4, :3])
    assert stats.kstest(found.numpy().ravel(), "norm").pvalue > 0.01
    off = np.corrcoef(found.numpy().T) - np.eye(6)
    assert abs(off).max() < 0.06
    assert not torch.equal(normal(key(1, "noise"), torch.arange(4), 3), found[:4, :3])
