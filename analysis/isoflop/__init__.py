# SPDX-License-Identifier: Apache-2.0
"""`isoflop`: scaling laws of model size and tokens, fitted to runs of several compute budgets."""
