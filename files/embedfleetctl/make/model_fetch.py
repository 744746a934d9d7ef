"""Fetch a model with the real ModelScope client. Run by the tools' Python, as the build account.

Usage: model_fetch.py MODEL_ID REVISION ENDPOINT DIRECTORY [EXCLUDE...]
Exit codes: 0 fetched; 1 server failed; 3 a checksum differs; 4 no such model or revision; 5 no room on the disk.
"""

import errno
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
    except Exception as error:  # told by class name: where the classes live differs by version
        failed = [error, *getattr(error, "failed_files", {}).values()]
        for one in failed:
            print(f"{type(one).__name__}: {one}")
        names = {cls.__name__ for one in failed for cls in type(one).__mro__}
        if any(getattr(one, "errno", None) == errno.ENOSPC for one in failed):
            return 5
        if "FileIntegrityError" in names:
            return 3
        codes = {getattr(getattr(one, "response", None), "status_code", getattr(one, "code", None)) for one in failed}
        if "NotExistError" in names or 404 in codes or "404" in codes or "[404]" in str(error):
            return 4
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
