# Copyright: the netpolicy authors
# Licensed under Apache-2.0 OR MIT
# SPDX-License-Identifier: Apache-2.0 OR MIT

from __future__ import absolute_import, annotations, division, print_function

__metaclass__ = type


class ModuleDocFragment(object):
    """The options of every module: which program, and which files of the host."""

    DOCUMENTATION = r"""
options:
  executable:
    description: The program, by path or name.
    type: path
    default: netpolicy
  netns:
    description: The network namespace to work in, as of C(netpolicy --netns).
    type: str
  state_dir:
    description: Where transactions are journalled. By default netpolicy's own, C(/var/lib/netpolicy).
    type: path
  policy_dir:
    description: The directory of the policy files that are managed. Another one than the default replaces all of netpolicy's directories.
    type: path
    default: /etc/netpolicy/policy.d
attributes:
  check_mode:
    description: Can run in check mode.
    support: full
"""
