# SPDX-License-Identifier: Apache-2.0
"""Tables and plots from the run directories of hyperslab."""
