# SPDX-License-Identifier: Apache-2.0
"""Reports on runs and studies: one page of sections, as HTML, PDF and Markdown."""
