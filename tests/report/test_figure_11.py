"""The means beside Oaken's Figure 11 in the report are those of the claims."""

import re

from dse.questions import tables
from dse.report import summary, throughput
from dse.specs.workload import Workload
from dse.validate import claims


def test_means_of_the_report_are_those_of_the_claims():
    results = tables.build(throughput.ask(models=["llama2-7b", "mixtral-8x7b-oaken"], batches=[256]))["results"]
    sentences = summary.beside_figure_11(results)
    for sentence, claim in zip(sentences, summary.FIGURE_11_CLAIMS.values(), strict=False):
        shown = re.findall(r"(?:llama2-7b|mixtral-8x7b-oaken) [\d.]+", sentence)
        assert shown
        assert all(ratio in claims.evaluate(claim).reason for ratio in shown)
    assert "mixtral" not in sentences[1]
    assert sentences[2].startswith(
        "First at batch 256 here: Oaken-HBM of llama2-7b; Oaken-LPDDR of mixtral-8x7b-oaken."
    )


def test_nothing_is_said_of_other_lengths():
    request = throughput.ask(models=["llama2-7b"], batches=[256], work=Workload(input_tokens=512))
    assert summary.beside_figure_11(tables.build(request)["results"]) == []
