# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds these pages: `make docs`. Nothing is fetched, no GPU and no torch needed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import neutracer

project = "neutracer"
copyright = "the neutracer authors"
version = release = neutracer.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "neutracer_docs",
]
exclude_patterns = ["_ext"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# In docstrings a word in backquotes is a name: a link where it can be one.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# What these give is no promise: they lead into the C core.
autodoc_default_options = {"exclude-members": "native, program, facts"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"neutracer {release}"
html_static_path = ["_static"]
html_css_files = ["neutracer.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#1f5f99",
        "color-brand-content": "#1f5f99",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8fbfe6",
        "color-brand-content": "#8fbfe6",
    },
}
highlight_language = "text"
pygments_style = "tango"
pygments_dark_style = "monokai"
