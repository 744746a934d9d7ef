"""Time and memory of planning many hosts from recorded facts: python -m bench.plan [--hosts N] [--json]

Settings, recognition, every check and the plan of each host, as preflight does them; facts are parsed from the survey's text.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from embedfleet.checks import problems_of
from embedfleet.facts.survey import parse
from embedfleet.forecast import forecast
from embedfleet.plan import Plan, make_plan
from embedfleet.recognise import choose
from embedfleet.settings import load
from embedfleet.sources import Sources
from tests.unit.hosts import HOSTS, lines
from tests.unit.test_plan import sources


def run(count: int) -> dict[str, float]:
    """Plan `count` hosts; return seconds, peak memory in MiB, and how many were planned and refused."""
    locks = {
        "tools": "uv==1",
        "conda": "linux-64/python-3.11.14-h1_0.conda#sha256:0",
        "engine": "torch==2.13.0\n" * 300,
    }
    files = Sources(locks, templates=sources().templates)
    recorded = [lines(HOSTS[name]) for name in sorted(HOSTS)]
    plans: list[Plan] = []
    refused = 0
    begun = time.process_time()
    for number in range(count):
        name = f"host{number:04}"
        settings = load({"max_num_seqs": 64, "serve_env": {"HOST": name}}, name)
        survey = parse(recorded[number % len(recorded)])
        platform = choose(name, settings.platform, survey)
        refused += any(problem.fatal for problem in problems_of(name, settings, platform, survey, files))
        plans.append(make_plan(name, settings, platform, survey, files))
        forecast(plans[-1], survey)
    seconds = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"hosts": len(plans), "refused": refused, "seconds": round(seconds, 2), "peak_mib": round(peak)}


def main() -> int:
    """Print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = run(args.hosts)
    print(json.dumps(found) if args.json else "{hosts} hosts planned ({refused} would be refused): {seconds} s, {peak_mib} MiB".format(**found))  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
