"""Stage `demo_data`: the embedded data set, made by the generator that the settings name."""

from rlcore.configs import DemoDataConfig
from tasks.demos import named_function
from tasks.records.artifacts import RAW
from tasks.records.stage import main, stage


def demo_data(config: DemoDataConfig) -> None:
    """Generate the raw data. The generator gets the config and the folder to fill.

    Raises:
        ConfigError: `dataset` names no function, or the generator cannot work with the config.
    """
    generate = named_function("demo_data.dataset", config.dataset)
    with stage("demo_data", config) as run:
        generate(config, RAW)
        run.finish()


if __name__ == "__main__":
    main(demo_data, DemoDataConfig)
