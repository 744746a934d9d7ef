"""`vllm serve`: takes and refuses the flags that the pinned vLLM does (flags.json was read from its own parser)."""

import argparse
import json
import sys
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """vLLM's flags, with their choices; a number of values and the abbreviations are argparse's own."""
    flags = json.loads((Path(__file__).parents[2] / "flags.json").read_text())
    top = argparse.ArgumentParser(prog="vllm")
    serve = top.add_subparsers(dest="verb", required=True).add_parser("serve")
    serve.add_argument("model_tag")
    for name, what in flags.items():
        if name in ("-h", "--help"):
            continue
        if what["takes"] == "flag":
            serve.add_argument(name, action="store_true")
        else:
            serve.add_argument(name, nargs=what.get("nargs"), choices=what.get("choices"))
    return top


def agree(args: argparse.Namespace) -> None:
    """What vLLM's configuration refuses at start, after the parser took it."""
    if args.runner != "pooling":
        raise SystemExit("the stand-in is a pooling server: --runner pooling")
    length, batched = int(args.max_model_len or 512), int(args.max_num_batched_tokens or 1 << 20)
    if batched < length:
        raise SystemExit(f"ValueError: max_num_batched_tokens ({batched}) is smaller than max_model_len ({length})")
    if int(args.max_num_seqs or 128) > batched:
        raise SystemExit("ValueError: max_num_batched_tokens must be greater than or equal to max_num_seqs")


def main() -> None:
    """The console script."""
    args = parser().parse_args()
    agree(args)
    from vllm.entrypoints.openai.api_server import serve

    sys.exit(serve(args))
