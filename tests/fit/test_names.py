"""`uh.fit` is a function and underhood/fit a folder: whichever is met first, both are what they are."""

import inspect
import subprocess
import sys

import pytest

import underhood as uh

ORDERS = {
    "folder first": "import underhood.fit.config\nfrom underhood.fit.runs import fit\nimport underhood as uh",
    "function first": "import underhood as uh\nuh.fit\nimport underhood.fit.config\nfrom underhood.fit.runs import fit",
}
CHECK = """
from underhood.fit import adamw
assert uh.fit is fit, uh.fit
assert uh.FitConfig is __import__('sys').modules['underhood.fit.config'].FitConfig
assert uh.__dict__['fit'] is fit
uh.marker = 1
assert uh.marker == 1
"""


@pytest.mark.parametrize("order", ORDERS)
def test_the_function_and_the_folder_in_both_orders(order):
    subprocess.run([sys.executable, "-c", ORDERS[order] + CHECK], check=True)


@pytest.mark.parametrize("call", [uh.fit, uh.fit_population, uh.fit_levenberg])
def test_calls_show_their_arguments_and_explain_them(call):
    parameters = inspect.signature(call).parameters.values()
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    assert all(p.annotation is not p.empty for p in parameters)
    assert len(inspect.getdoc(call).splitlines()) > 2


def test_results_are_exported():
    assert uh.Run.__module__ == "underhood.fit.runs"
    assert uh.LevenbergResult.__module__ == "underhood.fit.levenberg"
