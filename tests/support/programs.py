"""Programs that tests and measurements start, PostgreSQL's among them."""

import ctypes
import glob
import os
import pwd
import shutil
import signal
import subprocess

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class ProgramError(Exception):
    """A program that is missing, that failed, or that did not do in time what
    was asked of it."""


class ProgramDied(ProgramError):
    """A program that is to run ended by itself, or does not come up."""


def unprivileged_user():
    """The user that PostgreSQL runs as: None unless we are root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise ProgramError("PostgreSQL does not run as root, and there is "
                           "no user named postgres") from None


def postgres_binaries():
    """The folder of the newest PostgreSQL that is installed."""
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
    if found:
        newest = max(found, key=lambda path: int(path.split("/")[4]))
        return os.path.dirname(newest)
    path = shutil.which("postgres")
    if path is None:
        raise ProgramError("PostgreSQL is not installed")
    return os.path.dirname(path)


def _identity(user):
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def start(command, log, stop_signal=signal.SIGTERM, user=None, stdout=None,
          executable=None, stdin=subprocess.DEVNULL):
    """Starts a long-running process that writes to the file `log`.

    It gets no signals from the terminal, because its starter stops it in
    order, and the kernel sends it `stop_signal` when the thread that started
    it ends. `executable` is the program if it is not the one that the command
    begins with.
    """
    def bind_to_parent():
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(stop_signal))

    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout or log, stderr=log,
        start_new_session=True, preexec_fn=bind_to_parent,
        executable=executable, **_identity(user))


def stop(process, stop_signal=signal.SIGTERM, seconds=30):
    """Stops a process that start() made; by force when it takes too long."""
    if process.poll() is None:
        process.send_signal(stop_signal)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def run(command, user=None, seconds=120):
    """Runs a short command and returns what it printed."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL,
                              timeout=seconds, capture_output=True, text=True,
                              check=False, **_identity(user))
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{name} took more than {seconds} s") from None
    if done.returncode != 0:
        raise ProgramError(f"{name} failed with {done.returncode}: "
                           f"{done.stderr.strip()}")
    return done.stdout
