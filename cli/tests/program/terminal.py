"""Plays a user at a terminal: bash with job control behind a pseudo-terminal, in which redis-lock runs commands."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = float(os.environ.get("PATIENCE", 60))
CTRL_C, CTRL_Z = "\x03", "\x1a"
# A command that names its parent, and says when it goes on after a stop.
SLEEPER = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
# Blocked, it waits until it is asked for: one that comes meanwhile is not lost.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
print("up", os.getppid(), flush=True)
while True:
    signal.sigwait({signal.SIGCONT})
    print("goes on", flush=True)
"""


class Terminal:
    """A shell, what it was told, and what it has shown."""

    def __init__(self, *command):
        """With this command instead of a shell, if there is one."""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "PS1": "PROMPT:", "TERM": "dumb", "LESS": "-d", "PYTHON": sys.executable}
            environment["SLEEPER"] = SLEEPER
            command = command or ("bash", "--norc", "--noprofile", "--noediting", "-i")
            os.execvpe(command[0], command, environment)
        # Else the next terminal's programs have it, too, and it is never closed.
        os.set_inheritable(self.file, False)
        self.shown = self.before = ""
        if not command:
            self.expect("PROMPT:")

    def type(self, text):
        os.write(self.file, text.encode())

    def expect(self, text):
        """Reads until this is shown; forgets all before it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.file], [], [], left)[0]:
                sys.exit(f"waited in vain for {text!r}; shown: {self.shown!r}")
            self.shown += os.read(self.file, 4096).decode(errors="replace")
        end = self.shown.index(text)
        self.before, self.shown = self.shown[:end], self.shown[end + len(text) :]

    def prompt(self):
        """Whether the shell reads what is typed: else nothing would answer."""
        self.type("echo al''ive $((40 + 2))\n")
        self.expect("alive 42\r\n")


def run(terminal, command, *steps):
    """A command line, then by turns what is expected and what is typed."""
    terminal.type(command.replace("RUN", os.environ["PROGRAM"] + " run") + "\n")
    for number, step in enumerate(steps):
        if number % 2:
            terminal.type(step)
        else:
            terminal.expect(step)
    terminal.prompt()
    print("done:", command)


def wait_until_stopped(pid):
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "T":
        if time.monotonic() > deadline:
            sys.exit("waited in vain for the program to stop")
        time.sleep(0.01)


def keys():
    """What a user types."""
    terminal = Terminal()
    # The texts are cut in two, since the terminal shows what is typed.
    run(terminal, "RUN k sh -c 'echo u''p; exec sleep 1000'; echo co''de=$?", "up\r\n", CTRL_C, "code=130\r\n")
    # It reads from the terminal, is stopped, and reads on.
    reader = "sh -c 'echo u''p; read x; echo go''t=$x'"
    run(terminal, f"RUN k {reader}; echo co''de=$?", "up\r\n", "hi\n", "got=hi\r\ncode=0\r\n")
    stop = "Stopped"
    run(terminal, f"RUN k {reader}", "up\r\n", CTRL_Z, stop, "", "PROMPT:", "fg\n", "run k", "hi\n", "got=hi\r\n")
    run(terminal, f"RUN k {reader}", "up\r\n", CTRL_Z, stop, "", "PROMPT:", "bg; fg\n", "run k", "hi\n", "got=hi\r\n")
    # Again and again: it says when it goes on. No shell, which does not stop while it starts another program.
    sleeper = '$PYTHON -c "$SLEEPER"'
    again = [CTRL_Z, stop, "", "PROMPT:", "fg\n", "goes on\r\n"]
    run(terminal, f"RUN k {sleeper}; echo co''de=$?", "up ", *again, *again, *again, CTRL_C, "PROMPT:")
    # From the background it must not read, until it is in the foreground.
    until_stopped = "until jobs | grep -q Stop''ped; do sleep 0.05; done; jobs\n"
    run(
        terminal,
        f"RUN k {reader} &",
        "up\r\n",
        until_stopped,
        stop,
        "",
        "PROMPT:",
        "fg\n",
        "run k",
        "hi\n",
        "got=hi\r\n",
    )
    run(terminal, "RUN k sh -c 'echo back''ground' & wait", "background\r\n")
    # While it waits in the queue.
    run(terminal, "RUN w sh -c 'echo u''p; exec sleep 1000' &", "up\r\n")
    run(terminal, "RUN -v w true; echo co''de=$?", "asked for\r\n", CTRL_C, "code=130\r\n")
    run(terminal, "kill %1; wait; echo do''ne", "done\r\n")
    # It is stopped there, keeps its place, and is served when it goes on.
    run(terminal, "RUN w sh -c 'echo u''p; exec sleep 1000' &", "up\r\n")
    run(terminal, "RUN -v w echo ser''ved", "asked for\r\n", CTRL_Z, stop, "", "PROMPT:", "kill %1; fg\n", "served\r\n")
    # Its output goes elsewhere, and the other end has the terminal.
    # The page that it waits below needs what the command writes.
    if shutil.which("less"):
        pager = "(less; echo qu''it)"
        run(terminal, f"RUN k sh -c 'seq 1000; exec sleep 1000' | {pager}", "\n:", "q", "quit\r\n", CTRL_C, "PROMPT:")
    else:
        print("not run: there is no less")
    run(
        terminal,
        "RUN -v k sleep 1000 | (trap '' INT; cat); echo co''de=${PIPESTATUS[0]}",
        "held",
        CTRL_C,
        "code=130\r\n",
    )
    # It sets up the terminal nevertheless, as one that asks for a password.
    run(terminal, "RUN k sh -c 'stty -echo < /dev/tty; stty echo < /dev/tty; echo se''t' | cat", "set\r\n")
    # In a script the whole script is stopped.
    run(
        terminal,
        f"sh -c \"$PROGRAM run k sh -c 'echo u''p; read x; echo go''t=\\$x'; echo aft''er\"",
        "up\r\n",
        CTRL_Z,
        stop,
        "",
        "PROMPT:",
        "fg\n",
        "sh -c",
        "hi\n",
        "got=hi\r\nafter\r\n",
    )
    # The script itself has the terminal again, when the command has ended.
    script = "$PROGRAM run k true; echo u''p; read x; echo go''t=\\$x"
    run(terminal, f'sh -c "{script}"', "up\r\n", "hi\n", "got=hi\r\n")
    # And when the program alone is stopped: its keys reach the script, which can be stopped, too, and goes on.
    terminal.type(f"sh -c '$PROGRAM run k {sleeper}; true'\n")
    terminal.expect("up ")
    terminal.expect("\r\n")
    program = int(terminal.before)
    os.kill(program, signal.SIGTSTP)
    wait_until_stopped(program)
    terminal.type(CTRL_Z)
    terminal.expect(stop)
    terminal.expect("PROMPT:")
    run(terminal, "fg", "goes on\r\n", CTRL_C, "PROMPT:")
    # Whatever happened, the shell has its terminal again, and no job is left.
    run(terminal, "jobs; echo le''ft", "left\r\n")
    terminal.type("exit\n")


def closed():
    """The terminal goes away: its window is closed, or the connection to the machine breaks."""
    up = "echo u''p; exec sleep 1000"
    terminal = Terminal()
    run(terminal, f"RUN back sh -c '{up}' &", "up\r\n")
    run(terminal, "RUN -v back true &", "asked for\r\n")
    terminal.type(f"{os.environ['PROGRAM']} run front sh -c '{up}'\n")
    terminal.expect("up\r\n")
    alone = Terminal(os.environ["PROGRAM"], "run", "alone", "sh", "-c", up)
    alone.expect("up\r\n")
    for each in (terminal, alone):
        os.close(each.file)
        os.waitpid(each.pid, 0)


def orphan():
    """Its shell is gone, so that nothing can bring it to the foreground; and it reads from the terminal."""
    terminal = Terminal()
    terminal.type("($PROGRAM run k sh -c 'echo up > $UP; read x < /dev/tty' &)\n")
    terminal.prompt()
    # Until nobody looks at it any more.
    sys.stdin.read()


def question():
    """An operator is asked before a lock is broken."""
    terminal = Terminal()

    def redis(*words):
        return subprocess.run(["redis-cli", "-u", os.environ["REDIS_LOCK_URL"], *words], check=True)

    redis("LOCK.ACQUIRE", "k", "first", "PX", "600000")
    for answer, code in ("n\n", 1), ("\n", 1), ("\x04", 1), ("y\n", 0):
        terminal.type("$PROGRAM break k; echo co''de=$?\n")
        terminal.expect("k: break the hold of first (held for")
        terminal.expect("[y/N] ")
        if code == 0:
            # The next one has it before the answer is given.
            redis("LOCK.RELEASE", "k", "first")
            redis("LOCK.ACQUIRE", "k", "next", "PX", "600000")
        terminal.type(answer)
        terminal.expect("nothing was broken" if code else "k: is not held any more by first")
        terminal.expect(f"code={code}\r\n")
    terminal.type("$PROGRAM break k\n")
    terminal.expect("[y/N] ")
    terminal.type("yes\n")
    terminal.expect("k: ended the hold of next")
    # A hold reads the terminal, too.
    terminal.type("$PROGRAM hold k; echo co''de=$?\n")
    terminal.expect("k\t")
    terminal.type("\x04")
    terminal.expect("code=0\r\n")
    terminal.prompt()
    terminal.type("exit\n")


{"keys": keys, "closed": closed, "orphan": orphan, "question": question}[sys.argv[1]]()
