"""pyinfra inventory/prod.py deploy.py: bare hosts become embedding servers; run again, it changes only what differs."""

from tasks import conda, container_toolkit, driver, engine, gateway, model, preflight, release, site, verify

plan = preflight.plan()  # settings + facts -> one plan a host; a refused host has none and gets no operation

if plan:
    site.site(plan)  # files, accounts, directories, packages, site certificates
    driver.driver(plan)  # NVIDIA's driver and CUDA's compiler, proven before a reboot and after it
    container_toolkit.container_toolkit(plan)  # GPUs in containers, where a container runtime is there
    conda.conda(plan)  # the host's tools, and the interpreter from a conda lock
    engine.engine(plan)  # vLLM from source: pinned tag, patches, CMAKE_ARGS of the platform
    model.model(plan)  # BGE-M3 through ModelScope, checksummed, switched in whole
    gateway.gateway(plan)  # nginx, which instances are taken out of and put back into
    release.release(plan)  # proven beside the running one, then switched instance by instance, or back
    verify.verify(plan)  # right embeddings from every instance and through the gateway
