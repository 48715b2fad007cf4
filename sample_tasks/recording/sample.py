"""A sample task as the recorder sees it: its folder, its parameters, and where their values are written."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Configuration = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """A sample task: its folder, task file, training configuration and searchable parameters."""

    folder: Path
    task: dict[str, Any]
    workload: dict[str, Any]
    parameters: list[dict[str, Any]]

    @classmethod
    def load(cls, folder: Path) -> Sample:
        task = tomllib.loads((folder / "infrarsi.toml").read_text())
        workload = tomllib.loads((folder / "config.toml").read_text())
        return cls(folder, task, workload, [p for p in task["parameters"] if "derived" not in p])

    @property
    def ranks(self) -> int:
        return int(self.task["allocation"]["nodes"] * self.task["allocation"]["gpus_per_node"])

    @property
    def tokens_per_update(self) -> int:
        return int(self.workload["workload"]["global_batch"] * self.workload["model"]["sequence"])

    def literals(self, name: str) -> dict[Any, Any]:
        """Value as searched -> value as written."""
        values = next(p["values"] for p in self.parameters if p["mechanism"] == name)
        return values if isinstance(values, dict) else {value: value for value in values}

    def baseline(self) -> Configuration:
        return {p["mechanism"]: p["default"] for p in self.parameters}

    def normal_form(self, configuration: Configuration) -> Configuration:
        """Parameters that mean nothing beside the others get their default: equal trials, equal rows."""
        result = dict(configuration)
        extra = {"world_size": self.ranks, "global_batch": self.workload["workload"]["global_batch"]}
        for parameter in self.parameters:
            condition = parameter.get("when", "True")  # our own file: plain comparisons of the names below
            if not eval(condition, {"__builtins__": {}}, {**result, **extra}):
                result[parameter["mechanism"]] = parameter["default"]
        return result

    def neighbours(self, center: Configuration) -> list[Configuration]:
        """Everything one change away from the center."""
        changed = [
            self.normal_form({**center, name: value})
            for name in center
            for value in self.literals(name)
            if value != center[name]
        ]
        return list({key_of(c): c for c in changed if c != center}.values())

    def write(self, configuration: Configuration, path: Path) -> dict[str, str]:
        """Write the training configuration of a trial; returns the environment variables that go with it."""
        config = {key: dict(v) if isinstance(v, dict) else v for key, v in self.workload.items()}
        environment = dict[str, str]()
        for parameter in self.parameters:
            literal = self.literals(parameter["mechanism"])[configuration[parameter["mechanism"]]]
            for binding in parameter["bindings"]:
                if "env" not in binding:
                    section, key = binding["key"].split(".")
                    config[section][key] = literal
                elif literal != {"unset": True}:
                    environment[binding["env"]] = str(literal)
        path.write_text(toml_text(config))
        return environment


def key_of(configuration: Configuration) -> str:
    """Equal configurations have equal keys."""
    return json.dumps(configuration, sort_keys=True)


def toml_text(table: dict[str, Any]) -> str:
    """TOML of a table: plain values, then one level of sections; tables inside those are written inline."""
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{key} = {toml_value(value)}" for key, value in section.items())]
    return "\n".join(lines).lstrip() + "\n"


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
