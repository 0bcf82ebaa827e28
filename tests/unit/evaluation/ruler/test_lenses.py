"""RULER's lenses against a double loop over the definitions, against geometry made by hand, and by their invariants."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evaluation.ruler import lenses, nearest
from evaluation.ruler.lenses import (
    BLOCK_SIZE,
    calibration_gap,
    cosine,
    oracle_similarity,
    percentile_rank,
    representation_shift,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def looped_cosine(x: np.ndarray, y: np.ndarray) -> float:
    x, y = [float(v) for v in x], [float(v) for v in y]
    dot = math.fsum(a * b for a, b in zip(x, y, strict=True))
    return dot / math.sqrt(math.fsum(a * a for a in x)) / math.sqrt(math.fsum(b * b for b in y))


def looped_ranks(forget: np.ndarray, retain: np.ndarray) -> tuple[list[float], list[float], list[float]]:
    """s_f, s_r and R by their definitions; similarities closer than 1e-10 are ties."""
    s_f = [max(looped_cosine(x, r) for r in retain) for x in forget]
    s_r = [max(looped_cosine(r, o) for j, o in enumerate(retain) if j != i) for i, r in enumerate(retain)]
    ranks = [sum(0.5 if abs(s - x) < 1e-10 else float(s < x) for s in s_r) / len(s_r) for x in s_f]
    return s_f, s_r, ranks


@pytest.mark.parametrize(("n", "m", "dim"), [(1, 2, 3), (7, 5, 4), (20, 70, 6), (70, 20, 2), (3, 66, 1)])
def test_every_lens_agrees_with_a_double_loop(n: int, m: int, dim: int) -> None:
    u, o, original = normal(n, dim, seed=1), normal(n, dim, seed=2), normal(n, dim, seed=3)
    u_r, o_r = normal(m, dim, seed=4), normal(m, dim, seed=5)
    after = [looped_cosine(a, b) for a, b in zip(u, o, strict=True)]
    before = [looped_cosine(a, b) for a, b in zip(original, o, strict=True)]
    retained = sorted(looped_cosine(a, b) for a, b in zip(u_r, o_r, strict=True))
    median = (retained[(m - 1) // 2] + retained[m // 2]) / 2
    np.testing.assert_allclose(cosine(u, o), after, atol=1e-12)
    assert oracle_similarity(u, o) == pytest.approx(sum(after) / n, abs=1e-12)
    assert calibration_gap(u, o, u_r, o_r) == pytest.approx(sum(after) / n - median, abs=1e-12)
    assert representation_shift(original, u, o) == pytest.approx((sum(after) - sum(before)) / n, abs=1e-12)
    s_f, s_r, ranks = looped_ranks(u, u_r)
    got = percentile_rank(u, u_r)
    np.testing.assert_allclose(got.forget_similarity, s_f, atol=1e-11)
    np.testing.assert_allclose(got.retain_similarity, s_r, atol=1e-11)
    np.testing.assert_allclose(got.ranks, ranks, atol=1e-12)
    assert got.mean == pytest.approx(sum(ranks) / n)


@given(
    st.integers(1, 4).flatmap(
        lambda dim: st.tuples(
            *(
                arrays(np.float32, st.tuples(st.integers(least, 9), st.just(dim)), elements=st.integers(-2, 2))
                for least in (1, 2)
            )
        )
    )
)
@settings(max_examples=50, deadline=None)
def test_ranks_of_small_whole_numbers_with_many_ties(pair: tuple[np.ndarray, np.ndarray]) -> None:
    forget, retain = (np.where(np.any(a, axis=1, keepdims=True), a, 1) for a in pair)
    got = percentile_rank(forget, retain)
    np.testing.assert_allclose(got.ranks, looped_ranks(forget, retain)[2], atol=1e-12)


@given(
    arrays(
        np.float64,
        (3, 4),
        elements=st.floats(1e-3, 1e3, allow_subnormal=False) | st.floats(-1e3, -1e-3, allow_subnormal=False),
    )
)
@settings(max_examples=50, deadline=None)
def test_cosine_is_symmetric_bounded_and_one_for_equal_rows(rows: np.ndarray) -> None:
    other = rows[::-1].copy()
    np.testing.assert_array_equal(cosine(rows, other), cosine(other, rows))
    assert (np.abs(cosine(rows, other)) <= 1).all()
    np.testing.assert_array_equal(cosine(rows, rows), np.ones(3))


def test_no_cosine_of_parallel_rows_is_above_one() -> None:
    """Rounding makes every tenth of these one."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 5))
    found = cosine(rows, rows * rng.uniform(0.1, 10, size=(2000, 1)))
    assert found.max() <= 1 and found.min() == pytest.approx(1, abs=1e-12)
    assert cosine(rows, -3 * rows).min() >= -1


def test_cosines_of_a_known_angle() -> None:
    a = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    b = np.array([[0.0, 5.0], [2.0, 2.0], [-1.0, 0.0], [4.0, 3.0]])
    np.testing.assert_allclose(cosine(a, b), [0.0, math.sqrt(0.5), -1.0, 0.96], atol=1e-15)


def test_a_copy_of_a_retained_record_ranks_first_where_the_others_are_far_apart() -> None:
    retain = np.eye(5)
    got = percentile_rank(np.stack([7 * retain[2], np.ones(5)]), retain)
    np.testing.assert_array_equal(got.retain_similarity, np.zeros(5))
    np.testing.assert_allclose(got.forget_similarity, [1.0, 5**-0.5], atol=1e-8)
    np.testing.assert_array_equal(got.ranks, [1.0, 1.0])


def test_ranks_of_angles_made_by_hand() -> None:
    def at(*degrees: float) -> np.ndarray:
        return np.array([[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees])

    # Nearest other retained record at 10, 10, 20, 40 degrees; forgotten ones at 5, 20, 15 and 90 from the nearest.
    retain = at(0, 10, 30, 70)
    got = percentile_rank(at(5, 50, 15 + 70, 160), retain)
    np.testing.assert_array_equal(got.ranks, [1.0, (1 + 2 * 0.5 / 2) / 4, 0.5, 0.0])


def test_equal_records_tie_and_count_half() -> None:
    retain = np.repeat(normal(3, 8), 2, axis=0)
    got = percentile_rank(retain[:1], retain)
    np.testing.assert_array_equal(got.retain_similarity, np.ones(6))
    np.testing.assert_array_equal(got.ranks, [0.5])
    assert percentile_rank(np.ones((4, 3)), np.ones((9, 3))).mean == 0.5


def test_random_records_rank_in_the_middle_on_average() -> None:
    means = [percentile_rank(normal(40, 16, seed=2 * i), normal(200, 16, seed=2 * i + 1)).mean for i in range(60)]
    error = np.std(means, ddof=1) / math.sqrt(len(means))
    # The nearest of 200 for a forgotten record, of 199 for a retained one: a bias of the order of 1/(2 * 200).
    assert abs(np.mean(means) - 0.5) < 3 * error + 0.004
    assert 3 * error < 0.03


def test_nearer_and_further_records_rank_above_and_below() -> None:
    retain = normal(300, 12)
    near, far = retain[:50] + 0.01 * normal(50, 12, seed=1), normal(50, 12, seed=2)
    far[:, 0] = 0
    outward = np.concatenate([retain, np.zeros((300, 1))], axis=1)
    away = np.concatenate([far, np.full((50, 1), 20.0)], axis=1)
    assert percentile_rank(near, retain).mean > 0.95
    assert percentile_rank(away, outward).mean < 0.05


def duplicated(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Records of which most occur many times, in an order that spreads the copies over all blocks, float32."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(90, 33)).astype(np.float32)
    return base[rng.integers(0, 90, 230)], np.concatenate([base[rng.integers(0, 60, 400)], base[60:]])


def test_the_block_size_never_changes_a_result() -> None:
    forget, retain = duplicated()
    results = [percentile_rank(forget, retain, size) for size in (1, 64, 100, 128, 192, 256, 1024)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(before, 2))
        results.append(percentile_rank(forget, retain, 256))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        np.testing.assert_array_equal(other.ranks, results[0].ranks)
        np.testing.assert_array_equal(other.forget_similarity, results[0].forget_similarity)
        np.testing.assert_array_equal(other.retain_similarity, results[0].retain_similarity)
    # Every forgotten record has a copy among the retained ones; a retained one, if its base was drawn twice.
    _, inverse, counts = np.unique(retain, axis=0, return_inverse=True, return_counts=True)
    twice = counts[inverse.ravel()] > 1
    np.testing.assert_array_equal(results[0].forget_similarity, np.ones(230))
    np.testing.assert_array_equal(results[0].retain_similarity == 1, twice)
    np.testing.assert_allclose(results[0].ranks, (~twice).mean() + twice.mean() / 2, atol=1e-15)


def test_collapsed_representations_are_ranked_as_exactly_as_others() -> None:
    """All records within 1e-4 of one direction: float32 products cannot tell their cosines apart."""
    records = 1 + 1e-4 * normal(260, 40)
    forget, retain = records[:60], records[60:]
    units = records / np.linalg.norm(records, axis=1, keepdims=True)
    distances = np.linalg.norm(units[:, None] - units[None, 60:], axis=2)
    distances[np.arange(60, 260), np.arange(200)] = np.inf
    got = [percentile_rank(forget, retain, size) for size in (64, 128, 1024)]
    np.testing.assert_array_equal(got[0].ranks, got[1].ranks)
    np.testing.assert_array_equal(got[0].ranks, got[2].ranks)
    expected = 1 - distances.min(1) ** 2 / 2
    np.testing.assert_allclose(got[0].forget_similarity, expected[:60], atol=2e-11)
    np.testing.assert_allclose(got[0].retain_similarity, expected[60:], atol=2e-11)
    assert np.corrcoef(got[0].retain_similarity, expected[60:])[0, 1] > 0.9999


def clusters(spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Records around six centres, float32."""
    rng = np.random.default_rng(8)
    records = rng.normal(size=(6, 50))[rng.integers(0, 6, 500)] + spread * rng.normal(size=(500, 50))
    return records[:200].astype(np.float32), records[200:].astype(np.float32)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4, 1e-6, 0.0])
def test_the_blocks_never_lose_the_nearest_record(spread: float) -> None:
    """Against the whole matrix of cosines at once."""
    forget, retain = clusters(spread)
    unit_f, unit_r = (
        x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1)[:, None] for x in (forget, retain)
    )
    own = unit_r @ unit_r.T
    np.fill_diagonal(own, -np.inf)
    for size in (64, 90, 128, 300, 1024):
        got = percentile_rank(forget, retain, size)
        np.testing.assert_allclose(got.forget_similarity, (unit_f @ unit_r.T).max(1), atol=1e-10, rtol=0)
        np.testing.assert_allclose(got.retain_similarity, own.max(1), atol=1e-10, rtol=0)


def test_blocks_shrink_until_they_fit_into_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for dim in (1, 768, 4096, 16384, 2**20, 2**25):
        for size in (1, 64, BLOCK_SIZE, 8192, 10**6):
            rows = nearest.block_rows(size, dim)
            assert 1 <= rows <= max(size, 64)
            assert rows == 1 or nearest.block_bytes(rows, dim) <= nearest.MEMORY <= 2**30
            assert rows == max(size, 64) or nearest.block_bytes(2 * rows + 1, dim) > nearest.MEMORY
    assert nearest.block_rows(BLOCK_SIZE, 16384) == BLOCK_SIZE, "no model's width makes blocks smaller"
    with monkeypatch.context() as patch:
        patch.setattr(nearest, "MEMORY", nearest.block_bytes(64, 33))
        assert nearest.block_rows(64, 33) == 64, "what just fits is not cut"
    expected = percentile_rank(*duplicated())
    monkeypatch.setattr(nearest, "MEMORY", nearest.block_bytes(40, 33))
    seen: list[int] = []
    blocks = nearest.unit_blocks
    monkeypatch.setattr(nearest, "unit_blocks", lambda records, size: seen.append(size) or blocks(records, size))
    np.testing.assert_array_equal(percentile_rank(*duplicated()).ranks, expected.ranks)
    assert set(seen) == {32}


def test_a_block_takes_no_more_memory_than_told() -> None:
    """What torch allocates at the same time, by its own count."""
    forget, retain = (torch.from_numpy(normal(700, 300, seed=i)) for i in range(2))
    for size in (100, 350, 700):
        with torch.profiler.profile(profile_memory=True) as profile:
            nearest.nearest_similarities(forget, retain, size)
        held = most = 0
        for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
        results = 2 * 8 * 1400
        assert 8 * size * size < most <= nearest.block_bytes(size, 300) + results


def test_lens_2_ignores_lengths_and_rotations() -> None:
    forget, retain = normal(40, 10, seed=1), normal(90, 10, seed=2)
    expected = percentile_rank(forget, retain)
    lengths = np.random.default_rng(0).uniform(0.01, 100, 130)[:, None]
    rotation = np.linalg.qr(normal(10, 10, seed=3))[0]
    for change in (lambda x, part: x * lengths[part], lambda x, part: x @ rotation):
        got = percentile_rank(change(forget, slice(0, 40)), change(retain, slice(40, 130)))
        np.testing.assert_array_equal(got.ranks, expected.ranks)
        np.testing.assert_allclose(got.retain_similarity, expected.retain_similarity, atol=1e-7)


def test_lens_1_ignores_lengths_but_not_a_rotation_of_one_model() -> None:
    u, o = normal(30, 6, seed=1), normal(30, 6, seed=2)
    assert oracle_similarity(u * np.arange(1, 31)[:, None], o) == pytest.approx(oracle_similarity(u, o), abs=1e-14)
    assert oracle_similarity(u, u) == 1
    assert oracle_similarity(u, -u) == -1
    assert oracle_similarity(u, u @ np.linalg.qr(normal(6, 6, seed=3))[0]) < 0.7


def test_the_gap_is_zero_where_forget_and_retain_records_are_the_same() -> None:
    # With symmetric similarities mean and median agree: angles of 10, 20, ..., 50 degrees have cosines that do not;
    # one angle, and pairs around the middle, do.
    u, o = normal(7, 5, seed=1), normal(7, 5, seed=2)
    assert calibration_gap(u[:1], o[:1], u[:1], o[:1]) == 0
    cosines = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    u, o = np.tile([1.0, 0.0], (5, 1)), np.stack([cosines, np.sqrt(1 - cosines**2)], axis=1)
    assert calibration_gap(u, o, u, o) == pytest.approx(0, abs=1e-15)


def test_the_sign_of_the_gap_and_of_the_shift() -> None:
    o = normal(200, 8, seed=1)
    kept, moved = o + 0.1 * normal(200, 8, seed=2), o + 0.8 * normal(200, 8, seed=3)
    assert calibration_gap(moved[:50], o[:50], kept[50:], o[50:]) < -0.05
    assert calibration_gap(kept[:50], o[:50], moved[50:], o[50:]) > 0.05
    assert representation_shift(moved, kept, o) > 0.05
    assert representation_shift(kept, moved, o) < -0.05
    assert representation_shift(kept, kept, o) == 0


def test_the_gap_uses_the_median() -> None:
    u = np.tile([1.0, 0.0], (3, 1))
    o = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert calibration_gap(u[:1], o[:1], u, o) == 0
    assert calibration_gap(u[:1], o[:1], u[1:], o[1:]) == 1


def test_the_gap_of_independently_retrained_oracles_is_centred_on_zero() -> None:
    """Two models that know none of the forget records: both are the same features, disturbed independently."""
    gaps = []
    for seed in range(80):
        truth = normal(260, 24, seed=1000 + seed)
        first, second = (truth + 0.4 * normal(260, 24, seed=s) for s in (2000 + seed, 3000 + seed))
        gaps.append(calibration_gap(first[:60], second[:60], first[60:], second[60:]))
    error = np.std(gaps, ddof=1) / math.sqrt(len(gaps))
    # Mean less median of one skewed distribution is a little off zero itself.
    skew = cosine(truth + 0.4 * normal(260, 24, seed=1), truth + 0.4 * normal(260, 24, seed=2))
    assert abs(np.mean(gaps)) < 3 * error + abs(skew.mean() - np.median(skew))
    assert 3 * error < 0.01


def test_the_retain_sample_is_drawn_without_replacement_by_its_state() -> None:
    u, o, u_r, o_r = (normal(n, 5, seed=i) for i, n in enumerate((4, 4, 51, 51)))
    drawn = np.random.default_rng(7).choice(51, 20, replace=False)
    expected = calibration_gap(u, o, u_r[drawn], o_r[drawn])
    assert calibration_gap(u, o, u_r, o_r, sample=20, random_state=7) == pytest.approx(expected, abs=1e-15)
    assert calibration_gap(u, o, u_r, o_r, sample=20) == calibration_gap(u, o, u_r, o_r, sample=20, random_state=42)
    whole = calibration_gap(u, o, u_r, o_r)
    assert whole != expected
    assert calibration_gap(u, o, u_r, o_r, sample=51) == calibration_gap(u, o, u_r, o_r, sample=99) == whole


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_arrays_and_tensors_of_any_dtype_give_the_same(dtype: type) -> None:
    forget, retain = normal(30, 9, seed=1).astype(dtype), normal(80, 9, seed=2).astype(dtype)
    exact = percentile_rank(forget.astype(np.float64), retain.astype(np.float64))
    for convert in (np.asarray, torch.from_numpy, np.asfortranarray, lambda a: a.tolist()):
        got = percentile_rank(convert(forget), convert(retain))
        np.testing.assert_array_equal(got.ranks, exact.ranks)
        np.testing.assert_array_equal(got.retain_similarity, exact.retain_similarity)
        assert got.ranks.dtype == np.float64
        assert oracle_similarity(convert(forget), convert(retain[:30])) == oracle_similarity(forget, retain[:30])


def test_bfloat16_read_only_and_tensors_with_gradients() -> None:
    forget, retain = torch.from_numpy(normal(20, 6)).bfloat16(), torch.from_numpy(normal(40, 6, seed=1)).bfloat16()
    expected = percentile_rank(forget.double(), retain.double()).ranks
    np.testing.assert_array_equal(percentile_rank(forget, retain.requires_grad_()).ranks, expected)
    frozen = retain.detach().float().numpy()
    frozen.setflags(write=False)
    np.testing.assert_array_equal(percentile_rank(forget, frozen).ranks, expected)


@pytest.mark.parametrize("factor", [5e-324, 1e-300, 1e300])
def test_lengths_at_the_ends_of_the_range(factor: float) -> None:
    torch.set_flush_denormal(False)  # a run in the same process sets it
    whole = np.array([[1.0, 2.0], [-3.0, 1.0], [2.0, 2.0], [1.0, 3.0]])
    np.testing.assert_array_equal(cosine(whole * factor, whole), np.ones(4))
    got, expected = percentile_rank(whole[:2] * factor, whole[1:] * factor), percentile_rank(whole[:2], whole[1:])
    np.testing.assert_array_equal(got.ranks, expected.ranks)


def test_products_of_reduced_precision_still_give_the_exact_result() -> None:
    forget, retain = duplicated(5)
    expected = percentile_rank(forget, retain)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        got = percentile_rank(forget, retain)
    finally:
        torch.set_float32_matmul_precision(before)
    np.testing.assert_array_equal(got.ranks, expected.ranks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_the_processor_gives() -> None:
    for forget, retain in (duplicated(), (normal(700, 64), normal(900, 64, seed=1))):
        expected = percentile_rank(forget, retain)
        got = percentile_rank(torch.from_numpy(forget).cuda(), torch.from_numpy(retain).cuda())
        np.testing.assert_array_equal(got.ranks, expected.ranks)
        np.testing.assert_array_equal(got.forget_similarity, expected.forget_similarity)
        np.testing.assert_array_equal(got.retain_similarity, expected.retain_similarity)


GOOD = normal(4, 3)
BAD = {
    "record 2 is a zero vector": GOOD * np.array([[1], [1], [0], [1]]),
    "record 1 holds NaN or an infinity": np.where(np.arange(4)[:, None] == 1, np.nan, GOOD),
    "record 3 holds NaN or an infinity": np.where(np.arange(4)[:, None] == 3, -np.inf, GOOD),
    "expected \\(records, dim\\)": GOOD[0],
    "is empty": GOOD[:0],
    "expected floating-point numbers": GOOD.astype(str),
}


@pytest.mark.parametrize(("message", "array"), BAD.items(), ids=list(BAD))
def test_arrays_that_are_refused(message: str, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=f"^forget.*{message}"):
        percentile_rank(array, GOOD)
    with pytest.raises(ValueError, match=f"^retain.*{message}"):
        percentile_rank(GOOD, array)
    with pytest.raises(ValueError, match=message):
        cosine(GOOD, array)
    for place in range(2):
        pair = [GOOD, GOOD]
        pair[place] = array
        with pytest.raises(ValueError, match=message):
            oracle_similarity(*pair)
    for place in range(4):
        four = [GOOD] * 4
        four[place] = array
        with pytest.raises(ValueError, match=message):
            calibration_gap(*four)
    for place in range(3):
        three = [GOOD] * 3
        three[place] = array
        with pytest.raises(ValueError, match=message):
            representation_shift(*three)


def test_shapes_that_do_not_fit_together() -> None:
    for pair in ((GOOD, GOOD[:3]), (GOOD, GOOD[:, :2])):
        with pytest.raises(ValueError, match="has shape"):
            cosine(*pair)
        with pytest.raises(ValueError, match="has shape"):
            representation_shift(pair[1], pair[0], pair[0])
    with pytest.raises(ValueError, match="has shape"):
        calibration_gap(GOOD, GOOD, GOOD, GOOD[:1])
    with pytest.raises(ValueError, match="has shape"):
        calibration_gap(GOOD, GOOD, GOOD[:3], GOOD, sample=2)
    with pytest.raises(ValueError, match=r"dimension 3.*2"):
        calibration_gap(GOOD, GOOD, GOOD[:, :2], GOOD[:, :2])
    with pytest.raises(ValueError, match=r"dimension 3.*2"):
        percentile_rank(GOOD, GOOD[:, :2])
    with pytest.raises(ValueError, match="at least two"):
        percentile_rank(GOOD, GOOD[:1])
    with pytest.raises(ValueError, match="expected floating-point numbers"):
        cosine(torch.ones(2, 2, dtype=torch.complex64), GOOD[:2, :2])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "64"])
def test_sizes_that_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="block_size must be a positive integer"):
        percentile_rank(GOOD, GOOD, block_size=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sample must be a positive integer"):
        calibration_gap(GOOD, GOOD, GOOD, GOOD, sample=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("bad", "what"), [(math.nan, "NaN"), (math.inf, "infinity"), (0.0, "zero vector")])
@pytest.mark.parametrize("place", [0, 2, 3, 7])
def test_a_record_that_is_no_direction_is_found_in_every_block(
    place: int, bad: float, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lenses, "ROWS", 3)
    rows = np.arange(1.0, 17.0).reshape(8, 2)
    rows[place] = bad
    with pytest.raises(ValueError, match=rf"^b: record {place} .*{what}"):
        cosine(np.ones((8, 2)), rows)


def test_arrays_that_nobody_may_write_to_are_read_without_a_warning() -> None:
    rows = np.arange(1.0, 9.0, dtype=np.float32).reshape(4, 2)
    rows.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cosine(rows, rows).tolist() == [1.0] * 4
