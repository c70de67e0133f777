"""The answer comes first, the evidence in an object of its own, the diagnosis where the answer is no."""

import dataclasses

import numpy as np

import underhood as uh
from underhood.decompiler.result import LINEAR, NOT, Evidence, Found, Scores

CONTRACT = """verdict reason heads kv_score q_score polynomial_distance r2 hidden_before hidden_after
pre_readout_before pre_readout_after certificate"""
COMPILED = """target layers hidden parameters dtype exact max_abs_error max_rel_error error_bound input_bound horizon
order tolerance verified measured_steps probes"""


def test_an_answer_has_the_keys_of_the_contract_and_a_diagnosis_where_it_is_no():
    yes = Found(LINEAR, "all of it", uh.random_attention(2), Scores(), evidence=Evidence(r2=1.0))
    no = Found(NOT, "it is not", uh.random_attention(2), Scores(), evidence=Evidence(r2=0.5))
    assert list(yes.as_data()) == CONTRACT.split()
    assert list(no.as_data()) == [*CONTRACT.split(), "diagnosis"]
    assert no.as_data()["diagnosis"] == []
    told = dataclasses.replace(no, diagnosis=[{"what": "softmax", "r2": 0.9, "remedy": ""}])
    assert told.as_data()["diagnosis"][0]["what"] == "softmax"
    assert (yes.heads, no.heads) == (1, None)


def test_the_evidence_of_a_decompiled_network(figure_1):
    found = uh.decompile(figure_1(uh.random_attention(2, seed=1)))
    seen = found.evidence
    assert len(dataclasses.fields(Found)) <= 8
    assert seen.deviation <= seen.tolerance and seen.neurons is not None and seen.tensor is not None
    assert (found.hidden_before, found.hidden_after) == (6, 5)
    assert found.reduced is seen.smallest.network and found.reduced_change < 1e-12
    assert found.r2 == seen.r2 > 1 - 1e-12


def test_a_compiled_network_reports_as_before():
    compiled = uh.compile(uh.random_attention(2), to="lstm", horizon=20, dtype="float32")
    report = compiled.report
    assert list(report) == COMPILED.split()
    assert (report["dtype"], report["hidden"]) == ("float32", compiled.model.hidden)
    assert len(dataclasses.fields(compiled)) <= 7
    assert not any(isinstance(value, np.generic) for value in report.values())
