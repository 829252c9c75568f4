"""The program with which the client reads and writes a sandbox's files: fs_tools.py PID '{"ReadFile": {"path": ...}}'.

It enters the mount namespace and the root of process PID, does the one thing, and ends with 0; or with 1 and the
reason as JSON on stderr.
"""

import errno
import grp
import json
import os
import pwd
import shutil
import stat
import sys
from pathlib import Path

KINDS = {
    errno.ENOENT: "NotFound",
    errno.ENOTDIR: "NotDirectory",
    errno.EISDIR: "IsDirectory",
    errno.EACCES: "PermissionDenied",
    errno.EROFS: "PermissionDenied",
    errno.EEXIST: "PathAlreadyExists",
    errno.ENOTEMPTY: "DirectoryNotEmpty",
}


def enter(pid: str) -> None:
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY)
    os.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), os.CLONE_NEWNS)
    os.fchdir(root)
    os.chroot(".")
    os.chdir("/")


def describe(path: Path) -> dict:
    found = path.lstat()
    mode = found.st_mode
    return {
        "name": path.name or "/",
        "path": str(path),
        "size": found.st_size,
        "mode": stat.S_IMODE(mode),
        "permissions": stat.filemode(mode),
        "type": "symlink" if stat.S_ISLNK(mode) else "directory" if stat.S_ISDIR(mode) else "file",
        "owner": name_of(pwd.getpwuid, found.st_uid),
        "group": name_of(grp.getgrgid, found.st_gid),
        "modified_time": found.st_mtime,
        "symlink_target": str(path.readlink()) if stat.S_ISLNK(mode) else None,
    }


def name_of(look_up, number: int) -> str:
    try:
        return look_up(number)[0]
    except KeyError:
        return str(number)


def write(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory") from None
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)


def read(path: Path) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer, 1 << 20)
    sys.stdout.flush()


def remove(path: Path, recursive: bool) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path) if recursive else path.rmdir()
    else:
        path.unlink()


def do(what: str, given: dict) -> None:
    path = Path(given["path"])
    if what == "WriteFile":
        write(path)
    elif what == "ReadFile":
        read(path)
    elif what == "ListFiles":
        print(json.dumps([describe(one) for one in sorted(path.iterdir())]))
    elif what == "Stat":
        print(json.dumps(describe(path)))
    elif what == "MakeDirectory":
        path.mkdir(parents=bool(given.get("parents")), exist_ok=bool(given.get("parents")))
    elif what == "Remove":
        remove(path, bool(given.get("recursive")))
    else:
        raise OSError(errno.ENOSYS, f"{what} is not played by this fake")


def main() -> int:
    enter(sys.argv[1])
    ((what, given),) = json.loads(sys.argv[2]).items()
    try:
        do(what, given)
    except OSError as error:
        kind = KINDS.get(error.errno or 0, "Other")
        sys.stderr.write(json.dumps({"error_kind": kind, "message": error.strerror, "detail": repr(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
