# Copyright: the netpolicy authors
# Licensed under Apache-2.0 OR MIT
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Calls of the command netpolicy, by its exit codes and JSON (docs/reference/exit-codes.md)."""

from __future__ import absolute_import, annotations, division, print_function

__metaclass__ = type

import json

DONE, FAILED, USAGE, PENDING, REVERTED, NOT_RESTORED, UNSUPPORTED, REFUSED = range(8)

# Where netpolicy looks for policy files; a later directory wins.
POLICY_DIRS = ("/usr/lib/netpolicy/policy.d", "/run/netpolicy/policy.d", "/etc/netpolicy/policy.d")

COMMON = dict(
    executable=dict(type="path", default="netpolicy"),
    netns=dict(type="str"),
    state_dir=dict(type="path"),
    policy_dir=dict(type="path", default=POLICY_DIRS[-1]),
)

# Words of an error with which `netpolicy try --guard` refuses a service without enough traffic.
NO_TRAFFIC = ("no traffic for a verdict", "requests per second, too few for")


class Answer:
    """What one call printed: exit code, the JSON document's data, and the messages."""

    def __init__(self, code, data, words):
        self.code = code
        self.data = data
        self.words = words


class Netpolicy:
    """The command netpolicy on this host."""

    def __init__(self, module):
        self.module = module
        # Additional results of a failed task.
        self.result = {}
        options = module.params
        self.command = [module.get_bin_path(options["executable"], required=True), "--output", "json"]
        if options["netns"]:
            self.command.append("--netns=" + options["netns"])
        if options["state_dir"]:
            self.command.append("--state-dir=" + options["state_dir"])

    def run(self, arguments, policy_dirs=None):
        """Runs a subcommand; `policy_dirs` replaces the directories of policy files."""
        dirs = ["--policy-dir=" + each for each in policy_dirs or ()]
        code, out, words = self.module.run_command(self.command + dirs + arguments)
        try:
            document = json.loads(out) if out.strip() else {}
        except ValueError:
            self.fail("failed", "netpolicy %s printed no JSON: %s" % (arguments[0], out[:500]), code)
        # Notes come before the error.
        error = ("\n" + words).rfind("\nerror: ")
        return Answer(code, document.get("data") or {}, words[max(error, 0):].strip())

    def fail(self, ruling, msg, code):
        """Fails the task before anything was changed."""
        self.module.fail_json(msg=msg, rc=code, ruling=ruling, **self.result)

    def expect(self, arguments, codes=(DONE,), policy_dirs=None):
        """Runs a subcommand, and fails the task if it ends with another code."""
        answer = self.run(arguments, policy_dirs)
        if answer.code not in codes:
            self.fail("failed", answer.words or "netpolicy %s failed" % arguments[0], answer.code)
        return answer

    def status(self):
        """The daemon's status, or None if no daemon answers."""
        answer = self.run(["status"])
        return answer.data if answer.code in (DONE, PENDING) else None

    def plan(self, policy_dirs):
        """The changes that these policy files ask for; none if there are no files."""
        answer = self.run(["plan"], policy_dirs)
        if answer.code == USAGE and "there is no policy" in answer.words:
            return []
        if answer.code not in (DONE, PENDING):
            self.fail("refused" if answer.code in (USAGE, REFUSED) else "failed", answer.words, answer.code)
        return answer.data.get("changes", [])

    def in_force(self):
        """The transactions that have settings in force, oldest first."""
        found = self.expect(["history"]).data.get("transactions", [])
        found = [each for each in found if each.get("in_force")]
        return sorted(found, key=lambda each: each["unix_micros"])
