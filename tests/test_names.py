"""Public names are what they say, whatever was imported before them."""

import inspect
import subprocess
import sys

import pytest

import underhood as uh

ORDERS = {
    "room first": "from underhood.training.runs import fit\nimport underhood as uh",
    "function first": "import underhood as uh\nuh.fit\nfrom underhood.training.runs import fit",
}
CHECK = """
from underhood.training import adamw, config
assert uh.fit is fit, uh.fit
assert uh.FitConfig is config.FitConfig
assert uh.__dict__['fit'] is fit
uh.marker = 1
assert uh.marker == 1
"""


@pytest.mark.parametrize("order", ORDERS)
def test_a_public_name_in_both_orders(order):
    subprocess.run([sys.executable, "-c", ORDERS[order] + CHECK], check=True)


@pytest.mark.parametrize("call", [uh.fit, uh.fit_population, uh.fit_levenberg])
def test_calls_show_their_arguments_and_explain_them(call):
    parameters = inspect.signature(call).parameters.values()
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    assert all(p.annotation is not p.empty for p in parameters)
    assert len(inspect.getdoc(call).splitlines()) > 2


def test_results_are_exported():
    assert uh.Run.__module__ == "underhood.training.runs"
    assert uh.LevenbergResult.__module__ == "underhood.training.second_order.levenberg"
