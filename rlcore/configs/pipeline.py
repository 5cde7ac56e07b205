"""Settings of the stages around training: data, measurement, gate and registry."""

from pydantic import Field

from rlcore.configs.base import Settings, StageConfig


class DemoDataConfig(StageConfig):
    """Generation of the embedded data set."""

    dataset: str = "tasks.demos.arithmetic:generate"
    """The generator, as `module:function`. It gets this config and a folder to fill."""
    source: str | None = None
    """Folder with the files the generator starts from; null where it needs none."""
    model_name: str | None = None
    """Model folder the generator samples from; null where it needs none."""
    demonstrations: int = Field(6000, ge=0)
    """Rows for supervised fine-tuning."""
    preference_pairs: int = Field(8000, ge=1)
    """Preference pairs for training."""
    held_out_pairs: int = Field(600, ge=1)
    """Preference pairs from held-out groups, without label noise."""
    prompts_per_group: int = Field(5, ge=1)
    """Prompts drawn for each held-out group."""
    held_out_share: float = Field(0.2, gt=0, lt=1)
    """Share of the prompt groups that no training stage sees."""
    validation_share: float = Field(0.08, ge=0, lt=1)
    """Share of the prompt groups on which checkpoints are chosen."""
    slip_share: float = Field(0.6, ge=0, le=1)
    """Share of the sums of ten or more whose demonstration drops the ten, as a hurried person would."""


class EvaluateConfig(StageConfig):
    """Measurement of the policy beside its SFT start and the champion on held-out prompts."""

    gold: str | None = "tasks.demos.arithmetic:gold"
    """Checker of a response, as `module:function`; null where there is none. Never a training signal."""
    text_model: str | None = None
    """Model folder under which the perplexity of the responses is measured; null skips it."""
    samples_per_prompt: int = Field(4, ge=1)
    """Responses sampled for each held-out prompt."""
    max_new_tokens: int = Field(16, ge=1)
    """Longest response, in tokens."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    bootstrap_samples: int = Field(1000, ge=100)
    """Resamples of the prompt groups behind each interval."""
    example_prompts: int = Field(10, ge=0)
    """Prompts whose answers before and after are kept to be read."""


class GateConfig(StageConfig):
    """Conditions under which a policy becomes the challenger. A null condition is not checked.

    Where `evaluate.gold` is null nothing measures gold: set min_gain to {win: 0}, the paired comparison by the reward
    model, and max_drop_from_best to null.
    """

    min_gain: dict[str, float] = {"gold": 0.10}
    """Least gain over SFT; the lower end of the interval must be above 0. Keys: what the checker measures, `win` (share
    of answers that are better less share that are worse), and `reward/score_mean`."""
    min_win_rate: float | None = Field(0.5, ge=0, lt=1)
    """Where there is a champion: share of held-out answers better than its own, by gold or else by the reward model, a
    tie counting half. The lower end of the interval must be above it, so that a tie does not promote."""
    max_kl_sequence: float | None = Field(2.0, gt=0)
    """Largest KL to the reference, in nats per response."""
    max_drop_from_best: float | None = Field(0.05, ge=0)
    """Largest loss of gold against the best validation measure of the run; needs a checker that measures `gold`."""
    min_length_ratio: float | None = Field(0.8, gt=0)
    """Least mean response length, as a share of SFT's."""
    max_length_ratio: float | None = Field(1.3, gt=0)
    """Largest mean response length, as a share of SFT's."""
    min_eos_fraction: float | None = Field(0.98, ge=0, le=1)
    """Least share of responses that end by themselves."""
    min_distinct_ratio: float | None = Field(None, gt=0)
    """Least distinct-2, as a share of SFT's: falls when responses repeat themselves."""
    max_perplexity_ratio: float | None = Field(None, gt=0)
    """Largest perplexity of the responses under evaluate.text_model, as a share of SFT's."""
    max_calibration_error: float | None = Field(0.25, ge=0, le=1)
    """Largest expected calibration error of the reward model on held-out pairs. Few pairs raise it by chance: a model
    that is calibrated comes to 0.04 with 600 of them, and to 0.20 now and then with 50."""
    max_leak_share: float | None = Field(0.0, ge=0, le=1)
    """Largest share of held-out prompts that stand in the training data, after normalisation."""
    max_non_finite: int | None = Field(0, ge=0)
    """Most held-out answers of the policy whose score or KL is not a number."""


class RegisterConfig(StageConfig):
    """Registration of the policy in MLflow."""

    copy_limit: int = Field(1 << 30, ge=0)
    """Checkpoints up to this size, in bytes, are copied into the registry; of larger ones it keeps the DVC md5."""
    commit: bool = False
    """Commit dvc.lock, params.yaml and DVC's notes to git once a version is registered, and nothing else."""


class StageResources(Settings):
    """What one stage may use of a machine."""

    gpus: int = Field(ge=0)
    """GPUs that the stage holds while it runs, and sees; on a machine without any it runs on the CPU. 0 hides them."""
    timeout_minutes: float | None = Field(None, gt=0)
    """A longer stage is ended, its last checkpoint kept; null lets it take what it takes."""


class ResourcesConfig(StageConfig):
    """What each stage may use of the machine. The pipeline reads it, no stage does: a change trains nothing again.

    `validate` is not here: it sees no GPU and may take what it takes.
    """

    demo_data: StageResources = StageResources(gpus=1)
    """Generation of data; some generators sample from a model."""
    sft: StageResources = StageResources(gpus=1)
    """Supervised fine-tuning."""
    reward: StageResources = StageResources(gpus=1)
    """Training of the reward model."""
    policy: StageResources = StageResources(gpus=1)
    """Training of the policy, by any algorithm."""
    evaluate: StageResources = StageResources(gpus=1)
    """Measurement of the policy."""
