# SPDX-License-Identifier: Apache-2.0
"""What a user did wrong, reported in one line."""


class UserError(Exception):
    """One line: what, where, what to do. The command line prints it and exits with 2."""
