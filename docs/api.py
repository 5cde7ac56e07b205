"""Write a page for every module of rlcore: `python docs/api.py FOLDER`. A warning is an error."""

import sys
import warnings
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pdoc

import rlcore


def main(folder: Path) -> None:
    """Write the pages."""
    modules = [module.name for module in walk_packages(rlcore.__path__, "rlcore.")]
    for module in modules:
        import_module(module)
    for name in rlcore.__all__:
        getattr(rlcore, name)  # loaded when asked for; pdoc looks at what is loaded
    # pdoc itself finds what lies below a package that lists no names.
    listed = [module for module in modules if hasattr(sys.modules[module.rpartition(".")[0]], "__all__")]
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc("rlcore", *listed, output_directory=folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
