"""What was audited, by its class: the models of a report, and the class beside the name of a module."""

import re
from dataclasses import replace

from ampcheck.values.findings import Finding
from ampcheck.values.modules import above
from ampcheck.values.report import Report
from ampcheck.values.trace import Site
from ampcheck.values.wording import clean, place, some

#: What a framework puts around a model, and under which name it holds that.
HOLDERS = {"_FabricModule": "_forward_module"}


def models(report: Report) -> list[str]:
    """Return the classes of the outermost modules that have parameters, in the order in which they ran."""
    modules = {module.path: module for module in report.low.modules or report.reference.modules}
    tops = {
        path: next((outer for outer in ["", *above(path)] if path and outer in modules), path)
        for path in modules
    }
    owning = {tops[path] for path, module in modules.items() if module.parameters}
    tops_held = [modules.get(f"{path}.{HOLDERS.get(modules[path].kind)}", modules[path]) for path in modules]
    pairs = zip(modules, tops_held, strict=True)
    return list(dict.fromkeys(clean(module.kind) for path, module in pairs if path in owning))


def model_words(report: Report) -> str:
    """Return the classes of the models in a few words; '' where none ran."""
    return some(models(report))


def with_class(report: Report, path: str) -> str:
    """Return the name of a module with its class: `1 (RMSNorm)`."""
    kind = next((module.kind for module in report.low.modules if module.path == path), "")
    return f"{path} ({clean(kind)})" if kind and path else path


def place_with_class(report: Report, site: Site) -> str:
    """Return an operation and its module as part of a sentence: `mul in 1 (RMSNorm)`."""
    module = clean(site.module)
    return place(site) if not module else place(site).removesuffix(module) + with_class(report, module)


def classed(report: Report, finding: Finding) -> Finding:
    """Return a finding whose message has the class beside the name of the module that it is about."""
    origin = finding.origin
    if origin is None:
        return finding
    bare = rf"{re.escape(place(origin))}(?![\w.])"
    words = re.sub(bare, lambda _: place_with_class(report, origin), finding.message, count=1)
    return replace(finding, message=words)
