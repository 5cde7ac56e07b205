"""Settings of the validation of raw data: one policy for each rule, and the limits that rules ask for."""

from typing import Literal

from pydantic import Field, model_validator

from rlcore.configs.base import Settings, StageConfig
from rlcore.errors import ConfigError

Dropping = Literal["error", "drop"]
"""`error` fails the stage at the first such row, `drop` sends it to quarantine: it cannot be trained on."""
Keeping = Literal["error", "drop", "warn", "off"]
"""`warn` keeps the row and says so, `off` does not look."""
Mending = Literal["error", "drop", "repair", "warn", "off"]
"""`repair` mends the row, and drops it where that does not help."""
Telling = Literal["error", "warn", "off"]
"""For rules about a whole file or about two splits: no single row is at fault."""


class ValidationRules(Settings):
    """What happens to a row that breaks a rule. `tasks.intake.rules` says what each rule asks for."""

    readable: Dropping = "drop"
    """A row can be read: encoding, JSON, CSV, Parquet and gzip are whole. One that cannot has no third way."""
    is_text: Dropping = "drop"
    """A text column holds text or messages, and `group` text."""
    not_empty: Keeping = "drop"
    """A text has a character that can be seen."""
    messages: Dropping = "drop"
    """Messages are a list of objects with `role` and `content`, both text."""
    known_role: Dropping = "drop"
    """A message is of system, user, assistant or tool."""
    role_order: Keeping = "drop"
    """A system message comes first, user and assistant take turns, an answer is the assistant's."""
    shared_prompt: Dropping = "drop"
    """Chosen and rejected conversations differ in their last message alone."""
    label: Dropping = "drop"
    """The label of unpaired feedback is true or false."""
    scores: Dropping = "drop"
    """Scores are finite numbers, at least one of them, the same objectives in every row."""
    case_idx: Dropping = "drop"
    """The number of an environment's case is a whole number from 0."""
    known_split: Dropping = "drop"
    """`split` is train, validation or held_out."""
    unknown_column: Telling = "warn"
    """A column is one that somebody reads."""
    different_answers: Keeping = "drop"
    """Chosen and rejected differ."""
    different_answers_normalised: Keeping = "warn"
    """Chosen and rejected differ in more than case, width of characters and white space."""
    duplicate: Keeping = "warn"
    """A row is there once."""
    duplicate_normalised: Keeping = "warn"
    """A row differs from others in more than case, width of characters and white space."""
    near_duplicate: Keeping = "warn"
    """A row is not nearly another one; looked for where `validate.near_duplicates` is set."""
    contradiction: Keeping = "warn"
    """No other row says the opposite."""
    max_characters: Keeping = "drop"
    """A text has at most `validate.max_characters` characters."""
    prompt_too_long: Keeping = "drop"
    """A prompt leaves room for a response within `validate.max_tokens`."""
    response_cut: Keeping = "drop"
    """Prompt, response and end token have at most `validate.max_tokens` tokens."""
    template: Keeping = "drop"
    """The chat template of `validate.tokenizer` takes the messages."""
    lone_surrogate: Literal["error", "drop", "repair"] = "drop"
    """A text is valid Unicode. Repair takes out halves of characters."""
    control_character: Mending = "warn"
    """A text has no control characters but tab and line end. Repair takes them out."""
    carriage_return: Mending = "warn"
    r"""Lines end with `\n` alone. Repair makes them do so."""
    bidi_control: Mending = "warn"
    """A text has no characters that turn the direction of writing. Repair takes them out."""
    zero_width: Mending = "warn"
    """A text has no invisible characters. Repair takes them out."""
    mojibake: Mending = "warn"
    """A text was decoded rightly. Repair decodes it again."""
    replacement_character: Keeping = "warn"
    """No character was lost in an earlier conversion."""
    special_token: Mending = "warn"
    """A text holds no special token of a chat template. Repair takes them out."""
    language_mix: Keeping = "warn"
    """Prompt and response are written in the same script."""
    secret: Mending = "warn"
    """A text holds no key, token or password. Repair puts a mark in its place."""
    personal_data: Mending = "warn"
    """A text holds no address, number or account of a person. Repair puts a mark in its place."""
    leak: Literal["error", "warn"] = "error"
    """Rows with the same prompt or group have the same split."""
    near_leak: Telling = "warn"
    """No training prompt is nearly one of another split; looked for where `validate.near_duplicates` is set."""


class ValidateConfig(StageConfig):
    """Validation of the raw data. Rows that break a rule go to quarantine with the reason; good rows pass unchanged."""

    source: str = "data/raw/demo"
    """Folder with demonstrations, preferences and prompts: of each kind a file `<kind>.jsonl` (.json, .csv, .parquet;
    each also with .gz) or a folder of such files."""
    encoding: str = "utf-8"
    """Encoding of the text files; a byte order mark is allowed."""
    max_dropped_share: float = Field(0.02, ge=0, le=1)
    """Largest share of rows that may be dropped before the stage fails."""
    max_characters: int = Field(20_000, ge=1)
    """Longest prompt or response, in characters."""
    tokenizer: str | None = None
    """Folder of the model whose tokenizer measures lengths; null measures characters and checks no token limit."""
    max_tokens: int | None = Field(None, ge=2)
    """Longest prompt with its response, in tokens, as the trainers cut them; null checks no token limit."""
    near_duplicates: float | None = Field(None, gt=0, le=1)
    """Least similarity at which two rows count as nearly equal: the Jaccard index of their runs of three words, known
    to about 0.05. null skips the search."""
    held_out_share: float = Field(0.2, ge=0, lt=1)
    """Share of the prompt groups held out for evaluation, where rows carry no `split`."""
    validation_share: float = Field(0.08, ge=0, lt=1)
    """Share of the prompt groups for choosing checkpoints, where rows carry no `split`."""
    rules: ValidationRules = ValidationRules()
    """What happens to rows that break a rule."""

    @model_validator(mode="after")
    def _tokens_need_a_tokenizer(self) -> "ValidateConfig":
        if self.max_tokens is not None and self.tokenizer is None:
            raise ConfigError(
                f"max_tokens={self.max_tokens}, tokenizer=null: expected the folder of a model that counts the tokens"
            )
        return self
