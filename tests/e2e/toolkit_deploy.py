"""The container toolkit alone, by the plan and the task of the real deploy: a GPU host's plan on a target that has none.

pyinfra inventory/docker.py tests/e2e/toolkit_deploy.py -y, with --data as for deploy.py.
"""

from pyinfra import host

from embedfleet import report, settings, sources
from embedfleet.containers import toolkit_files
from embedfleet.facts.survey import HostSurvey
from embedfleet.operations import files, repositories, system
from embedfleet.plan import make_plan
from embedfleet.platforms import PLATFORMS
from tasks import container_toolkit
from tasks.preflight import ROOT

report.choose_format(host.data.get("format"))
wanted = settings.load(host.data.dict(), host.name)
survey = host.get_fact(HostSurvey)
row = PLATFORMS["x86-gpu"]
plan = make_plan(host.name, wanted, row, survey, sources.read(host.name, wanted, row, ROOT))

files.managed(name="Files", files=toolkit_files(plan.containers))
if plan.system.manager == "apt":  # the stand-in for RHEL has both, though not as packages
    system.packages(name="Packages", system=plan.system, names=["curl", plan.system.gpg])
repositories.configured(
    name="Repositories",
    repositories=[each for each in plan.repositories if each.name == "container-toolkit"],
    system=plan.system,
    machine=plan.machine,
)
container_toolkit.container_toolkit(plan)
