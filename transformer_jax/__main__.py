"""Run a command by its short name, or list the configs and their options.

python -m transformer_jax COMMAND …      (or, once installed: transformer-jax COMMAND …)
"""

import ast
import importlib
import pathlib
import sys

from transformer_jax import cli
from transformer_jax import config as configs
from transformer_jax.base.errors import UserError, nearest

HERE = pathlib.Path(__file__).parent
MODULES = {  # short name → module that has `define_flags` and `main`
    "train": "train",
    "predict": "predict",
    "evaluate": "evaluate",
    "shards": "shards.__main__",
    "serve": "serve.__main__",
    "report": "report.__main__",
    "inspect": "inspect_data",
    "prepare": "prepare.__main__",
    "plan": "plan",
    "audit": "audit",
    "neighbours": "visualize.neighbours",
    "bundle": "convert.bundle",
    "huggingface": "convert.huggingface.__main__",
    "onnx": "convert.onnx",
    "exported": "convert.exported",
    "page": "convert.page",
    "ctranslate2": "convert.ctranslate2",
    "visualize": "visualize.__main__",
    "tfds": "data.tfds",
}


def main() -> int:
    """Run the command named by the first argument; without one, list all commands."""
    words = sys.argv[1:]
    own = {"configs": list_configs, "keys": list_keys}
    if not words or words[0] in cli.HELP:
        with cli.reported():
            print(overview())
        return 0
    name, *rest = words
    if name in MODULES:
        module = importlib.import_module(f"transformer_jax.{MODULES[name]}")
        sys.argv = [f"transformer-jax {name}", *rest]
        if name == "visualize":  # its first argument names the figure
            return module.main(sys.argv)
        module.define_flags()
        cli.run(module.main)
    with cli.reported():
        if name in own:
            own[name](rest)
            return 0
        known = [*MODULES, *own]
        raise UserError(
            f"there is no command {name!r}.{nearest(name, known)} "
            f"Commands: {', '.join(known)}"
        )
    return cli.USER_MISTAKE


def overview() -> str:
    """List the commands, each with the first line of its docstring."""
    lines = [(__doc__ or "").split("\n\n")[-1].strip(), ""]
    for name, module in MODULES.items():
        lines.append(f"  {name:<12} {_summary(HERE / _file(module))}")
    lines.append(f"  {'configs':<12} {list_configs.__doc__}")
    lines.append(f"  {'keys':<12} {list_keys.__doc__}")
    return "\n".join([*lines, "", "COMMAND --help lists the options of a command."])


def list_configs(words: list[str]) -> int:
    """List the configs that come with the package, or show one: configs [NAME]."""
    shipped = configs.shipped()
    if not words:
        for name, path in shipped.items():
            print(f"{name:<16} {_summary(path)}")
        return 0
    for name in words:
        if name not in shipped:
            raise UserError(
                f"no config {name!r} is shipped.{nearest(name, shipped)} "
                f"Shipped: {', '.join(shipped)}"
            )
        print(ast.get_docstring(ast.parse(shipped[name].read_text(encoding="utf-8"))))
    return 0


def list_keys(words: list[str]) -> int:
    """List the options of a config, their values and meanings: keys CONFIG [PREFIX]."""
    if not words:
        raise UserError(
            "keys needs a config: keys quickstart, or keys quickstart optim"
        )
    config = configs.load(words[0], data=False)
    declared = configs.declared(config.task, config.model.name)
    shown = {
        name: value
        for name, value in configs.items(config)
        if name.startswith(words[1] if len(words) > 1 else "")
    }
    if not shown:
        raise UserError(
            f"{words[0]} has no option that begins with {words[1]!r}."
            f"{nearest(words[1], [*declared, *{k.split('.')[0] for k in declared}])}"
        )
    width = max(len(f"{name} = {value!r}") for name, value in shown.items())
    for name, value in shown.items():
        field = declared[name]
        default = "" if value == field.default else f" (default: {field.default!r})"
        text = f"{name} = {value!r}"
        print(f"{text:<{min(width, 44)}}  {field.metadata['meaning']}{default}")
    return 0


def _summary(path: pathlib.Path) -> str:
    """Return the first line of a file's docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n")[0]


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


if __name__ == "__main__":
    sys.exit(main())
