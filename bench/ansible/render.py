"""pyinfra inventory/docker.py bench/ansible/render.py -y: write the playbook's inputs; changes nothing on the host."""

import os
from pathlib import Path

from bench.compare import write_inputs
from tasks import preflight

plan = preflight.plan()

if plan:
    write_inputs(plan, Path(os.environ["EMBEDFLEET_BENCH_INPUTS"]))
