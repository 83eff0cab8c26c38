"""The order of training and evaluation: counted, complete, and the same however it is divided."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitlab.core.errors import ConfigError
from vitlab.data.contract import Values
from vitlab.data.loading.order import EvaluationOrder, Order, balanced_weights

orders = st.builds(
    lambda seed, num, repeats, weighted: Order(
        seed, num, repeats=repeats, weights=np.arange(num) % 3 + 0.5 if weighted else None
    ),
    st.integers(0, 2**40),
    st.integers(1, 60),
    st.integers(1, 4),
    st.booleans(),
)


@given(seed=st.integers(0, 2**40), num=st.integers(1, 200), epoch=st.integers(0, 50))
def test_every_epoch_is_a_permutation_of_its_own(seed: int, num: int, epoch: int):
    order = Order(seed, num)
    samples = [order.index(place) for place in range(epoch * num, (epoch + 1) * num)]
    assert sorted(samples) == list(range(num))
    assert order.epoch(epoch * num) == epoch == order.epoch((epoch + 1) * num - 1)
    if num > 20:
        assert samples != order.epoch_order(epoch + 1).tolist()
        assert samples != Order(seed + 1, num).epoch_order(epoch).tolist()


@given(order=orders, step=st.integers(0, 30), part=st.integers(1, 20), world=st.integers(1, 4))
def test_ranks_take_contiguous_parts_of_the_one_stream(order: Order, step: int, part: int, world: int):
    whole, places = order.batch(step, part * world)
    assert places.tolist() == list(range(step * part * world, (step + 1) * part * world))
    assert whole.tolist() == [order.index(int(place)) for place in places]
    parts = [order.batch(step, part * world, rank, world) for rank in range(world)]
    assert np.array_equal(np.concatenate([indices for indices, _ in parts]), whole)
    assert np.array_equal(np.concatenate([places for _, places in parts]), places)


@given(order=orders, step=st.integers(0, 30))
def test_tensors_and_arrays_and_a_pickled_copy_agree(order: Order, step: int):
    indices, places = order.batch(step, 8)
    on_device, its_places = order.device_batch(step, 8, device="cpu")
    assert np.array_equal(on_device.numpy(), indices)
    assert np.array_equal(its_places.numpy(), places)
    copy = pickle.loads(pickle.dumps(order))
    assert np.array_equal(copy.batch(step, 8)[0], indices)


@given(seed=st.integers(0, 2**20), num=st.integers(1, 300), repeats=st.integers(2, 5), epoch=st.integers(0, 3))
def test_repeated_augmentation_repeats_and_never_pairs_a_sample_with_itself(
    seed: int, num: int, repeats: int, epoch: int
):
    order = Order(seed, num, repeats=repeats).epoch_order(epoch).tolist()
    assert len(order) == num
    blocks = num // (4 * repeats)
    counts = Counter(order[: blocks * 4 * repeats])
    assert len(counts) == 4 * blocks
    assert set(counts.values()) <= {repeats}
    assert all(order[p] != order[p ^ 1] for p in range(num // 2 * 2))
    # The samples of an epoch are the first of its plain permutation.
    plain = Order(seed, num).epoch_order(epoch).tolist()
    assert set(counts) == set(plain[: 4 * blocks])


def test_three_repetitions_pair_a_sample_with_three_others():
    order = Order(3, 24, repeats=3).epoch_order(0).tolist()
    for start in (0, 12):
        partners = {(order[p], order[p ^ 1]) for p in range(start, start + 12)}
        assert len(partners) == 12  # four samples, each with each of the other three


def test_weighted_draws_come_in_proportion():
    weights = np.array([0.0, 1.0, 3.0, 0.0, 4.0, 0.0])
    order = Order(5, 6, weights=weights)
    counts = np.bincount(order.span(0, 24000).numpy(), minlength=6)
    assert counts[[0, 3, 5]].sum() == 0
    expected = 24000 * weights / weights.sum()
    chi2 = ((counts - expected)[weights > 0] ** 2 / expected[weights > 0]).sum()
    assert chi2 < 13.8  # two degrees of freedom, p = 0.001
    assert len(order.span(0, 600).view(100, 6).unique(dim=0)) > 50  # epochs differ


def test_weighted_draws_with_repeats_repeat_the_draw():
    order = Order(5, 64, weights=np.ones(64), repeats=4).epoch_order(2).tolist()
    for start in range(0, 64, 16):
        block = Counter(order[start : start + 16])
        assert all(count % 4 == 0 for count in block.values())


def test_balanced_weights_make_classes_alike():
    labels = np.array([0] * 90 + [1] * 9 + [2])
    weights = balanced_weights(Values(labels))
    assert np.allclose([weights[labels == k].sum() for k in range(3)], 1)
    assert np.allclose(balanced_weights(Values(labels), 0.0), 1)
    classes = labels[Order(0, 100, weights=weights).span(0, 9000).numpy()]
    assert np.abs(np.bincount(classes) - 3000).max() < 200
    several = np.array([[1, 0], [1, 1], [1, 0], [0, 0]])  # counts 3 and 1
    assert np.allclose(balanced_weights(Values(several, "several")), [1 / 3, 1, 1 / 3, 1 / 3])
    soft = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.5, 0.5], [0.0, 0.5]])  # 3.5 and 1 in all
    assert np.allclose(balanced_weights(Values(soft, "soft")), [2 / 7, 2 / 7, 2 / 7, 9 / 14, 0.5])
    with pytest.raises(ConfigError, match="labels are numbers to predict"):
        balanced_weights(Values(soft[:, 0], "number"))


@given(num=st.integers(1, 100), part=st.integers(1, 10), world=st.integers(1, 4))
def test_evaluation_counts_each_sample_once(num: int, part: int, world: int):
    order = EvaluationOrder(num, part * world, world)
    seen: list[int] = []
    for step in range(len(order)):
        batches = [order.batch(step, rank) for rank in range(world)]
        assert all(len(indices) == part and indices.max() < num for indices, _ in batches)
        seen += [int(i) for indices, valid in batches for i in indices[valid]]
    assert seen == list(range(num))


def test_bad_orders_are_refused():
    with pytest.raises(ConfigError, match="empty"):
        Order(0, 0)
    with pytest.raises(ConfigError, match="cannot be divided among 3 processes"):
        Order(0, 10).batch(0, 8, 0, 3)
    with pytest.raises(ConfigError, match="one weight per sample"):
        Order(0, 3, weights=[1.0, 2.0])
    with pytest.raises(ConfigError, match="not negative"):
        Order(0, 2, weights=[1.0, -1.0])
    with pytest.raises(ConfigError, match="at least once"):
        Order(0, 2, repeats=0)


@pytest.mark.gpu
def test_the_order_on_a_gpu_is_the_cpus():
    for order in (Order(1, 1000), Order(1, 1000, repeats=3), Order(1, 1000, weights=np.arange(1000))):
        on_gpu, _ = order.device_batch(3, 384, device="cuda")
        assert torch.equal(on_gpu.cpu(), torch.from_numpy(order.batch(3, 384)[0]))


def test_another_order_of_the_same_samples() -> None:
    order = Order(3, 40, repeats=2)
    other = order.another("second")
    assert order.another("second").epoch_order(1).tolist() == other.epoch_order(1).tolist()
    assert order.epoch_order(0).tolist() != other.epoch_order(0).tolist()
    assert order.epoch_order(0).tolist() == Order(3, 40, repeats=2).epoch_order(0).tolist()
    assert np.bincount(other.epoch_order(0), minlength=40).tolist().count(2) == 20
    weighted = Order(3, 40, weights=[1.0] * 4 + [0.0] * 36).another("second")
    assert set(weighted.epoch_order(0).tolist()) <= set(range(4))
