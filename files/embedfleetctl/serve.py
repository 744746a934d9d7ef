"""What the units run: ExecStart (`serve`) and ExecStartPost (`ready`) of an instance.

systemd resolves WorkingDirectory=/opt/embedfleet/current when it starts an instance, so the process's own working
directory is the release it runs, whatever `current` points at later; the unit's runtime directory records it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from embedfleetctl.common import Failure, read_json
from embedfleetctl.instances import unit_hash
from embedfleetctl.probe import Wrong, wait_right


def serve(port: int) -> None:
    """Become `vllm serve` of the release in the working directory. Does not return."""
    release = Path.cwd()
    spec = read_json(release / "serve.json")
    if not spec:
        raise Failure("release", f"{release} holds no serve.json", "deploy again; it rebuilds an incomplete release")
    # Resolved, so that a later switch of any link cannot mix the files of two engines in one process.
    engine, model = (release / "env").resolve(), (release / "model").resolve()
    argv = [
        str(engine / "bin/python"),
        str(engine / "bin/vllm"),
        "serve",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *spec["args"],
    ]
    env = {**os.environ, **spec["env"]}
    env["PATH"] = f"{engine}/bin:{env.get('PATH', '/usr/bin:/bin')}"
    runtime = env.get("RUNTIME_DIRECTORY")
    if runtime:
        (Path(runtime) / "release").write_text(release.name, encoding="utf-8")
        (Path(runtime) / "unit").write_text(unit_hash(), encoding="utf-8")
    sys.stdout.flush()
    os.execve(argv[0], argv, env)


def ready(port: int) -> None:
    """Return once the instance of this release on `port` gives right embeddings; raise otherwise."""
    spec = read_json(Path.cwd() / "probe.json")
    main = os.environ.get("MAINPID", "")  # systemd's word for the process that ExecStart became

    def alive() -> bool:
        return not main or os.path.exists(f"/proc/{main}")

    try:
        wait_right(f"http://127.0.0.1:{port}", spec, spec["start_timeout"], alive)
    except Wrong as error:
        raise Failure("model_id", f"port {port}: {error}", f"journalctl -u embedfleet-vllm@{port}") from None
