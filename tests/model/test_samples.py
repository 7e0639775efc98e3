"""Answers of one prompt share its blocks: against a pool with reference counts, by hand, and what cannot share."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dse.core.errors import InputError
from dse.model import engine
from dse.model.formulas import capacity
from dse.model.point import Point
from dse.model.records import CHUNKED, CONTINUOUS, STATIC
from dse.model.server import cycle_of
from dse.specs import catalog
from dse.specs.device_and_model import LayerKV
from dse.specs.workload import Workload
from factories import build, compare_with_rows, device, layer, model, sweep_of

#: bytes of a token of Llama 3 8B in 8 bits: 2 x 32 layers x 8 heads x 128
TOKEN = 65_536
H100 = catalog.device("h100")


class BlockPool:
    """Blocks as vLLM's first block manager kept them: counted references, and a copy before a shared one is written."""

    def __init__(self, page):
        self.page, self.users, self.n_made = page, {}, 0

    def new(self):
        self.n_made += 1
        self.users[self.n_made] = 1
        return self.n_made

    def prompt(self, n_tokens):
        """A table of blocks with the tokens of a prompt."""
        return [self.new() for _ in range(-(-n_tokens // self.page))], n_tokens

    def fork(self, sequence):
        for block in sequence[0]:
            self.users[block] += 1
        return list(sequence[0]), sequence[1]

    def append(self, sequence):
        """One token more."""
        table, n_tokens = sequence
        if n_tokens % self.page == 0:
            table.append(self.new())
        elif self.users[table[-1]] > 1:
            self.users[table[-1]] -= 1
            table[-1] = self.new()
        return table, n_tokens + 1

    @property
    def n_blocks(self):
        return sum(users > 0 for users in self.users.values())


def blocks_of_answers(n_answers, samples, n_in, n_out, page):
    """Blocks of so many answers at their last token, which all grow token by token."""
    pool, sequences = BlockPool(page), []
    while len(sequences) < n_answers:
        first = pool.prompt(n_in)
        n = min(samples, n_answers - len(sequences))
        sequences += [first, *(pool.fork(first) for _ in range(n - 1))]
    for _ in range(n_out):
        sequences = [pool.append(sequence) for sequence in sequences]
    return pool.n_blocks


def point(samples=4, quantizer="fp8", on=H100, of="llama3-8b", **work):
    return Point(on, build(of, quantizer), Workload(samples=samples, **work))


@given(st.integers(1, 12), st.integers(2, 6), st.integers(1, 40), st.integers(1, 40), st.integers(1, 18))
@example(8, 4, 16, 1, 16)
@example(8, 4, 17, 1, 16)
def test_the_bytes_of_answers_are_those_of_a_pool_with_counted_references(n_answers, samples, n_in, n_out, page):
    work = {"batch": n_answers, "input_tokens": n_in, "output_tokens": n_out, "page_tokens": page}
    answers = point(samples, of="llama3-8b", admission="paged", **work)
    n_blocks = blocks_of_answers(n_answers, samples, n_in, n_out, page)
    assert engine.evaluate(answers)["kv_bytes"] == n_blocks * page * TOKEN


@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 9))
def test_most_answers_fit_and_one_more_does_not(free, shared, own, samples):
    most = capacity.most_answers(free, shared, own, samples)

    def need(n):
        return (-(-n // samples) if samples > 1 else 1) * shared + n * own

    assert most == 0 or need(most) <= free
    assert need(most + 1) > free


def test_answers_that_fit_by_hand():
    """A pool of 898,912 tokens; 62 of a prompt's 63 blocks of 16 are whole.

    Four answers hold 62 x 16 = 992 tokens once, and each the 8 others and 256 of its own in 17 blocks, 272: 2,080
    tokens. 432 prompts fit, and of the 352 tokens left no prompt: 1,728 answers. Alone each takes 79 blocks, 1,264
    tokens: 711 requests.
    """
    asked = {"input_tokens": 1000, "output_tokens": 256}
    assert engine.evaluate(point(1, **asked))["kv_pool_tokens"] == 898_912
    assert point(1, **asked).max_batch == 898_912 // 1264 == 711
    assert point(4, **asked).max_batch == 4 * (898_912 // 2080) == 1728
    # with six answers more room is saved: 992 + 6 * 272 = 2,624; 342 prompts, and 1,504 tokens: 992 and one answer
    assert point(6, **asked).max_batch == 6 * 342 + 1


def test_a_prompt_is_computed_once_for_all_its_answers():
    """Static batches of 8 and of 10 answers, four to a prompt: two and three prompts, whose time is those of requests;
    a decode step reads the keys and values of every answer."""
    asked = {"input_tokens": 512, "output_tokens": 64, "batching": "static", "model_kind": "ideal"}

    def found(samples, batch):
        return engine.evaluate(point(samples, batch=batch, **asked))

    for batch, n_prompts in ((8, 2), (10, 3)):
        assert found(4, batch)["prefill_s"] == found(1, n_prompts)["prefill_s"]
        assert found(4, batch)["decode_step_s"] == found(1, batch)["decode_step_s"]


def test_cycles_with_several_answers_by_hand():
    """64 answers, four to a prompt: 16 prompts."""
    assert cycle_of(64, 50, 100, 1, STATIC, 1, 4) == (0, 16, 1, 1, 101, 800, 800)
    # whole prompts of 400 tokens in steps of 200: half of one in a step, 32 steps
    assert cycle_of(64, 400, 100, 200, CONTINUOUS, 0, 4) == (0, 0.5, 2, 32, 132, 200, 200)
    # chunked: the other 60 answers, and 200 - 64 - 1 tokens of a prompt of 1,930 in a step
    long = cycle_of(64, 1930, 10_000, 200, CHUNKED, 1, 4)
    assert long[0] == 60
    assert long[1] == pytest.approx(136 / 1930)
    # steps full of tokens: of 199, those of answers are 4 x 100 of the 4 x 100 + 400 that a prompt brings
    full = cycle_of(160, 400, 100, 200, CHUNKED, 1, 4)
    assert full[0] == pytest.approx(199 / 2)
    assert full[3] == pytest.approx(40 / (199 / 2 / 400))


def test_sweeps_count_answers_as_points_do():
    axes = {"device": ["h100", "oaken-hbm"], "model": ["llama3-8b", "mistral-7b"], "model_kind": "auto"}
    each = {"batch": [1, 6, 300], "input_tokens": [100, 5000], "output_tokens": 300, "admission": ["reserve", "paged"]}
    sweep = sweep_of({**axes, **each, "samples": [1, 4, 5], "quantizer": ["fp16", "oaken", "kivi"]})
    assert compare_with_rows(sweep) == 0


WINDOWS = model(layer(n_layers=2, window=64))
STATES = model(layer(window=64), LayerKV(n_layers=2, state_bytes=1000, state_flops=100, state_code="mamba2"))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"admission": "reserve"}, "samples = 4: where each answer reserves its memory"),
        ({"tokens": "h2o"}, "samples = 4: h2o gives up tokens"),
        ({"tokens": "window:tokens=100"}, "samples = 4: window:tokens=100 gives up tokens"),
        ({"quantizer": "kivi"}, "samples = 4: kivi packs groups of tokens"),
        ({"quantizer": "sinkq"}, "samples = 4: sinkq packs groups of tokens"),
        ({"of": WINDOWS, "admission": "paged"}, "samples = 4: toy keeps states or windows"),
        ({"of": STATES, "admission": "paged"}, "samples = 4: toy keeps states or windows"),
    ],
)
def test_what_cannot_share_blocks_says_why_and_what_would_do(changed, why):
    with pytest.raises(InputError, match=why) as said:
        engine.evaluate(point(**changed))
    assert "use " in str(said.value)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("changed", [{"prefix_tokens": 10}, {"kv_cache": False}, {"samples": 0}])
def test_samples_are_checked_on_entry(changed):
    with pytest.raises(InputError, match="samples = "):
        Workload(**{"samples": 4, **changed})


def test_a_chip_that_packs_pages_of_its_own_shares_those_that_a_prompt_fills():
    """Oaken in 4 bits and outliers: with one answer as many fit as without sharing, with four more, and fewer than if
    all of it were shared."""
    asked = {"on": catalog.device("oaken-hbm"), "quantizer": "oaken", "of": "llama2-7b", "admission": "paged"}
    one, four = (point(samples, **asked).max_batch for samples in (1, 4))
    assert one < four < 4 * one


def test_a_toy_model_by_hand():
    """20 tokens in, 12 out, four answers, pages of 16: 16 tokens once and 4 x 16, 80 for 4 x 32."""
    work = {"batch": 4, "input_tokens": 20, "output_tokens": 12, "admission": "paged", "model_kind": "ideal"}
    answers = Point(device(), build(model(layer()), "fp16"), Workload(samples=4, **work))
    n_bytes = engine.evaluate(answers)["kv_bytes"]
    alone = engine.evaluate(Point(device(), build(model(layer()), "fp16"), Workload(**work)))["kv_bytes"]
    assert n_bytes / alone == 80 / 128
