"""Fits of a server's own time: known numbers are found again, suspect rows do not count, a model left out is not
seen."""

import json
from dataclasses import replace

import numpy as np
import pytest

from calibration import host
from calibration.host import Features
from dse.calibrate.servers import ServerRow, read
from dse.core import specfile
from dse.core.errors import InputError
from dse.specs import catalog
from dse.specs.device_and_model import load
from dse.specs.stack import ServerSpec

US = 1e-6
#: layer and sequence in seconds; prompt, what mixtures add, a request that runs, and rounds in step
TRUE, PROMPTS = (22 * US, 30 * US), (400 * US, 900 * US, 1500 * US, 3.0)
MODELS = ("llama3.1-8b", "llama3.1-70b", "qwen3-32b", "gpt-oss-120b")


def servers(n=480, noise=0.02, seed=3, own=lambda row: TRUE, models=MODELS, releases=("vllm 1", "vllm 2", "sglang 1")):
    """Made-up servers of 1 to 256 requests, with the time of their kernels and of a server of known numbers."""
    rng = np.random.default_rng(seed)
    rows, counts = [], []
    for i in range(n):
        spec = catalog.model(models[i % len(models)])
        stack, release = releases[i // len(models) % len(releases)].split()
        row = ServerRow(
            f"r{i}", i + 2, spec.name, "h100_sxm", stack, release, "bf16", 8, 1, None, spec, None, "fp16", 1.0, 1.0, ""
        )
        rows.append(row)
        counts.append((spec.n_layers, float(2 ** rng.integers(0, 9))))
    counts = np.array(counts)
    kernels = 10 ** rng.uniform(-3.5, -2.5, n)
    mine = np.array([own(row) for row in rows])
    off = np.exp(noise * rng.standard_normal((2, n)))
    is_mixture = np.array([row.spec.n_experts > 1 for row in rows])
    first, burst, rounds = 10 ** rng.uniform(-2, 0, n), 10 ** rng.uniform(-2, 0, n), rng.choice([1.0, 10.0], n)
    running = 2.0 ** rng.integers(0, 8, n)
    waits = burst * np.where(rounds == 1, 1.0, PROMPTS[3] / 10)  # one round is in step whatever the server does
    return Features(
        rows,
        kernels,
        (kernels + (counts * mine).sum(axis=1)) * off[0],
        counts,
        counts[:, 0],
        first,
        running,
        burst,
        rounds,
        (first + waits + counts[:, 0] * (PROMPTS[0] + is_mixture * PROMPTS[1]) + running * PROMPTS[2]) * off[1],
        is_mixture,
        experts=np.zeros((n, 2)),
        first_experts=np.zeros((n, 2)),
        kinds=[("", "")] * n,
    )


def with_experts(rows, kinds, factors, seed=5):
    """The same servers with routed experts of such kinds, which take `factors` of what benchmarks say."""
    rng = np.random.default_rng(seed)
    experts = 10 ** rng.uniform(-3.5, -2.5, (len(rows.rows), 2))
    kinds = [kinds[i % len(kinds)] for i in range(len(rows.rows))]
    truth = np.array([factors(*kind, row.stack) for kind, row in zip(kinds, rows.rows, strict=True)])
    return replace(
        rows,
        explained_s=rows.explained_s + experts.sum(axis=1),
        measured_s=rows.measured_s + (experts * truth).sum(axis=1),
        experts=experts,
        kinds=kinds,
    )


def test_experts_take_what_servers_say_by_format_generation_and_stack():
    """Known numbers are found again, from rows whose times are known to 2 %."""
    kinds = (("mxfp4", "sm_9"), ("nvfp4", "sm_10"), ("fp8_block", "sm_9"))

    def factors(code, _generation, stack):
        return {"mxfp4": (1.5, 0.6), "nvfp4": (1.0, 0.8), "fp8_block": (0.7, 1.0 if stack == "vllm" else 1.4)}[code]

    rows = with_experts(servers(960, noise=0.02), kinds, factors)
    tokens_s = rows.explained_s + (rows.counts * TRUE).sum(axis=1)
    found = host.fit_experts(rows, tokens_s)
    more = host.more_experts(rows, found)
    wanted = np.array([factors(*kind, row.stack) for kind, row in zip(rows.kinds, rows.rows, strict=True)])
    assert 1 + more == pytest.approx(wanted, rel=0.1)
    table = host.experts_table(rows, found, "sglang", "a table")
    assert table["fp8_block"]["sm_9"]["time"] == pytest.approx(1.4, rel=0.1)
    assert table["fp8_block"]["sm_9"]["n_points"] == sum(
        kind == kinds[2] and row.stack == "sglang" for kind, row in zip(rows.kinds, rows.rows, strict=True)
    )
    unheard = host.experts_table(rows, found, "trtllm", "a table")  # a stack without rows: what all say, less surely
    assert 0.6 < unheard["mxfp4"]["sm_9"]["time"] < 0.75
    assert unheard["mxfp4"]["sm_9"]["n_points"] == 0


def test_few_rows_of_experts_stay_near_the_benchmarks():
    rows = with_experts(servers(960), (("mxfp4", "sm_9"),), lambda *_: (1.0, 0.3)).take(np.arange(960) < 2)
    tokens_s = rows.explained_s + (rows.counts * TRUE).sum(axis=1)
    more = host.more_experts(rows, host.fit_experts(rows, tokens_s))
    assert (1 + more > 0.5).all()
    dense = servers(8)
    assert host.fit_experts(dense, dense.explained_s) == {}


def test_known_numbers_are_found_again():
    rows = servers()
    found = host.fit_tokens(rows, host.USUAL) * host.SCALE
    assert found == pytest.approx(np.array(TRUE), rel=0.2)
    assert host.fit_prompts(rows, host.PROMPT_USUAL) * host.PROMPT_SCALE == pytest.approx(np.array(PROMPTS), rel=0.1)
    tokens_s, firsts_s = host.fit_all(rows).predict(rows)
    assert np.abs(tokens_s / rows.measured_s - 1).mean() < 0.03
    assert np.abs(firsts_s / rows.first_measured_s - 1).mean() < 0.04


def test_releases_of_other_numbers_are_told_apart():
    def own(row):
        return (22 * US, 60 * US) if row.release == "2" else TRUE

    hosts = host.fit_all(servers(960, own=own))
    assert hosts.releases["vllm", "2"][1] * host.SCALE[1] == pytest.approx(60 * US, rel=0.1)
    assert hosts.releases["vllm", "1"][1] * host.SCALE[1] == pytest.approx(30 * US, rel=0.1)
    assert 30 * US < hosts.everywhere[1] * host.SCALE[1] < 60 * US


def test_a_release_of_few_rows_is_that_of_all():
    rows = servers(120, releases=("vllm 1", "vllm 1", "vllm 1", "vllm 1", "vllm rare"))
    few = rows.of(release="rare")
    keep = ~few | (few.cumsum() < host.FEWEST_ROWS)
    hosts = host.fit_all(rows.take(keep))
    assert set(hosts.releases) == {("vllm", "1")}
    rare = rows.take(few & keep)
    tokens_s, _ = hosts.predict(rare)
    assert tokens_s == pytest.approx(rare.explained_s + (rare.counts * hosts.everywhere * host.SCALE).sum(axis=1))


def test_rows_that_went_wrong_do_not_move_the_fit():
    rows = servers()
    rows.measured_s[::20] *= 4
    assert host.fit_tokens(rows, host.USUAL) * host.SCALE == pytest.approx(np.array(TRUE), rel=0.3)


def test_suspects_do_not_count():
    honest = servers(models=("qwen3-32b", "llama3.1-8b"))
    bad = servers(60, seed=9, models=("qwen3-32b",), releases=("trtllm 1.3.0rc1",))
    assert all(host.is_suspect(row) for row in bad.rows)
    assert not any(host.is_suspect(row) for row in honest.rows)
    bad = replace(bad, measured_s=10 * bad.measured_s)
    both = Features(
        *(
            a + b if isinstance(a, list) else np.concatenate((a, b))
            for a, b in zip(vars(honest).values(), vars(bad).values(), strict=True)
        )
    )
    alone, together = host.fit_all(honest), host.fit_all(both)
    assert together.everywhere == pytest.approx(alone.everywhere)
    assert set(together.releases) == set(alone.releases)


def test_a_model_left_out_is_never_seen():
    """Rows of the model may say what they like: what is predicted of it stays the same."""
    rows = servers()
    own = host.names_of(rows) == "qwen3-32b"
    lies = replace(
        rows,
        measured_s=np.where(own, 7.0, 1.0) * rows.measured_s,
        first_measured_s=np.where(own, 7.0, 1.0) * rows.first_measured_s,
    )
    honest, told = host.left_out(rows), host.left_out(lies)
    for a, b in zip(honest, told, strict=True):
        assert np.array_equal(a[own], b[own])
        assert not np.allclose(a[~own], b[~own])
    assert np.isfinite(honest[0]).all()


def test_spread_by_hand():
    rows = servers(11)
    ones = np.ones(11)
    rows = replace(rows, measured_s=np.linspace(1, 2, 11), first_measured_s=np.array([*np.linspace(2, 3, 10), np.nan]))
    # of 11 evenly spaced ratios the 10th and 90th percentiles are the second and the last but one
    # or the prediction itself, which an interval holds: all rows lie above it
    assert host.spread(rows, ones, ones, (0.1, 0.9)) == {
        "low": 1.0,
        "high": 1.9,
        "first_low": 1.0,
        "first_high": 2.9,
        "n_points": 11,
    }
    assert host.spread(rows, 3 * ones, 4 * ones, (0.1, 0.9)) == {
        "low": 0.367,
        "high": 1.0,
        "first_low": 0.525,
        "first_high": 1.0,
        "n_points": 11,
    }


def test_files_say_what_was_fitted():
    texts = host.files_of(servers(), "made up")
    assert set(texts) == {"vllm", "sglang"}
    spec = load(specfile.parse("vllm.toml", texts["vllm"]), ServerSpec)
    assert spec.host.layer.si == pytest.approx(TRUE[0], rel=0.15)
    assert set(spec.releases) == {"1", "2"}
    assert set(spec.left_out) == {"dense", "mixture"}
    assert spec.left_out["dense"].low < 1 < spec.left_out["dense"].high
    assert {*spec.models} == {*MODELS}


def test_a_server_is_no_surer_than_its_kind_and_a_model_no_surer_than_both():
    """By hand: SGLang's rows lie further up, and one model's further down, than all rows of the kind."""
    rows = servers(240, models=("llama3.1-8b", "qwen3-32b"), releases=("vllm 1", "sglang 1"))
    ones, names = np.ones(240), host.names_of(rows)
    on_sglang, is_qwen = rows.of(stack="sglang"), names == "qwen3-32b"
    ratio = np.linspace(0.9, 1.1, 240) * np.where(on_sglang, 1.2, 1.0)
    ratio[on_sglang & is_qwen] *= 0.5
    rows = replace(rows, measured_s=ratio, first_measured_s=2 * ratio)

    def ends(own, at=(0.06, 0.94)):
        return tuple(float(f"{end:.3g}") for end in np.quantile(ratio[own], at))

    vllm, sglang = (host.spreads(rows, ones, 2 * ones, stack) for stack in ("vllm", "sglang"))
    of_all = ends(np.ones(240, bool))
    assert ends(~on_sglang)[0] > of_all[0]
    assert ends(~on_sglang)[1] < of_all[1]
    for found in (vllm.left_out["dense"], *vllm.models.values()):  # those of vLLM lie inside of all
        assert (found["low"], found["high"]) == (found["first_low"], found["first_high"]) == of_all
    on_it, llama, qwen = ends(on_sglang), ends(on_sglang & ~is_qwen, (0.1, 0.9)), ends(on_sglang & is_qwen, (0.1, 0.9))
    kind = min(of_all[0], on_it[0]), max(of_all[1], on_it[1])
    assert (sglang.left_out["dense"]["low"], sglang.left_out["dense"]["high"]) == kind
    for name, own in (("llama3.1-8b", llama), ("qwen3-32b", qwen)):
        found = sglang.models[name]
        assert (found["low"], found["high"]) == (min(kind[0], own[0]), max(kind[1], own[1]))
        assert found["n_points"] == 60
    assert sglang.left_out["dense"]["n_points"] == 240


HEAD = "id,backend,backend_version,model_path,system,isl,osl,batch_size,silicon_tpot_ms,silicon_ttft_ms\n"


def test_features_of_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        HEAD + "a,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,9.0,100\n"
        "b,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,,100\n"
        "c,vllm,0.16.0,nobody,h100_sxm,1024,256,16,9.0,100\nd,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,9.0,2304\n"
    )
    rows = host.features(read(str(path)))
    assert [row.id for row in rows.rows] == ["a", "d"]  # b has no time per token, c no model
    # 32 layers of each of the 256 steps of an answer, those with prompts of others among them; 16 sequences, less those
    # whose prompts a step computes
    assert rows.layers.tolist() == [32.0] * 2
    assert rows.counts[:, 0] == pytest.approx(32, rel=1e-9)
    assert rows.counts[:, 1] == pytest.approx(16, rel=0.01)
    assert (rows.explained_s < 9e-3).all()
    path.write_text(HEAD + "b,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,,100\n")
    with pytest.raises(InputError, match="no row has a time per output token"):
        host.features(read(str(path)))


ROWS = [f"{i},vllm,0.16.0,{model},h100_sxm,1024,256,{8 * (i % 3 + 1)}" for i, model in enumerate(MODELS[::2] * 3)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([f"{row},9.0," for row in ROWS], "no row of dense models has silicon_ttft_ms: add the times"),
        ([f"{row},9.0,100" for row in ROWS[::2]], "has rows of llama3.1-8b alone: give rows of two models or more"),
        (
            [f"{row},9.0,{9e7 if 'qwen' in row else 0.001}" for row in ROWS],
            "the fit of vllm gives what no file may hold",
        ),
    ],
)
def test_a_table_that_no_fit_can_be_judged_by_is_one_line_and_writes_nothing(tmp_path, lines, reason):
    path, out = tmp_path / "t.csv", tmp_path / "out"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=reason) as caught:
        host.run(str(path), str(out))
    assert str(caught.value).startswith(f"{path}: ")
    assert not out.exists()


def test_a_table_is_fitted_into_a_file_a_stack(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "\n".join(f"{row},9.0,100" for row in ROWS) + "\n")
    done = host.run(str(path), str(tmp_path / "out"))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["vllm.toml"]
    assert json.dumps(done, allow_nan=False)
    assert "dense, 6 rows: seen" in host.text(done)


def test_kernels_do_not_depend_on_the_servers_that_ship(tmp_path, monkeypatch):
    """What is fitted is what is left of measured times: another shipped fit must not change it."""
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "a,vllm,0.16.0,llama3.1-8b,h100_sxm,1024,256,16,9.0,100\n")
    before = host.features(read(str(path)))
    slow = {
        name: own.model_copy(
            update={
                "releases": {},
                "host": own.host.model_copy(
                    update={
                        part: getattr(own.host, part).model_copy(update={"value": 900.0}) for part in host.FIELDS[:4]
                    }
                ),
            }
        )
        for name, own in catalog.servers().items()
    }
    monkeypatch.setattr(catalog, "servers", lambda: slow)
    after = host.features(read(str(path)))
    assert after.explained_s == pytest.approx(before.explained_s, rel=1e-9)
    assert after.counts == pytest.approx(before.counts, rel=1e-9)


def test_shipped_servers_say_where_they_are_from():
    for name, server in catalog.servers().items():
        assert server.name == name
        for fit in (server.host, *server.releases.values()):
            assert "aiconfigurator-core" in fit.fitted_on
            assert fit.n_points > 0
        assert all(0.4 < own.low <= own.high < 2.5 for own in (*server.left_out.values(), *server.models.values()))
