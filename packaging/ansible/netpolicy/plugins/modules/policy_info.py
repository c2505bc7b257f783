#!/usr/bin/python
# Copyright: the netpolicy authors
# Licensed under Apache-2.0 OR MIT
# SPDX-License-Identifier: Apache-2.0 OR MIT

from __future__ import absolute_import, annotations, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: policy_info
short_description: Report what netpolicy would change, has in force, and sees drift
description:
  - Reads plan, drift, transactions and the state of the daemon. It changes nothing.
version_added: 0.1.0
author:
  - The netpolicy authors (@netpolicy)
extends_documentation_fragment:
  - netpolicy.netpolicy.host
attributes:
  diff_mode:
    description: Prints no differences.
    support: none
"""

EXAMPLES = r"""
- name: What netpolicy has in force
  netpolicy.netpolicy.policy_info:
  register: host

- name: No host may have drifted
  ansible.builtin.assert:
    that: not host.drifted
"""

RETURN = r"""
changes:
  description: The changes that the policy files ask for now, each with its reason.
  returned: always
  type: list
  elements: dict
drifted:
  description: Whether a setting has another value than netpolicy has set.
  returned: always
  type: bool
transactions:
  description: The transactions that have settings in force, oldest first, with the verdicts of their guards.
  returned: always
  type: list
  elements: dict
daemon:
  description: The daemon's status, or none if no daemon answers.
  returned: always
  type: dict
version:
  description: The program's version.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.netpolicy.netpolicy.plugins.module_utils.netpolicy import (
    COMMON,
    DONE,
    PENDING,
    POLICY_DIRS,
    Netpolicy,
)


def main():
    """Runs the module."""
    module = AnsibleModule(argument_spec=dict(COMMON), supports_check_mode=True)
    netpolicy = Netpolicy(module)
    own = module.params["policy_dir"]
    dirs = None if own == POLICY_DIRS[-1] else [own]
    code, version, words = module.run_command([netpolicy.command[0], "--version"])
    if code or not version.startswith("netpolicy "):
        module.fail_json(msg=words or "%s is not netpolicy" % netpolicy.command[0], rc=code)
    module.exit_json(
        changed=False,
        changes=netpolicy.plan(dirs),
        drifted=netpolicy.expect(["verify"], (DONE, PENDING)).code == PENDING,
        transactions=netpolicy.in_force(),
        daemon=netpolicy.status(),
        version=version.split()[1],
    )


if __name__ == "__main__":
    main()
