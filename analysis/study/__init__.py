# SPDX-License-Identifier: Apache-2.0
"""Studies: a base deck and axes, expanded into points, run one by one and reported in tables and plots."""
