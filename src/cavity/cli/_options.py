"""Options of the command that are parameters of the library: read from its signatures and docstrings."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import typer

from cavity.estimators import EPClassifier, EPRegressor
from cavity.tables import Table

ESTIMATORS: dict[str, type] = {"classify": EPClassifier, "regress": EPRegressor}
_KINDS = {"classify": "Classifiers", "regress": "Regressors"}
# What help writes for the value of an option, where the type does not say it.
_VALUES = dict.fromkeys(("weight", "offset", "categories", "drop"), "COLUMN")
_VALUES |= {"memory": "SIZE", "scratch": "FOLDER"}
# Parameters of a table that may be given several times, and what one is called.
_REPEATED = {"categories": "--category", "drop": "--drop"}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class Choice(NamedTuple):
    """One option: its name in the library, its type on the command line, and what help says about it."""

    name: str
    type: Any
    help: str
    flag: str | None = None  # the option's name where it does not follow from the parameter's

    def parameter(self) -> inspect.Parameter:
        """Give it in the form of which typer makes an option. Without a value it is None, or an empty list."""
        names = [self.flag] if self.flag else []
        shown = typer.Option(*names, help=self.help, metavar=_VALUES.get(self.name), show_default=False)
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[self.type | None, shown]
        )


def estimator_choices() -> list[Choice]:
    """Options for every parameter of the estimators' constructors."""
    signatures = {task: inspect.signature(kind).parameters for task, kind in ESTIMATORS.items()}
    texts = {task: parameter_texts(kind) for task, kind in ESTIMATORS.items()}
    found = []
    for name in dict.fromkeys(name for parameters in signatures.values() for name in parameters):
        owners = [task for task, parameters in signatures.items() if name in parameters]
        first = signatures[owners[0]][name]
        helps = dict.fromkeys(_help(texts[task].get(name, ""), signatures[task][name].default) for task in owners)
        written = [text for text in helps if not text.startswith("As in")]
        marked = [f"{_KINDS[task]}: {text}" for task, text in zip(owners, written, strict=False)]
        is_shared = len(owners) > 1 and len(written) == 1
        found.append(Choice(name, _type_of(first), " ".join(written if is_shared else marked)))
    return found


def table_choices() -> list[Choice]:
    """Options for what a table wants to know, but its files and its target."""
    texts, found = parameter_texts(Table), []
    for name, parameter in inspect.signature(Table).parameters.items():
        if name in ("paths", "target"):
            continue
        text = _help(texts.get(name, ""), parameter.default)
        if name in _REPEATED:
            found.append(Choice(name, list[str], f"{text} May be repeated.", _REPEATED[name]))
        else:
            kind = bool if isinstance(parameter.default, bool) else str
            found.append(Choice(name, kind, text))
    return found


def with_choices(function: Callable[..., Any], choices: list[Choice]) -> Callable[..., Any]:
    """Let a command whose last argument is ``**choices`` have these options."""
    signature = inspect.signature(function, eval_str=True)
    fixed = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    every = [*fixed, *(choice.parameter() for choice in choices)]

    def command(**given: Any) -> Any:
        return function(**given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    return command


def parameters_for(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the constructor of an estimator; `ValueError` for an option that it does not have, or not use."""
    kind = ESTIMATORS[task]
    known = inspect.signature(kind).parameters
    for name in given:
        if name not in known:
            raise ValueError(
                f"--{name.replace('_', '-')} is not an option of {kind.__name__}, which --task {task} fits"
            )
    values = {name: plain_value(value) if isinstance(value, str) else value for name, value in given.items()}
    every = {name: parameter.default for name, parameter in known.items()} | values
    for name, (needed, is_met) in _NEEDED.items():
        if name in given and not is_met(every):
            raise ValueError(f"--{name.replace('_', '-')} has no effect here, it needs {needed}; leave it out")
    return values


# Parameters that have an effect with certain others only: which, and whether values of all parameters have them.
_NEEDED: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "quantile": ("--loss quantile", lambda every: every["loss"] == "quantile"),
    "epsilon": ("--loss huber", lambda every: every["loss"] == "huber"),
    "scale": ("a loss other than poisson", lambda every: every["loss"] != "poisson"),
    "normalize_y": (
        "a loss other than poisson, negative_binomial and gamma",
        lambda every: every["loss"] not in ("poisson", "negative_binomial", "gamma"),
    ),
    "intercept_prior_variance": ("--fit-intercept", lambda every: bool(every["fit_intercept"])),
    "random_state": ("--covariance diagonal", lambda every: every["covariance"] in ("diagonal", "auto")),
    "tol": ("--max-iter 2 or more", lambda every: every["max_iter"] != 1),
}


def table_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the constructor of a table."""
    defaults = {name: p.default for name, p in inspect.signature(Table).parameters.items()}
    whole = {name: size_of(name, value) for name, value in given.items() if _is_whole(defaults[name])}
    return {**given, **whole}


def plain_value(text: str) -> Any:
    """Read a number, or a list or an object of JSON; anything else is text."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{text!r} is not a list or object in JSON: {error}") from error
        return {plain_value(key): one for key, one in value.items()} if isinstance(value, dict) else value
    return text


def size_of(name: str, text: str) -> int:
    """Read a number of bytes, such as 512MB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].upper() not in _BYTES:
        raise ValueError(f"--{name.replace('_', '-')} must be a number of bytes such as 512MB or 2GB, got {text!r}")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def parameter_texts(kind: type) -> dict[str, str]:
    """Give what the docstring of a class says about each of its parameters, with the type it names."""
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    start = lines.index("Parameters") + 2
    texts: dict[str, str] = {}
    names: list[str] = []
    for line, following in zip(lines[start:], [*lines[start + 1 :], ""], strict=True):
        if following.startswith("---"):
            break
        if line and not line.startswith(" "):
            heading, _, form = line.partition(" : ")
            names = heading.split(", ")
            texts |= dict.fromkeys(names, f"{form}\n")
        else:
            texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
    return texts


def _help(text: str, default: Any) -> str:
    """Shorten a parameter's text to its first sentence, with the values it may have and the default."""
    form, _, body = text.partition("\n")
    sentence = re.split(r"(?<=\.)\s", " ".join(body.replace("`", "").split()), maxsplit=1)[0]
    sentence = re.sub(r"; None [^.]*|, or one of your own \([^)]*\)|; [^;]* how to write one", "", sentence)
    form = re.sub(r",? ?default=.*| or a loss object|name or loss object| or None", "", form).strip()
    form = form.replace("array of shape (n_features,)", "a list of one per feature")
    shown = [] if default is None or default == () or "default" in sentence else [f"default {str(default).lower()}"]
    if form.startswith("{") or '"' in form:
        shown.insert(0, form.strip("{}").replace('"', "").replace("} or", " or"))
    return f"{sentence} ({'; '.join(shown)})" if shown else sentence


def _type_of(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if isinstance(default, bool) or parameter.name == "verbose":
        return bool
    return type(default) if isinstance(default, int | float) and parameter.annotation in ("int", "float") else str


def _is_whole(default: Any) -> bool:
    return isinstance(default, int) and not isinstance(default, bool)
