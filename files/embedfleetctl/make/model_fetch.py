"""Fetch a model with the real ModelScope client. Run by the tools' Python, as the build account.

Usage: model_fetch.py MODEL_ID REVISION ENDPOINT DIRECTORY [EXCLUDE...]
Exit codes: 0 fetched; 1 server failed; 3 a checksum differs; 4 no such model or revision.
"""

import sys


def main(model_id: str, revision: str, endpoint: str, directory: str, *exclude: str) -> int:
    """Fetch into `directory`; what is there already and right is kept, what is half there is resumed."""
    from modelscope import snapshot_download

    try:
        snapshot_download(
            model_id,
            revision=revision,
            endpoint=endpoint,
            local_dir=directory,
            ignore_patterns=list(exclude) or None,
            max_workers=4,
        )
    except Exception as error:  # the client's own exceptions differ by version; their texts and names do not
        text = f"{type(error).__name__}: {error}"
        print(text)
        if "E2020" in text or "E1003" in text or "mismatch" in text.lower() or "integrity" in text.lower():
            return 3
        if "NotExist" in text or "NotFound" in text or "404" in text:
            return 4
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
