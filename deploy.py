"""pyinfra inventory/prod.py deploy.py: bare hosts become embedding servers; run again, it changes only what differs."""

from tasks import engine, preflight, service, site

plan = preflight.plan()  # settings + facts -> one plan a host; a refused host has none and gets no operation

if plan:
    site.site(plan)  # files, accounts, packages, site certificates
    engine.python(plan)  # tools, and the conda environment from its lock
    engine.engine(plan)  # vLLM from source: pinned tag, patches, CMAKE_ARGS of the platform
    engine.model(plan)  # BGE-M3 through ModelScope, checksummed, switched in whole
    service.gateway(plan)  # nginx, which instances are taken out of and put back into
    service.release(plan)  # proven beside the running one, then switched instance by instance, or back
    service.verify(plan)  # right embeddings from every instance and through the gateway
