"""Table 1 and Figure 2 in the quick budget: from sequences alone to the teacher's attention."""

import numpy as np
import pytest

import underhood as uh
from underhood.algebra.heads import head_tensor
from underhood.studies.teacher import figure2, kernels, quick_student, table1

SEED = 1


def test_every_row_of_table_1_is_met_and_tells_another_teacher_apart(tmp_path):
    made = table1("quick", tmp_path, seed=SEED)
    assert [row.name for row in made.rows if row.met is False] == []
    assert made.networks[0]["verdict"] == "linear-attention"
    other = uh.decompile(quick_student(SEED).model, against=uh.random_attention(4, seed=SEED + 1))
    assert other.scores.polynomial_distance > 0.1
    assert other.scores.kv_score > 1e-3 or other.scores.polynomial_distance > 0.5


def test_figure_2_is_in_block_order(tmp_path):
    made = figure2("quick", tmp_path, seed=SEED)
    assert [row.name for row in made.rows if row.met is False] == []
    by_name = {panel.name: np.array(panel.values) for panel in made.panels}
    assert by_name["λ"][:, 0].tolist() == [1.0] * 10 + [0.0] * 4
    assert not by_name["Wₘ in"][:10, -1].any()  # key-values have no term of degree 1
    assert np.allclose(by_name["student, y1"], by_name["teacher, y1"], atol=1e-6)


def test_kernels_are_the_function_in_the_neurons_of_a_network():
    attention = uh.random_attention(3, seed=4)
    network = uh.compile(attention, to="gated-rnn-minimal").model
    tensor = head_tensor(np.asarray(attention.w_value), attention.key_query)
    x, rng = np.random.default_rng(0).normal(size=3), np.random.default_rng(1)
    wanted = kernels(network, tensor)
    m, w = np.asarray(network.input_gating.w_m), np.asarray(network.input_gating.w_x)
    state = (m @ np.append(x, 1)) * (w @ np.append(x, 1))
    memory = np.asarray(network.lambda_) > 0.5
    outputs = np.einsum("a,iab,b->i", state[memory], wanted, state[~memory])
    assert outputs == pytest.approx(np.asarray(attention(x[None]))[0], rel=1e-9)
    assert outputs != pytest.approx(np.asarray(attention(rng.normal(size=(1, 3))))[0], rel=1e-3)
