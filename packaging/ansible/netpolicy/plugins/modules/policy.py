#!/usr/bin/python
# Copyright: the netpolicy authors
# Licensed under Apache-2.0 OR MIT
# SPDX-License-Identifier: Apache-2.0 OR MIT

from __future__ import absolute_import, annotations, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: policy
short_description: Write netpolicy's policy files, put them in force, and judge the change on live traffic
description:
  - Writes policy files and puts them in force, by the daemon if one runs, else by C(netpolicy apply) or C(netpolicy try --guard).
  - If the change is refused, fails, or is not kept by its guard, the previous files are restored and the task fails; RV(ruling) says why.
  - Check mode runs C(netpolicy plan). Diff mode shows files and settings.
version_added: 0.1.0
author:
  - The netpolicy authors (@netpolicy)
extends_documentation_fragment:
  - netpolicy.netpolicy.host
options:
  state:
    description:
      - V(applied) writes O(files) and puts the policy in force.
      - V(restored) undoes that. O(files) are the RV(previous) ones, and O(transactions) those that it made.
    type: str
    choices: [applied, restored]
    default: applied
  files:
    description:
      - Names of policy files, each with its text. Without a text (null), the file is removed. Other files are left alone.
      - A name has letters, digits, C(_), C(.) and C(-), ends in C(.toml), and does not begin with C(.) or C(-).
      - A text is UTF-8, of at most 1 MiB. A file masked by a link to C(/dev/null) is refused.
    type: dict
    default: {}
  transactions:
    description: With O(state=restored), the transactions to roll back, oldest first.
    type: list
    elements: str
    default: []
  guard:
    description:
      - Limits of growth, as of C(netpolicy try --guard). The change is judged on live traffic and kept only within them.
      - On a host with a daemon, write C(guard) into the section of the service instead.
      - Without it, guards in the policy files are used.
    type: str
  service:
    description: With O(guard), judge by this service, a name or a TCP port. By default, all services of the policy files.
    type: str
  seconds:
    description: How long to judge. With a daemon, how long to wait until the policy is in force or judged.
    type: int
    default: 60
  disruptive:
    description: Also change settings that stop a queue or take the link down while they are written. A daemon has its own option.
    type: bool
    default: false
  allow_irreversible:
    description: Also change settings whose old value the kernel would not accept back. A daemon has its own option.
    type: bool
    default: false
  allow_inferred:
    description: Also pin interrupts whose queue was inferred. A daemon has its own option.
    type: bool
    default: false
attributes:
  diff_mode:
    description: Shows changed files, and changed settings of a host without a daemon.
    support: full
"""

EXAMPLES = r"""
- name: Put a policy in force, if the traffic of memcached does not get worse
  netpolicy.netpolicy.policy:
    files:
      50-fleet.toml: "{{ lookup('ansible.builtin.file', '50-fleet.toml') }}"
    guard: p99=+15%,cpu=+25%
    service: memcached
    seconds: 120
  register: tried

- name: Undo it
  netpolicy.netpolicy.policy:
    state: restored
    files: "{{ tried.previous }}"
    transactions: "{{ tried.transactions }}"
"""

RETURN = r"""
ruling:
  description:
    - V(unchanged), no setting differs, but files may have been written. V(planned), check mode would change something.
    - V(applied), in force and judged by no guard.
    - V(kept), in force and within the limits of its guard.
    - V(not-judged), there was too little traffic to judge. The host is restored. It is not a success.
    - V(beyond-limit), V(stalled), V(clients-left), V(service-ended), V(interrupted), what the guard found. The host is restored.
    - V(refused), V(failed), netpolicy refused it, or failed. The message says whether the host is restored.
    - V(restored), the result of O(state=restored).
  returned: always
  type: str
  sample: kept
previous:
  description: The previous texts of the files, null where there was none.
  returned: always
  type: dict
transactions:
  description: The transactions that this task has left in force, oldest first. A daemon undoes its own when the files are restored.
  returned: always
  type: list
  elements: str
changes:
  description: The changes of settings, each with its reason.
  returned: on a host without a daemon
  type: list
  elements: dict
verdicts:
  description: The guard's verdicts, one of each service, with their evidence.
  returned: if a guard judged
  type: list
  elements: dict
"""

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.netpolicy.netpolicy.plugins.module_utils.netpolicy import (
    COMMON,
    DONE,
    NO_TRAFFIC,
    NOT_RESTORED,
    POLICY_DIRS,
    REFUSED,
    REVERTED,
    USAGE,
    Netpolicy,
)

# Maximum time in seconds for a daemon to notice changed files; usually it notices them immediately.
NOTICES_WITHIN = 20

# Interval in seconds for polling the daemon's status.
LOOK_EVERY = 0.5

# How many seconds longer than a guard's time the daemon's verdict may take: the guard may have to wait for others, and
# measures before the change.
VERDICT_AFTER = 120


# The names of policy files that the module manages, and netpolicy's limit for their size in bytes.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}\.toml")
FILE_BYTES_MAX = 1 << 20


class NotWritten(Exception):
    """Policy files could not be written. The text says which, and what the directory holds now."""


class Files:
    """The policy files of a task: their texts before and after it."""

    def __init__(self, module):
        self.module = module
        self.dir = module.params["policy_dir"]
        self.wanted = module.params["files"]
        for name, text in self.wanted.items():
            if not NAME.fullmatch(name):
                module.fail_json(msg="files: %r is no name of a policy file, such as 50-fleet.toml" % name)
            if text is not None and not isinstance(text, str):
                module.fail_json(msg="files: %s: its text is no string" % name)
            try:
                size = len((text or "").encode("utf-8"))
            except UnicodeEncodeError:
                module.fail_json(msg="files: %s: its text is not UTF-8" % name)
            if size > FILE_BYTES_MAX:
                module.fail_json(msg="files: %s: larger than %d bytes" % (name, FILE_BYTES_MAX))
        self.before = dict((name, self.text(name)) for name in self.wanted)
        self.changed = dict((name, text) for name, text in self.wanted.items() if self.before[name] != text)

    def text(self, name):
        """The text of a file, None if there is none."""
        path = os.path.join(self.dir, name)
        try:
            if os.path.islink(path) and os.readlink(path) == os.devnull:
                self.module.fail_json(msg="%s is masked by a link to %s: remove the link first" % (path, os.devnull))
            # A pipe would block.
            if not stat.S_ISREG(os.stat(path).st_mode):
                self.module.fail_json(msg="%s is no regular file" % path)
            with open(path, "rb") as file:
                found = file.read(FILE_BYTES_MAX + 1)
            if len(found) > FILE_BYTES_MAX:
                self.module.fail_json(msg="%s is larger than %d bytes" % (path, FILE_BYTES_MAX))
            return found.decode("utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            self.module.fail_json(msg="%s is not UTF-8 text, and could not be restored" % path)
        except OSError as error:
            self.module.fail_json(msg="%s: %s" % (path, error.strerror))

    def write(self, texts):
        """Writes or removes files of the policy directory, each at once; after an error, none is changed.

        With the texts before the task, those that could be restored stay so.
        """
        made, done = {}, []
        try:
            for name, text in texts.items():
                made[name] = self.make(self.dir, text)
            for name in texts:
                self.place(made[name], os.path.join(self.dir, name))
                done.append(name)
        except OSError as error:
            if texts is self.before:
                left = [name for name in texts if name not in done]
            else:
                left = [name for name in done if not self.is_restored(name)]
            state = "NOT restored: %s" % ", ".join(left) if left else "No policy file was changed"
            raise NotWritten("%s: %s. %s." % (self.dir, error.strerror, state))
        finally:
            for name, making in made.items():
                if name not in done and making is not None:
                    os.remove(making)

    def is_restored(self, name):
        """Gives a file of the policy directory its previous text; returns whether that worked."""
        making = None
        try:
            making = self.make(self.dir, self.before[name])
            self.place(making, os.path.join(self.dir, name))
            return True
        except OSError:
            if making is not None:
                os.remove(making)
            return False

    def make(self, directory, text):
        """Writes a file next to its place, with a hidden name that netpolicy does not read; None without a text."""
        if text is None:
            return None
        os.makedirs(directory, mode=0o755, exist_ok=True)
        descriptor, making = tempfile.mkstemp(dir=directory, prefix=".ansible-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode("utf-8"))
            os.chmod(making, 0o644)
        except OSError:
            os.remove(making)
            raise
        return making

    def place(self, making, path):
        """Puts a complete file in its place, or removes the one there."""
        if making is not None:
            os.rename(making, path)
        elif os.path.lexists(path):
            os.remove(path)

    def as_wanted(self):
        """A temporary directory with the policy files as they are to be."""
        copy = os.path.join(tempfile.mkdtemp(dir=self.module.tmpdir), "policy.d")
        os.mkdir(copy)
        try:
            names = sorted(os.listdir(self.dir)) if os.path.isdir(self.dir) else []
            # As netpolicy does, without hidden files, such as an editor's.
            names = [each for each in names if each.endswith(".toml") and not each.startswith(".")]
            for name in (each for each in names if each not in self.changed):
                path = os.path.join(self.dir, name)
                if os.path.islink(path) and os.readlink(path) == os.devnull:
                    os.symlink(os.devnull, os.path.join(copy, name))
                else:
                    # With its mode: netpolicy refuses a file that others can write.
                    shutil.copy(path, os.path.join(copy, name))
            for name, text in self.changed.items():
                self.place(self.make(copy, text), os.path.join(copy, name))
        except (OSError, shutil.Error) as error:
            self.module.fail_json(msg="policy files of %s cannot be copied: %s" % (self.dir, error))
        return copy

    def dirs(self, own):
        """The directories of policy files with this one in place of the managed one."""
        others = [each for each in POLICY_DIRS[:-1] if os.path.isdir(each)]
        return [own] if self.dir != POLICY_DIRS[-1] else others + [own]

    def diff(self):
        """The files' differences as Ansible shows them."""
        return [
            dict(
                before_header=os.path.join(self.dir, name),
                after_header=os.path.join(self.dir, name),
                before=self.before[name] or "",
                after=text or "",
            )
            for name, text in sorted(self.changed.items())
        ]


def settings_diff(changes):
    """The settings' differences as Ansible shows them."""
    line = "{0} {1} {2}\n".format
    return dict(
        before_header="settings",
        after_header="settings",
        before="".join(line(each["object"], each["knob"], each["from"]) for each in changes),
        after="".join(line(each["object"], each["knob"], each["to"]) for each in changes),
    )


class Task:
    """One run of the module."""

    def __init__(self, module):
        self.module = module
        self.netpolicy = Netpolicy(module)
        self.files = Files(module)
        self.result = self.netpolicy.result
        self.result.update(changed=False, previous=self.files.before, transactions=[])
        # Only a successful task shows differences.
        self.diff = self.files.diff()

    def done(self, ruling, **more):
        """Ends the task."""
        self.result.update(more, ruling=ruling, diff=self.diff)
        self.module.exit_json(**self.result)

    def undone(self, ruling, msg, **more):
        """Ends the task as failed, after the files were restored."""
        self.result.update(more, ruling=ruling, changed=False)
        self.module.fail_json(msg=msg, **self.result)

    def write(self, texts, msg=""):
        """Writes policy files; if that fails, ends the task, with the reason for the change of files before it."""
        try:
            self.files.write(texts)
        except NotWritten as error:
            if texts is self.files.before:
                self.result["changed"] = True
            self.result.setdefault("ruling", "failed")
            self.module.fail_json(msg=("%s %s" % (msg, error)).strip(), **self.result)

    def apply(self):
        """Brings the files into force."""
        options = self.module.params
        copy = self.files.as_wanted()
        dirs = self.files.dirs(copy)
        # This also checks the files before anything is written.
        changes = self.netpolicy.plan(dirs)
        # Reasons name the files' final paths.
        for change in changes:
            because = change["because"]
            because["source"] = because["source"].replace(copy, self.files.dir)
        status = self.netpolicy.status()
        if status and options["guard"]:
            words = "a daemon keeps the policy here, and judges it itself: instead of the option guard, write "
            self.netpolicy.fail("refused", words + 'guard = { p99 = "+15%" } into the section of the service', REFUSED)
        if status:
            changed = bool(self.files.changed)
        else:
            changed = bool(self.files.changed or changes)
            self.result["changes"] = changes
            if changes:
                self.diff.append(settings_diff(changes))
        self.result["changed"] = changed
        if not changed:
            self.done("unchanged")
        if self.module.check_mode:
            self.done("planned")
        if status:
            self.by_daemon(status)
        self.by_command(changes)

    def by_command(self, changes):
        """Puts the files in force without a daemon."""
        options = self.module.params
        if not changes:
            self.write(self.files.changed)
            self.done("unchanged")
        before = set(each["id"] for each in self.netpolicy.in_force())
        if options["guard"]:
            arguments = ["try", "--guard=" + options["guard"], "--seconds=%d" % options["seconds"]]
            if options["service"]:
                arguments.append("--on=" + options["service"])
        else:
            arguments = ["apply"]
        for option in ("disruptive", "allow_irreversible", "allow_inferred"):
            if options[option]:
                arguments.append("--" + option.replace("_", "-"))
        self.write(self.files.changed)
        try:
            answer = self.netpolicy.run(arguments, None if self.files.dir == POLICY_DIRS[-1] else [self.files.dir])
        except BaseException:
            # The task has failed with its reason already, and prints nothing more.
            with contextlib.suppress(NotWritten):
                self.files.write(self.files.before)
            raise
        verdicts = answer.data.get("verdicts")
        more = dict(verdicts=verdicts) if verdicts is not None else {}
        if answer.code == DONE:
            self.result["transactions"] = [each["id"] for each in self.netpolicy.in_force() if each["id"] not in before]
            self.done(answer.data.get("ruling", "applied"), **more)
        self.result.update(more)
        self.write(self.files.before, answer.words)
        if answer.code == REVERTED and "ruling" in answer.data:
            ruling = answer.data["ruling"]
            words = "too little traffic to judge the change" if ruling == "not-judged" else "the guard reverted the change"
            self.undone(ruling, "%s: %s. The host and its policy files were restored." % (words, ruling), rc=answer.code, **more)
        if answer.code == REFUSED and any(words in answer.words for words in NO_TRAFFIC):
            self.undone("not-judged", answer.words, rc=answer.code)
        self.undone("refused" if answer.code in (REFUSED, USAGE) else "failed", answer.words, rc=answer.code, **more)

    def by_daemon(self, before):
        """Writes the files, and waits until the daemon has them in force or has judged them."""
        seen = set((each["service"], each["unix_micros"]) for each in before["verdicts"])
        self.write(self.files.changed)
        ruling, msg, verdicts = self.outcome(before, seen)
        if verdicts:
            self.result["verdicts"] = verdicts
        if msg is None:
            self.done(ruling)
        status = self.netpolicy.status()
        self.write(self.files.before, msg)
        if status:
            self.wait_for_read(status)
        self.undone(ruling, msg + " The policy files were restored.")

    def wait_for_read(self, before):
        """Waits until the daemon has read the files again; returns its status, None if it does not."""
        deadline = time.monotonic() + NOTICES_WITHIN
        while time.monotonic() < deadline:
            status = self.netpolicy.status()
            if status and (status["policy"]["reads"] > before["policy"]["reads"] or status["pid"] != before["pid"]):
                return status
            time.sleep(LOOK_EVERY)
        return None

    def outcome(self, before, seen):
        """The daemon's ruling, the error if it is not a success, and the new verdicts."""
        status = self.wait_for_read(before)
        if status is None:
            return "failed", "the daemon did not read the policy files within %d s." % NOTICES_WITHIN, []
        known = set((each["rule"], each["object"]) for each in before["findings"])
        deadline = time.monotonic() + self.module.params["seconds"] + VERDICT_AFTER
        missing, waits = [], False
        while time.monotonic() < deadline:
            if status["policy"]["mistakes"]:
                return "refused", "the policy files have mistakes: %s" % status["policy"]["mistakes"], []
            verdicts = [each for each in status["verdicts"] if (each["service"], each["unix_micros"]) not in seen]
            bad = [each for each in verdicts if each["ruling"] != "kept"]
            if bad:
                words = "; ".join("%s: %s" % (each["service"], each["ruling"]) for each in bad)
                ruling = next((each["ruling"] for each in bad if each["ruling"] != "not-judged"), "not-judged")
                return ruling, "the daemon's guard did not keep the change: %s." % words, verdicts
            problems = [
                each for each in status["findings"]
                if each["severity"] == "problem" and (each["rule"], each["object"]) not in known
            ]
            if problems:
                words = "; ".join("%s: %s" % (each["object"], each["summary"]) for each in problems)
                return "failed", "the daemon reports new problems: %s." % words, verdicts
            missing = [each["target"] for each in status["requests"] if each["set"] < each["wanted"]]
            waits = any(each["rule"] == "guard-waits" for each in status["findings"])
            if status["phase"] == "managing" and not missing and not waits:
                wrote = any(status["counters"][each] != before["counters"][each] for each in ("changes", "released"))
                return ("kept" if verdicts else "applied" if wrote else "unchanged"), None, verdicts
            time.sleep(LOOK_EVERY)
            status = self.netpolicy.status()
            if status is None:
                return "failed", "the daemon has ended.", []
        if waits or missing:
            return "not-judged", "not in force or not judged in time: %s." % ", ".join(missing or ["guard-waits"]), []
        return "failed", "the daemon has not converged.", []

    def restore(self):
        """Undoes what an earlier task has done."""
        transactions = self.module.params["transactions"]
        live = [each["id"] for each in self.netpolicy.in_force()]
        left = [each for each in transactions if each in live]
        self.result["changed"] = bool(self.files.changed or left)
        if self.module.check_mode or not self.result["changed"]:
            self.done("restored" if not self.result["changed"] else "planned")
        status = self.netpolicy.status()
        self.write(self.files.changed)
        if status and self.files.changed and self.wait_for_read(status) is None:
            self.undone("failed", "the daemon did not read the restored policy files within %d s" % NOTICES_WITHIN)
        for each in reversed(left):
            answer = self.netpolicy.run(["rollback", each])
            if answer.code != DONE:
                ruling = "not-restored" if answer.code == NOT_RESTORED else "failed"
                self.undone(ruling, answer.words, rc=answer.code)
        self.done("restored")


def main():
    """Runs the module."""
    spec = dict(
        COMMON,
        state=dict(type="str", choices=["applied", "restored"], default="applied"),
        files=dict(type="dict", default={}),
        transactions=dict(type="list", elements="str", default=[]),
        guard=dict(type="str"),
        service=dict(type="str"),
        seconds=dict(type="int", default=60),
        disruptive=dict(type="bool", default=False),
        allow_irreversible=dict(type="bool", default=False),
        allow_inferred=dict(type="bool", default=False),
    )
    module = AnsibleModule(argument_spec=spec, required_by={"service": "guard"}, supports_check_mode=True)
    for option in ("guard", "service"):
        # An empty variable must not apply a change without its guard.
        if module.params[option] is not None and not module.params[option].strip():
            module.fail_json(msg="%s is empty: leave it out, or give it a value" % option)
    if module.params["seconds"] < 1:
        module.fail_json(msg="seconds must be at least 1")
    task = Task(module)
    if module.params["state"] == "applied":
        task.apply()
    else:
        task.restore()


if __name__ == "__main__":
    main()
