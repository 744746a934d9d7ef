"""The command line of embedfleetctl. Exit codes: 0 done and right, 1 failed or wrong, 2 wrong usage."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys

from embedfleetctl import gateway, jobs, serve
from embedfleetctl.activate import activate
from embedfleetctl.common import KINDS, Failure, host_settings
from embedfleetctl.make import make
from embedfleetctl.state import state, verify


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedfleetctl", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    door = verbs.add_parser(
        "gateway", help="take an instance out of the gateway, drained, or put it back"
    ).add_subparsers(dest="what", required=True)
    out = door.add_parser("out", help="take out and wait until nothing runs or waits in it")
    out.add_argument("port", type=int)
    out.add_argument("--reason", default="by hand")
    out.add_argument("--by", default=os.environ.get("SUDO_USER") or getpass.getuser())
    out.add_argument("--limit", type=float, help="seconds to wait for running requests (default: drain_timeout)")
    out.add_argument("--last", action="store_true", help="allow it for the only instance that is in")
    door.add_parser("in", help="put back").add_argument("port", type=int)
    door.add_parser("apply", help="make the running gateway what the files say")
    door.add_parser("recover", help="(the unit) undo what an ended rollout left")
    door.add_parser("status", help="who is in and who is out, as JSON")
    check = verbs.add_parser("verify", help="real embeddings from every instance and the gateway")
    check.add_argument("--json", action="store_true", help="always exit 0 and print JSON")
    what = verbs.add_parser("state", help="releases, instances and gateway as JSON")
    what.add_argument("--probe", action="store_true", help="and what verify finds, where all runs what is current")
    for verb in ("serve", "ready"):
        verbs.add_parser(verb, help="(the units)").add_argument("port", type=int)
    for verb in ("make", "activate"):
        job = verbs.add_parser(verb, help="(the deploy) in a unit of its own, which outlives the caller")
        if verb == "make":
            job.add_argument("kind", choices=KINDS)
        job.add_argument("part")
        job.add_argument("--limit", type=int, default=7200, help="seconds")
        job.add_argument("--inside", action="store_true", help="do it here and now")
    return parser


def _gateway(args: argparse.Namespace) -> None:
    if args.what == "out":
        limit = args.limit if args.limit is not None else host_settings()["drain_timeout"]
        gateway.take_out(args.port, args.by, args.reason, limit, args.last)
    elif args.what == "in":
        gateway.put_in(args.port)
    elif args.what == "apply":
        gateway.apply()
    elif args.what == "recover":
        gateway.recover()
    else:
        ports = host_settings()["instances"]
        print(
            json.dumps(
                {
                    str(port): {
                        "in": port not in gateway.outs(),
                        "load": gateway.load(port),
                        **gateway.outs().get(port, {}),
                    }
                    for port in ports
                }
            )
        )


def _job(args: argparse.Namespace) -> int:
    name = "activate" if args.verb == "activate" else f"{args.kind}-{args.part}"
    words = ["activate", args.part] if args.verb == "activate" else ["make", args.kind, args.part]
    if not args.inside:
        if args.verb == "activate":
            jobs.wait_for_another(name, args.part, args.limit)
        jobs.run_job(name, [*words, "--inside"], args.limit)
        return 0
    try:
        activate(args.part) if args.verb == "activate" else make(args.kind, args.part)
    except Failure as failure:
        jobs.finish(name, failure)  # told by whoever follows this job
        return 1
    jobs.finish(name, None)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one verb; a failure is told on standard error as setting, reason and cure, which the deploy reads."""
    args = _parser().parse_args(argv)
    if os.geteuid() and args.verb not in ("serve", "ready"):
        print(f"embedfleetctl {args.verb}: needs root; run it with sudo", file=sys.stderr)
        return 1
    try:
        if args.verb == "gateway":
            _gateway(args)
        elif args.verb == "verify":
            found = verify()
            print(json.dumps(found))
            return 0 if found["right"] or args.json else 1
        elif args.verb == "state":
            print(json.dumps(state(args.probe)))
        elif args.verb == "serve":
            serve.serve(args.port)
        elif args.verb == "ready":
            serve.ready(args.port)
        else:
            return _job(args)
    except Failure as failure:
        print(f"embedfleetctl failed: {failure.setting}\n{failure.reason}\ncure: {failure.cure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
