"""The options that `run` and `submit` share, as choices for a study."""

from __future__ import annotations

from argparse import Namespace

from infrarsi_tui.composition import Choices


def run_choices(arguments: Namespace) -> Choices:
    """What the command line says about a whole study."""
    return Choices(
        out=arguments.out,
        executor=arguments.executor,
        seed=arguments.seed,
        trials=arguments.trials,
        gpu_hours=arguments.gpu_hours,
        deadline=arguments.deadline,
        advisor=arguments.advisor,
        patches=arguments.patches,
        deploy=arguments.deploy,
        on_event=arguments.on_event,
    )
