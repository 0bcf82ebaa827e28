"""The end of a command: what hangs is not waited for, and who goes on is left alone."""

import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from support.processes import environment

from oblivionis.cli.interrupts import Stopping

HANGS = """
import atexit, sys, threading, time
from oblivionis.cli import interrupts as stopping
stopping.GRACE_S = 0.5
{how}
stopping.leave(3)
"""
GOES_ON = """
import time
from oblivionis.cli import interrupts as stopping
stopping.GRACE_S = 0.2
try:
    stopping.leave(3)
except SystemExit:
    time.sleep(1)
print("went on")
"""
SECOND = """
import os, signal, threading, time
from oblivionis.cli.interrupts import Stopping, signals
threading.Thread(target=time.sleep, args=(60,)).start()
with signals():
    stopping = Stopping()
    threading.Timer(0.3, stopping.ask).start()  # late
    stopping._end_children = lambda: [os.kill(os.getpid(), number) for number in (signal.SIGINT, signal.SIGTERM)]
    stopping.finish(130)
"""
TRACKED = """
import multiprocessing, sys, time
from oblivionis.cli.interrupts import Stopping
lock = multiprocessing.get_context("spawn").Lock()
class Late:
    def flush(self):
        global lock
        time.sleep(0.2)
        lock = None
sys.stdout = Late()  # the last thing that is done before the process ends
stopping = Stopping()
stopping.ask()
stopping.finish(130)
"""
CHILD = """
import subprocess, sys
from oblivionis.cli.interrupts import Stopping
child = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
stopping = Stopping()
stopping.ask()
stopping.finish(130)
"""
ELSEWHERE = """
import os, signal, time
from oblivionis.cli import interrupts as stopping
stopping.GRACE_S = 0.2
with stopping.signals():
    stopping.stopping.hint = "continue with: this"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(60)
"""


def test_an_interruption_that_no_signal_made_ends_no_process():
    before = signal.getsignal(signal.SIGTERM)
    stopping = Stopping()
    stopping.finish(130)
    stopping.finish(0)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("threading.Thread(target=time.sleep, args=(60,)).start()", 20),
        ("atexit.register(time.sleep, 60)", 20),
        ("", 20),
    ],
)
def test_a_thread_or_an_exit_handler_that_hangs(how, seconds):
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HANGS.format(how=how)], env=environment(), timeout=60)
    assert done.returncode == 3 and time.monotonic() - started < seconds


def test_who_catches_the_end_goes_on():
    done = subprocess.run(
        [sys.executable, "-c", GOES_ON], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout == "went on\n", done.stderr


def test_a_second_signal_while_the_command_ends():
    """Also where the main thread knows of the first one before who listens for signals does."""
    done = subprocess.run([sys.executable, "-c", SECOND], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 130 and not done.stderr, done.stderr


def test_locks_that_are_given_up_while_the_children_are_ended():
    """What Python starts to remove them from the system ends by itself, after all others."""
    command = [sys.executable, "-c", TRACKED]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 130 and not done.stderr, done.stderr


def test_a_child_is_ended_whatever_its_command_names(tmp_path):
    """Not taken for what removes locks because a path of it says so."""
    script = tmp_path / "multiprocessing.resource_tracker.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n", encoding="utf-8")
    command = [sys.executable, "-c", CHILD, str(script)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 130 and not done.stderr, done.stderr
    assert not psutil.pid_exists(int(done.stdout)) or psutil.Process(int(done.stdout)).status() == psutil.STATUS_ZOMBIE


def test_a_signal_for_less_than_the_command_may_be_heard_of_late():
    stopping = Stopping()
    late = threading.Timer(0.2, stopping.ask)
    late.start()
    stopping.dropped()
    late.join()
    assert not stopping.asked.is_set(), "the command goes on"


def test_how_to_go_on_is_told_while_a_library_sends_standard_error_elsewhere():
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "\nstopped before all was tidied up; continue with: this\n")
