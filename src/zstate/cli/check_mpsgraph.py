"""``zstate check --mpsgraph``: what Apple's framework does, case by case and decision by decision.

Every call runs in a child process, since MPSGraph ends the process that passes it a bad shape.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable

from ..errors import BackendError, OptionError
from ..mpsgraph.calling import APPLE, DTYPES
from ..mpsgraph.checking import CaseResult, left_out, mpsgraph_cases, run_case
from ..mpsgraph.child import Children
from ..mpsgraph.decisions import PROBES
from ..mpsgraph.probes import run_probes
from ..mpsgraph.report import Report, as_json, as_markdown, print_report
from ..verify import FLOAT_TYPES
from .arguments import check_writable

_INSTALL = "on a Mac: pip install pyobjc-framework-MetalPerformanceShadersGraph"


def run(options: argparse.Namespace, seed: int, show: Callable[[str], None]) -> int:
    """Check, print, write; 0 if all agrees, 1 if something does not."""
    from rich.console import Console

    files = {"--json": options.json, "--markdown": options.markdown}
    for option, path in files.items():
        if path is not None:
            check_writable("check", option, path)
    names = APPLE if options.module is None else tuple(",".join(options.module).split(","))
    try:
        with Children(names, options.timeout or 60) as children:
            report = _check(children, seed, show)
    except BackendError as error:
        raise OptionError(f"{error}; {_INSTALL}" if names == APPLE else str(error)) from None
    finally:
        show("")
    print_report(report, Console())
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(report), indent=1) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(as_markdown(report), encoding="utf-8")
    return report.status


def _check(children: Children, seed: int, show: Callable[[str], None]) -> Report:
    findings = []
    for finding in run_probes(PROBES, children, seed):
        findings.append(finding)
        show(f"probe {len(findings)} of {len(PROBES)}")
    without = left_out(findings)
    jobs = [
        (case, dtype) for cases in mpsgraph_cases().values() for dtype in _types() for case in cases
    ]
    results: list[CaseResult] = []
    for number, (case, dtype) in enumerate(jobs):
        show(f"case {number + 1} of {len(jobs)}")
        results += run_case(case, children, dtype, seed, without)
    return Report(children.facts, seed, findings, results, without)


def _types() -> Iterable[str]:
    """The float types that both MPSGraph and this installation have."""
    return [dtype for dtype in DTYPES if dtype in FLOAT_TYPES]
