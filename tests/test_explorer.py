"""The what-if page without a browser: every widget moved, bad input as a line of text, hostile URLs as a notice."""

import contextlib
import json
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from dse import cli, errors
from dse.explorer import fields, launch, request, shared, what_if_numbers
from dse.explorer.request import DEFAULT

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 60


def page(**query):
    """The page, run once with that query in its URL."""
    app = AppTest.from_file(launch.SCRIPT, default_timeout=TIMEOUT_S)
    app.session_state["memory beside"] = True  # what stands beside a figure is drawn when it is open
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


FIELDS = {field.key: field for field in shared.DESIGN}


def command_of(app):
    return next(code.value for code in app.code if code.value.startswith("dse point"))


def metrics(app):
    return {metric.label: metric.value for metric in app.metric}


def shown_text(app):
    return "\n".join([*(text.value for text in app.text), *(code.value for code in app.code)])


@pytest.fixture(scope="module")
def opened():
    """The page as first opened; not to be changed."""
    return page()


def test_first_page_shows_the_headline_and_every_number(opened):
    assert not opened.exception
    assert set(metrics(opened)) == {label for label, _, _ in what_if_numbers.HEADLINE}
    assert metrics(opened)["KV cache"] == "21.25 GB"
    assert not opened.warning


@pytest.mark.parametrize("name", sorted({name for _, rows in what_if_numbers.GROUPS for _, name, _ in rows}))
def test_every_number_has_an_explanation(name):
    text = request.explanation(DEFAULT, name)
    assert f"{name} = " in text
    assert "source   " in text


def test_sizes_are_in_gb_only(opened):
    assert not any("GiB" in value for value in metrics(opened).values())


CHOSEN = {
    "device": "oaken-hbm", "model": "mistral-7b", "quantizer": "kivi", "admission": "paged", "weights_bits": 8,
    "model_kind": "ideal", "tokens": "h2o", "value_quantizer": "fp16", "stack": "sglang",
}  # fmt: skip


@pytest.mark.parametrize("key", list(CHOSEN))
def test_every_choice_moves_the_page(key, opened):
    app = page()
    app.selectbox(key=key).select(CHOSEN[key]).run()
    assert not app.exception
    assert app.query_params[key] in (str(CHOSEN[key]), [str(CHOSEN[key])])
    assert len(app.metric) == len(what_if_numbers.HEADLINE)
    assert shown_text(app) != shown_text(opened)


@pytest.mark.parametrize("key", ["batch", "input", "output"])
def test_every_number_to_its_limits(key):
    app = page()
    for value in (int(FIELDS[key].low), int(FIELDS[key].high)):
        app.number_input(key=key).set_value(value).run()
        assert not app.exception, value
        assert len(app.metric) == len(what_if_numbers.HEADLINE), value


def test_a_token_policy_shows_what_it_keeps_and_what_it_leaves_out():
    app = page(tokens="h2o", quantizer="kivi")
    assert not app.exception
    assert app.selectbox(key="tokens").value == "h2o"
    assert "--tokens h2o" in command_of(app)
    shown = "\n".join(caption.value for caption in app.caption)
    assert "204 tokens stored and 204 tokens read at the end" in shown  # 102 + 102 of 1,024
    assert "taken to cost no time" in shown
    assert metrics(app)["KV cache"] != metrics(page(quantizer="kivi"))["KV cache"]


def test_parameters_change_the_result_and_leave_with_their_family():
    app = page()
    app.selectbox(key="quantizer").select("sinkq").run()
    before = metrics(app)
    app.text_input(key="parameters").set_value("bits=4,group=32").run()
    assert not app.exception
    assert metrics(app)["KV cache"] != before["KV cache"]
    assert "sinkq:bits=4,group=32" in command_of(app)
    app.selectbox(key="quantizer").select("fp16").run()
    assert app.text_input(key="parameters").value == ""
    assert len(app.metric) == len(what_if_numbers.HEADLINE)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bits=7", "unknown parameter 'bits'"),
        ("outer=2", "must be a number from 0 to"),
        ("<script>alert(1)</script>", "unknown parameter"),
        ("![x](https://example.org/x.png)", "unknown parameter"),
        ("\x00\u202e", r"\x00\u202e"),
        ("x" * 100_000, "longer than 200 characters"),
    ],
)
def test_bad_parameters_show_one_line_beside_the_field(text, part):
    app = page()
    app.text_input(key="parameters").set_value(text).run()
    assert not app.exception
    assert not app.metric
    lines = [element.value for element in app.sidebar.text]
    assert any(part in line for line in lines)
    assert all(len(line) <= errors.MAX_LINE and line.isprintable() for line in lines)
    app.text_input(key="parameters").set_value("").run()
    assert len(app.metric) == len(what_if_numbers.HEADLINE)


def test_a_model_that_does_not_fit_says_why():
    app = page(model="llama3.1-405b")
    assert not app.exception
    assert metrics(app)["Throughput"] == "-"
    assert "This does not fit:" in [warning.value for warning in app.warning]
    assert any(" GB" in text.value for text in app.text)


def test_a_batch_that_does_not_fit_at_once_says_so():
    assert any("run together" in warning.value for warning in page(batch="100000").warning)


def test_command_line_prints_the_same_numbers(capsys):
    asked = replace(
        DEFAULT, quantizer="sinkq", parameters="bits=4,group=32", batch=48, input=1000, output=300,
        admission="paged", weights_bits=8,
    )  # fmt: skip
    words = shlex.split(request.command(asked))
    assert words[0] == "dse"
    with pytest.raises(SystemExit) as stop:
        cli.main([*words[1:], "--json"])
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    del printed["bit_ledger"], printed["operations"], printed["with_room"]  # of the command alone
    assert printed == request.answer(asked).result


def test_url_restores_the_page():
    app = page(device="h100", quantizer="sinkq", parameters="bits=4", batch="48", admission="paged", weights_bits="8")
    assert not app.exception
    assert not app.warning
    for part in ("--device h100", "--quantizer sinkq:bits=4", "--batch 48", "--admission paged", "--weights-bits 8"):
        assert part in command_of(app)


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("batch", "nan", "1 to 16,777,216"),
        ("batch", "1e400", "1 to 16,777,216"),
        ("batch", "9" * 5000, "1 to 16,777,216"),
        ("batch", "-1", "1 to 16,777,216"),
        ("batch", "٣", "1 to 16,777,216"),
        ("input", "0", "1 to 1,073,741,824"),
        ("output", "", "1 to 16,777,216"),
        ("device", "../../etc/passwd", "must be one of"),
        ("model", "A" * 100_000, "must be one of"),
        ("quantizer", "![x](https://example.org/x.png)", "must be one of"),
        ("parameters", "bits=99", "unknown parameter"),
        ("weights_bits", ["8", "4"], "given 2 times"),
        ("<b>x</b>", "1", "unknown: known: admission"),
        ("\x00\u202ekey", "1", "unknown: known: admission"),
    ],
)
def test_bad_url_falls_back_with_one_notice(key, value, limit, opened):
    app = page(**{key: value})
    assert not app.exception
    assert len(app.warning) == 1
    assert limit in app.code[0].value
    assert metrics(app) == metrics(opened)
    assert not app.query_params
    app.run()
    assert not app.warning  # said once


def test_a_value_that_a_run_put_into_a_field_is_put_again_by_the_next():
    """The browser may miss the first run, where the next overtakes it: its fields would show defaults."""
    app = page(batch="48")
    for puts in (True, True, False):
        field = app.number_input(key="batch")
        assert (field.value, field.proto.set_value) == (48, puts)
        app.run()
    app.number_input(key="input").set_value(7).run()
    assert not app.number_input(key="input").proto.set_value  # the reader's own is left alone


def test_good_part_of_a_bad_url_is_kept():
    app = page(batch="32", input="x", nonsense="1")
    assert app.number_input(key="batch").value == 32
    assert app.query_params == {"batch": ["32"]} or app.query_params == {"batch": "32"}
    assert len(app.code[0].value.splitlines()) == 2


def test_many_problems_are_counted():
    app = page(**{f"k{i}": "1" for i in range(20)})
    assert app.code[0].value.splitlines()[-1] == "and 15 more"


KEYS = st.one_of(st.sampled_from(list(FIELDS)), st.text(max_size=60))
VALUES = st.one_of(st.text(max_size=300), st.integers().map(str), st.floats().map(str), st.just("16"))


@given(st.dictionaries(KEYS, st.lists(VALUES, min_size=1, max_size=3), max_size=6))
def test_any_url_is_split_into_usable_and_named_problems(query):
    values, problems = fields.check_query(shared.DESIGN, query)
    assert values.keys() == FIELDS.keys()
    assert all(len(line) <= errors.MAX_LINE and line.isprintable() for line in problems)
    changed = [key for key in query if key in FIELDS and values[key] != FIELDS[key].default]
    assert len(changed) + len(problems) <= len(query)
    written = fields.query_of(shared.DESIGN, values)
    assert fields.check_query(shared.DESIGN, {key: [text] for key, text in written.items()}) == (values, [])
    with contextlib.suppress(errors.InputError):  # values that cannot stand together
        request.answer(request.Request(**values))


def test_launcher_and_config_file_say_the_same():
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))

    def flat(table, prefix=""):
        for key, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    assert dict(flat(config)) == launch.SETTINGS


def test_every_setting_is_known_to_streamlit():
    from streamlit import config

    known = config.get_config_options()
    assert not [name for name in launch.SETTINGS if name not in known]
    assert launch.SETTINGS["server.address"] == "127.0.0.1"


def test_app_py_is_the_same_script():
    def code(path):
        return path.read_text(encoding="utf-8").split('"""')[2]

    assert code(ROOT / "app.py") == code(launch.SCRIPT)
