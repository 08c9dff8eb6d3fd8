# SPDX-License-Identifier: Apache-2.0
"""Studies: a base deck and axes, expanded into points, run one by one and told in tables and plots."""
