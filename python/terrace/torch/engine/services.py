"""The services of `wandb` and `comet` in the configuration. Which scalars there are, and when, the run says: services get
what the files of tensorboard and csv_monitor get. The first rank alone has them. A service that fails while the run goes
on costs its curves and nothing else."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ConfigError

if TYPE_CHECKING:
    from ..._types import Named

SECRET = "comet.api_key"  # no log and no service is told its value
_WHAT = "cannot send scalars to a service"


class _Kind(NamedTuple):
    package: str
    needs: str  # what the package has
    login: str
    open: Callable[[ModuleType, Named, Named], Any]


class Services:
    """Of no section that is switched on it does nothing."""

    def __init__(self, values: Named, say: Callable[[str, str], None]) -> None:
        """Raises where a service cannot be reached or does not know the user."""
        self._say = say
        self._open: dict[str, Any] = {}
        told = {name: value for name, value in values.items() if value is not None and name != SECRET}
        try:
            for section in wanted(values):
                self._open[section] = _opened(section, values, told)
        except BaseException:
            self.end(True)
            raise

    def send(self, samples: int, scalars: dict[str, float]) -> None:
        """`samples` is the step: the sequences seen so far."""
        for section in list(self._open):
            self._try(section, lambda service: service.send(samples, scalars))

    def end(self, has_failed: bool) -> None:
        for section in list(self._open):
            self._try(section, lambda service: service.end(has_failed))
        self._open = {}

    def _try(self, section: str, action: Callable[[Any], object]) -> None:
        try:
            action(self._open[section])
        except Exception as error:
            # Both packages queue and repeat by themselves: what they raise is not over with the next call.
            del self._open[section]
            self._say("warning", f"nothing more goes to {section}, and the training goes on: {_words_of(error)}")


def wanted(values: Named) -> list[str]:
    """The sections that are switched on."""
    return [section for section in _KINDS if values.get(section + ".enabled")]


def require_packages(values: Named) -> None:
    """Before anything is planned."""
    for section in wanted(values):
        _package_of(section)


def _package_of(section: str) -> ModuleType:
    package = _KINDS[section].package
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == package
        reason = f"the package {package} is not installed" if is_missing else _words_of(error)
    else:
        if hasattr(module, _KINDS[section].needs):
            return module
        # A folder of this name in the working folder, as wandb makes one, imports as an empty package.
        is_folder = getattr(module, "__file__", None) is None
        reason = f"the package {package} is {'not installed' if is_folder else 'too old'}"
    raise ConfigError(
        _WHAT, f"{section}.enabled", reason, f'pip install {package}, or set "enabled": false in {section}'
    )


def _opened(section: str, values: Named, told: Named) -> Any:
    kind, module = _KINDS[section], _package_of(section)
    prefix = section + "."
    own = {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix) and value is not None
    }
    try:
        return kind.open(module, own, told)
    except Exception as error:
        raise ConfigError(
            _WHAT, f"{section}.enabled", _words_of(error), f'{kind.login}, or set "enabled": false in {section}'
        ) from error


def _words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]


class _Wandb:
    """A run that the program has begun is taken, and left to it."""

    def __init__(self, wandb: ModuleType, own: Named, told: Named) -> None:
        self._is_own = wandb.run is None
        given = {"project": own["project"], "group": own.get("group"), "entity": own.get("team")}
        self._run = wandb.init(**given) if self._is_own else wandb.run
        self._run.config.update({"terrace": told}, allow_val_change=True)

    def send(self, samples: int, scalars: dict[str, float]) -> None:
        # Others log to the same run, as the Trainer does. What lies behind their step would be dropped.
        self._run.log(scalars, step=max(samples, self._run.step))

    def end(self, has_failed: bool) -> None:
        if self._is_own:
            self._run.finish(exit_code=int(has_failed))


class _Comet:
    """As DeepSpeed does, a scalar is sent again after samples_log_interval sequences."""

    def __init__(self, comet_ml: ModuleType, own: Named, told: Named) -> None:
        self._interval = own["samples_log_interval"]
        self._sent: dict[str, int] = {}
        self._is_own = comet_ml.get_running_experiment() is None
        taken = ("project", "workspace", "api_key", "experiment_key", "mode", "online")
        self._experiment = comet_ml.start(**{name: own[name] for name in taken if name in own})
        if "experiment_name" in own:
            self._experiment.set_name(own["experiment_name"])
        self._experiment.log_parameters(told, prefix="terrace")

    def send(self, samples: int, scalars: dict[str, float]) -> None:
        due = {tag: value for tag, value in scalars.items() if self._is_due(tag, samples)}
        if due:
            self._experiment.log_metrics(due, step=samples)
            self._sent.update(dict.fromkeys(due, samples))

    def _is_due(self, tag: str, samples: int) -> bool:
        return tag not in self._sent or samples - self._sent[tag] >= self._interval

    def end(self, has_failed: bool) -> None:
        if self._is_own:
            self._experiment.end()


_KINDS = {
    "wandb": _Kind("wandb", "init", "log in with wandb login, or set WANDB_MODE=offline", _Wandb),
    "comet": _Kind("comet_ml", "start", "log in with comet login, or set online to false", _Comet),
}
