"""The bound against its definition: the mean of the log-likelihood over all orders of decoding."""

import itertools
import zlib
from functools import partial
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax.evaluation import likelihood
from llada_jax.evaluation.likelihood import (
    MaskedTokens,
    drawn_patterns,
    estimated_likelihoods,
    every_pattern,
    greedy_answers,
    log_likelihoods,
    mask_counts,
    mask_patterns,
    padded,
    score_masked,
)
from llada_jax.model.params import ModelParams

GOLDENS = Path(__file__).parents[1] / "goldens"
MASK = 3
TOY = lj.ModelConfig(
    family="toy", vocab_size=4, width=1, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=2,
    ffn_width=1, rope_theta=1.0, norm_eps=1e-6, max_length=64, mask_id=MASK,
)  # fmt: skip
JOINT = np.random.default_rng(5).dirichlet(np.ones(3**4)).reshape(3, 3, 3, 3)


def whim(visible, position, token):
    """A log-probability that depends on every visible token; no joint distribution has it."""
    return -0.1 - zlib.crc32(repr((visible, position, token)).encode()) % 1000 / 300


def conditional(visible, position, token):
    """log p(token | visible) of one joint distribution of four tokens."""
    table = JOINT[tuple(slice(None) if seen == MASK else seen for seen in visible)]
    axis = sum(seen == MASK for seen in visible[:position])
    return float(np.log(table.take(token, axis=axis).sum() / table.sum()))


def scorer(log_probability):
    def score(tokens, live, masked):
        canvases = [tuple(row[there].tolist()) for row, there in zip(tokens, live, strict=True)]
        return np.array(
            [log_probability(canvases[r], int(p), int(t)) for r, p, t in zip(*masked, strict=True)]
        )

    return score


def bounds(log_probability, pairs, config=TOY, **settings):
    """`log_likelihoods` of whatever gives log-probabilities; a toy has no parameters."""
    return estimates_of(log_probability, pairs, config, **settings).value


def estimates_of(log_probability, pairs, config=TOY, **settings):
    score = scorer(log_probability)
    with patch.object(likelihood, "score_masked", lambda params, config, *masked: score(*masked)):
        return estimated_likelihoods((), config, pairs, **settings)


def over_all_orders(log_probability, prompt, answer):
    """By the definition: one token a step, every order equally likely."""
    total, orders = 0.0, list(itertools.permutations(range(len(answer))))
    for order in orders:
        canvas = [*prompt, *[MASK] * len(answer)]
        for index in order:
            position = len(prompt) + index
            total += log_probability(tuple(canvas), position, answer[index])
            canvas[position] = answer[index]
    return total / len(orders)


@pytest.mark.parametrize("length", range(1, 6))
@pytest.mark.parametrize("prompt", [(), (2, 0)])
def test_all_patterns_give_the_mean_over_all_orders(prompt, length):
    answer = (0, 1, 2, 2, 0)[:length]
    (found,) = bounds(whim, [(prompt, answer)], mc_num=31, batch_size=4)
    assert found == pytest.approx(over_all_orders(whim, prompt, answer), rel=1e-12)


@pytest.mark.parametrize("mc_num", [1, 2, 5, 7])
@pytest.mark.parametrize("length", [2, 5])
def test_the_estimate_is_unbiased(length, mc_num):
    """Its expectation, by enumerating every offset, draw and set of masked tokens."""
    answer = (0, 1, 2, 2, 0)[:length]

    def masked_sum(holes):
        canvas = tuple(MASK if i in holes else token for i, token in enumerate(answer))
        return sum(whim(canvas, i, answer[i]) for i in holes)

    def draw(count):
        sets = list(itertools.combinations(range(length), count))
        return length / count * sum(map(masked_sum, sets)) / len(sets)

    draws = [draw(c) for o in range(length) for c in mask_counts(length, mc_num, o)]
    assert np.mean(draws) == pytest.approx(over_all_orders(whim, (), answer), rel=1e-12)


@pytest.mark.parametrize("answer", [(0, 1, 2, 0), (2, 2, 2, 2)])
def test_the_bound_is_tight_if_all_conditionals_are_of_one_distribution(answer):
    (found,) = bounds(conditional, [((), answer)])
    assert found == pytest.approx(np.log(JOINT[answer]), rel=1e-12)


def test_many_draws_come_close_to_all_patterns():
    pair = ((2, 0), (0, 1, 2, 2, 0, 1, 1, 0, 2))
    exact, few, many = (bounds(whim, [pair], mc_num=mc_num)[0] for mc_num in (511, 9, 500))
    assert few != exact
    # Nine strata of 55 draws each: the error is well below one draw's error over sqrt(500).
    assert many == pytest.approx(exact, abs=0.25)


def test_standard_errors_match_the_scatter_over_seeds():
    pair = ((2, 0), (0, 1, 2, 2, 0, 1, 1, 0, 2))
    estimates = [estimates_of(whim, [pair], mc_num=24, seed=seed) for seed in range(60)]
    values, errors = (np.array(part)[:, 0] for part in zip(*estimates, strict=True))
    assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.3)
    assert estimates_of(whim, [pair], mc_num=511).error.tolist() == [0], "exact"
    assert np.isnan(estimates_of(whim, [pair], mc_num=1).error), "one draw tells nothing"


def greedy_token(visible, position):
    """The most probable token of `whim` and its probability."""
    return max((whim(visible, position, token), -token) for token in range(3))


def decoded(prompt, length):
    """Greedy answer: the most confident token first."""
    canvas = [*prompt, *[MASK] * length]
    while MASK in canvas:
        masked = [i for i, token in enumerate(canvas) if token == MASK]
        best = [greedy_token(tuple(canvas), i) for i in masked]
        at = max(range(len(masked)), key=lambda i: best[i][0])
        canvas[masked[at]] = -best[at][1]
    return tuple(canvas[len(prompt) :])


def predictor(params, config, tokens, live, masked):
    canvases = [tuple(row[there].tolist()) for row, there in zip(tokens, live, strict=True)]
    best = [greedy_token(canvases[r], int(p)) for r, p, _ in zip(*masked, strict=True)]
    return np.array([-token for _, token in best]), np.exp([log_p for log_p, _ in best])


@pytest.mark.parametrize("block_length", [None, 4])
def test_only_the_greedy_answer_is_greedy(block_length):
    config = TOY.replace(block_length=block_length)
    prompts = [(2, 0, 1), (0, 1), (1,)]
    pairs = []
    for prompt in prompts:
        if block_length:  # up to the end of the block, then the next block
            first = decoded(prompt, 4 - len(prompt))
            pairs.append((prompt, first + decoded(prompt + first, 3)))
        else:
            pairs.append((prompt, decoded(prompt, 5)))
    others = [(p, (*a[:-1], (a[-1] + 1) % 3)) for p, a in pairs]
    with patch.object(likelihood, "predict_masked", predictor):
        found = greedy_answers((), config, [*pairs, *others], batch_size=2)
    assert found.tolist() == [True] * 3 + [False] * 3


def test_a_block_causal_answer_is_scored_block_by_block():
    config = TOY.replace(block_length=4)
    prompt, answer = (0, 1), (2, 0, 1, 1, 2, 2, 0)  # blocks: two, four and one token
    found = bounds(whim, [(prompt, answer)], config)[0]
    parts = [(prompt, (2, 0)), ((0, 1, 2, 0), (1, 1, 2, 2)), ((0, 1, 2, 0, 1, 1, 2, 2), (0,))]
    assert found == pytest.approx(sum(over_all_orders(whim, *part) for part in parts), rel=1e-12)


@pytest.mark.parametrize("family", ["llada-gqa", "dream"])
def test_the_bound_of_a_model_matches_the_definition(family):
    model = lj.load(GOLDENS / family)
    mask_id = model.config.mask_id or 319
    model = model.replace(config=model.config.replace(mask_id=mask_id))
    prompt, answer = (5, 6, 7), (8, 9, 10)

    def log_probability(visible, position, token):
        canvas = [mask_id if seen == MASK else seen for seen in visible]
        logits = lj.forward(model, [canvas])[0, position - model.config.shift_logits]
        return float(jax.nn.log_softmax(logits)[token])

    found = log_likelihoods(model.params, model.config, [(prompt, answer)])[0]
    assert found == pytest.approx(over_all_orders(log_probability, prompt, answer), rel=1e-5)


def test_likelihoods_of_an_autoregressive_model_are_sums_over_its_tokens():
    model = lj.load(GOLDENS / "ar-llama")
    prompts, answers = ([5, 6], [7]), ([8, 9, 10, 11, 12, 13, 14, 15, 16], [17, 18])
    pairs = [*zip(prompts, answers, strict=True)]
    found = log_likelihoods(model.params, model.config, pairs, batch_size=3)
    for (prompt, answer), value in zip(pairs, found, strict=True):
        logits = lj.forward(model, [[*prompt, *answer]])[0, len(prompt) - 1 : -1]
        log_p = jax.nn.log_softmax(logits)[jnp.arange(len(answer)), jnp.asarray(answer)]
        assert value == pytest.approx(float(log_p.sum()), rel=1e-5)
    best = int(logits[0].argmax())
    asked = [(prompts[1], [best]), (prompts[1], [best ^ 1]), (prompts[1], [best, best ^ 1, best])]
    assert greedy_answers(model.params, model.config, asked, batch_size=3).tolist() == [
        True,
        False,
        False,
    ]
    with pytest.raises(ValueError, match="prompt 0 is empty; allowed: 1 token or more"):
        log_likelihoods(model.params, model.config, [([], [2])])
    beyond = rf"have id \[{model.config.vocab_size}\]; allowed: 0 to {model.config.vocab_size - 1}$"
    with pytest.raises(ValueError, match=beyond):
        log_likelihoods(model.params, model.config, [([1], [model.config.vocab_size])])


@pytest.fixture(scope="module")
def tiny():
    return lj.load("tiny")


PAIRS = [([20, 30, 40], [50, 60]), (list(range(30, 38)), list(range(40, 52))), ([25], [33])]


@pytest.mark.slow
def test_the_answer_of_one_token_a_forward_is_greedy(tiny):
    plain = lj.SamplerConfig.from_flat(gen_length=8, block_length=8, steps=8)
    answer = lj.generate(tiny, [[20, 30, 40]], plain).generated[0].tolist()
    pairs = [([20, 30, 40], answer), ([20, 30, 40], [*answer[1:], answer[0] ^ 64])]
    assert greedy_answers(tiny.params, tiny.config, pairs).tolist() == [True, False]


@pytest.fixture(scope="module")
def together(tiny):
    return log_likelihoods(tiny.params, tiny.config, PAIRS, mc_num=20, batch_size=16)


def test_likelihoods_do_not_depend_on_the_batch_size(tiny, together):
    found = log_likelihoods(tiny.params, tiny.config, PAIRS, mc_num=20, batch_size=3)
    np.testing.assert_allclose(found, together, rtol=1e-5)


def test_likelihoods_do_not_depend_on_other_pairs(tiny, together):
    for pair, value in zip(PAIRS, together, strict=True):
        alone = log_likelihoods(tiny.params, tiny.config, [pair], mc_num=20)[0]
        assert alone == pytest.approx(value, rel=1e-5)


def test_likelihoods_do_not_depend_on_padding(tiny):
    score = partial(score_masked, tiny.params, tiny.config)
    masked = MaskedTokens(np.array([0, 0]), np.array([1, 4]), np.array([30, 60]))
    tokens = np.array([[20, tiny.config.mask_id, 40, 50, tiny.config.mask_id]], np.int32)
    live = np.ones((1, 5), bool)
    bare = score(tokens, live, masked)
    for filling in (0, 77):
        wide = np.pad(tokens, ((0, 0), (0, 11)), constant_values=filling)
        np.testing.assert_allclose(
            score(wide, np.pad(live, ((0, 0), (0, 11))), masked), bare, rtol=1e-5
        )


def test_the_right_answer_is_likelier_than_a_wrong_one(tiny):
    tokenizer = tiny.tokenizer
    question = "Anna had 4 apples. She bought 5 more apples. How many apples did Anna have?"
    prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
    pairs = [(prompt, tokenizer.encode(f"4+5={total}")) for total in (9, 3)]
    right, wrong = log_likelihoods(tiny.params, tiny.config, pairs)
    assert wrong < right - 2 and right < 0


def test_log_probabilities_are_the_softmax(tiny):
    states = jax.random.normal(jax.random.key(0), (2, 3, tiny.config.width), jnp.float32)
    row, position, token = jnp.asarray([[0, 0, 1, 1], [0, 2, 1, 0], [0, 511, 100, 99]], jnp.int32)
    expected = jax.nn.log_softmax(states[row, position] @ tiny.params.head.T)[jnp.arange(4), token]
    found = likelihood._log_probabilities(tiny.params, states, row, position, token)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_no_array_of_rows_and_vocabulary_exists():
    vocab, rows = 126_464, 64
    head = jax.ShapeDtypeStruct((vocab, 8), jnp.bfloat16)
    params = ModelParams(head, (), jax.ShapeDtypeStruct((8,), jnp.bfloat16), head)
    states = jax.ShapeDtypeStruct((1, rows, 8), jnp.bfloat16)
    places = [jax.ShapeDtypeStruct((rows,), jnp.int32)] * 3
    program = likelihood._log_probabilities.lower(params, states, *places).compile()
    assert program.memory_analysis().temp_size_in_bytes < rows * vocab * 4 / 4


@given(st.integers(1, 5000))
def test_padded_lengths_are_few_and_close(length):
    assert length <= padded(length) <= max(length * 1.25, length + 7)
    assert padded(padded(length)) == padded(length)


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([([1], [2]), ([1], [])], {}, "answer 1 is empty; allowed: 1 token or more"),
        ([([1], [2])], {"mc_num": 0}, "mc_num is 0; allowed: 1 or more"),
        ([([1], [2])], {"batch_size": 0}, "batch_size is 0; allowed: 1 or more"),
        ([([1], [512])], {}, r"prompt and answer 0 have id \[512\]; allowed: 0 to 511"),
        ([([3], [2])], {}, r"have id \[3\]; allowed: 0 to 511, without \[MASK\] \(3\)"),
        ([([1] * 500, [2] * 13)], {}, "answer 0 has 513 tokens; allowed: up to 512"),
    ],
)
def test_bad_input_is_refused(tiny, pairs, options, message):
    with pytest.raises(ValueError, match=message):
        log_likelihoods(tiny.params, tiny.config, pairs, **options)


def test_models_without_a_likelihood_are_refused(tiny):
    with pytest.raises(ValueError, match="mask_id is not set by the model's configuration"):
        log_likelihoods(tiny.params, tiny.config.replace(mask_id=None), [([1], [2])])
    with pytest.raises(ValueError, match=r"no parameters \(it is an export\)"):
        log_likelihoods(None, tiny.config, [([1], [2])])
    with pytest.raises(ValueError, match="prompt 0 is empty; allowed: 1 token or more"):
        log_likelihoods(tiny.params, tiny.config.replace(shift_logits=True), [([], [2])])


lengths = st.integers(1, 200)
budgets = st.integers(1, 300)


@given(lengths, budgets, st.data())
def test_every_count_is_drawn_equally_often(length, mc_num, data):
    offset = data.draw(st.integers(0, length - 1))
    times = np.bincount(mask_counts(length, mc_num, offset), minlength=length + 1)
    assert times[0] == 0 and times.sum() == mc_num
    assert set(times[1:]) <= {mc_num // length, -(-mc_num // length)}


@given(st.integers(1, 60), st.integers(1, 60))
def test_each_draw_is_uniform_over_the_offsets(length, mc_num):
    drawn = np.stack([mask_counts(length, mc_num, offset) for offset in range(length)])
    assert (np.sort(drawn, axis=0) == np.arange(1, length + 1)[:, None]).all()


@given(st.integers(8, 64), st.integers(1, 100), st.integers(0, 2**31))
def test_drawn_patterns_are_the_counts_with_their_weights(length, mc_num, seed):
    patterns = drawn_patterns(length, mc_num, np.random.default_rng(seed))
    counts = patterns.masked.sum(axis=1)
    assert len(np.unique(patterns.masked, axis=0)) == len(counts) <= mc_num
    times = patterns.weights * counts * mc_num / length
    np.testing.assert_allclose(times, times.round())
    offsets = [np.sort(mask_counts(length, mc_num, offset)) for offset in range(length)]
    drawn = np.sort(np.repeat(counts, times.round().astype(int)))
    assert any(np.array_equal(drawn, offset) for offset in offsets)


def test_drawn_weights_average_to_the_exact_ones():
    exact = every_pattern(3)
    mean = dict.fromkeys(map(bytes, exact.masked), 0.0)
    runs = 4000
    for seed in range(runs):
        for masked, weight in zip(*drawn_patterns(3, 5, np.random.default_rng(seed)), strict=True):
            mean[bytes(masked)] += weight / runs
    # A weight varies by less than its largest value, 3 / 1, so its mean by less than 0.05.
    np.testing.assert_allclose([mean[bytes(m)] for m in exact.masked], exact.weights, atol=0.05)


@pytest.mark.parametrize(("length", "mc_num", "is_exact"), [(7, 127, True), (7, 126, False)])
def test_all_patterns_are_used_if_there_are_few(length, mc_num, is_exact):
    patterns = mask_patterns(length, mc_num, 0)
    assert (len(patterns.masked) == 127) == is_exact
    assert len(patterns.masked) <= mc_num


def test_one_token_needs_one_forward():
    patterns = mask_patterns(1, 128, 0)
    assert patterns.masked.tolist() == [[True]] and patterns.weights.tolist() == [1.0]


def test_equal_seeds_give_equal_patterns():
    one, same, other = (mask_patterns(20, 32, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.masked, same.masked)
    assert not np.array_equal(one.masked, other.masked)
