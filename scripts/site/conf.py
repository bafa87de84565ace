"""Sphinx's configuration: README, the pages of docs/ and the docstrings as a site that needs no network.

The pages stay as they are, so that they read the same in the repository, in ``exactlyonce help`` and here. The order of
the pages is :data:`NAVIGATION`; the reference of classes is made from the table in docs/concepts.md.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: Airflow makes one when it is imported; not where the user's is.
AIRFLOW_HOME: Final = tempfile.TemporaryDirectory(prefix="exactlyonce-docs-")
os.environ["AIRFLOW_HOME"] = AIRFLOW_HOME.name

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "airflow_provider_exactlyonce"
REFERENCE: Final = "build/reference"
#: Which names of the page of concepts are public, by the module that they are imported from.
NAMES: Final = re.compile(r"^\| (?:`([\w.]+)` )?\| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)
LINK: Final = re.compile(r"\[([^][]+)\]\(([^()\s#]+)\)")
#: Parts of the package that have a page of reference, in their order.
ROOMS: Final = (
    "streaming",
    "state",
    "testing",
    "operators",
    "policies",
    "sensors",
    "triggers",
    "links",
    "assets",
    "hooks",
    "kafka",
)

NAVIGATION: Final[Mapping[str, tuple[str, ...]]] = {
    "Start": ("docs/tutorial", "docs/concepts", "docs/guarantees", "docs/migrate"),
    "How to, in Airflow": ("docs/supervise", "docs/gates", "docs/airflow", "docs/upgrades", "docs/backfill"),
    "How to, with state": (
        "docs/savepoints",
        "docs/restore",
        "docs/rescale",
        "docs/recovery",
        "docs/state",
        "docs/testing",
    ),
    "Sources and sinks": (
        "docs/kafka-source",
        "docs/table-source",
        "docs/kafka-sink",
        "docs/schema-registry",
        "docs/postgres-sink",
        "docs/delta-sink",
        "docs/lakehouse",
        "docs/iceberg-sink",
        "docs/compaction",
        "docs/file-sink",
        "docs/write-ahead-log",
        "docs/several-sinks",
        "docs/own-sink",
    ),
    "Reference": (
        "docs/options",
        "docs/checkpoints",
        "docs/late-rows",
        "docs/compatibility",
        "docs/errors",
        "docs/exit-codes",
        *(f"{REFERENCE}/{room}" for room in (*ROOMS, "exceptions")),
    ),
    "Operation": (
        "docs/operating",
        "docs/delete",
        "docs/deploy",
        "docs/kubernetes",
        "docs/homes",
        "docs/move-home",
        "docs/metrics",
        "docs/speed",
        "docs/scale",
        "docs/doctor",
        "docs/audit",
        "docs/security",
        "docs/airflow-3",
    ),
    "The project": (
        "docs/protocol",
        "docs/model/README",
        "docs/crash-matrix",
        "docs/soak",
        "docs/demo-cluster",
        "docs/architecture",
        "CONTRIBUTING",
        "CHANGELOG",
    ),
}

project = "airflow-provider-exactlyonce"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/model/*.md", f"{REFERENCE}/*.rst"]
html_theme = "furo"
html_title = project
html_show_sphinx = False
html_copy_source = False
highlight_language = "text"
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"


def public_names() -> dict[str, list[tuple[str, str]]]:
    """Return the public names of each room as (module, name), as the page of concepts has them."""
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    module = ""
    for given, names in NAMES.findall((ROOT / "docs/concepts.md").read_text()):
        module = given or module
        found[module.partition(".")[0]] += [(module, name) for name in re.findall(r"\w+", names)]
    return dict(found)


def write_reference(_: Sphinx) -> None:
    """Write the pages of the reference, which Sphinx fills with docstrings."""
    folder = ROOT / REFERENCE
    folder.mkdir(parents=True, exist_ok=True)
    for room, names in public_names().items():
        lines = [f"{PACKAGE}.{room}", "=" * 60]
        for module, name in names:
            value = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
            kind = "autoclass" if inspect.isclass(value) else "autofunction" if callable(value) else "autodata"
            lines += ["", f".. {kind}:: {PACKAGE}.{module}.{name}", *(["   :members:"] * inspect.isclass(value))]
        (folder / f"{room}.rst").write_text("\n".join(lines) + "\n")
    title = f"{PACKAGE}.exceptions"
    lines = [title, "=" * 60, "", f".. automodule:: {title}", "   :members:", "   :show-inheritance:"]
    (folder / "exceptions.rst").write_text("\n".join(lines) + "\n")


def adapt(_: Sphinx, page: str, source: list[str]) -> None:
    """Leave out links to directories, which a site can't show, and append the navigation to the first page."""
    folder = (ROOT / page).parent
    source[0] = LINK.sub(lambda link: link[1] if (folder / link[2]).is_dir() else link[0], source[0])
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""])


def write_start(app: Sphinx, _: Exception | None) -> None:
    """Write ``index.html``, which leads to the first page."""
    (Path(app.outdir) / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n')


def setup(app: Sphinx) -> None:
    """Connect the steps above."""
    app.connect("builder-inited", write_reference)
    app.connect("source-read", adapt)
    app.connect("build-finished", write_start)
