"""`train`: a configuration and prepared data to a run directory."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from accelerate import PartialState
from datasets import Dataset
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerState
from transformers.utils.logging import disable_progress_bar

from open_nvib.store.files import InputError, digest_of_file, write_json, write_text
from open_nvib.store.runs import (
    CHECKPOINTS,
    CONFIG,
    EVALUATIONS,
    LENGTHS,
    LOG,
    MODEL,
    TOKENIZER,
    VALIDATION,
    WEIGHTS,
    as_plain,
    change_metrics,
    checkpoints,
    claim,
    damage,
    writing_to,
)
from open_nvib.store.settings import TrainConfig, last_value
from open_nvib.text.data import Prepared, load_prepared
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.training.console import Bar, Console
from open_nvib.text.training.trainer import AutoencoderTrainer


@dataclass(frozen=True)
class Sentences(torch.utils.data.Dataset[dict[str, np.ndarray]]):
    """The training sentences as one array of tokens and where each begins: an index costs next to nothing."""

    tokens: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(rows: Dataset) -> "Sentences":
        column = rows.with_format("arrow")[:]["input_ids"].combine_chunks()
        starts = column.offsets.to_numpy()
        return Sentences(np.array(column.flatten().to_numpy()), starts - starts[0])

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": self.tokens[self.starts[index] : self.starts[index + 1]]}


def train(
    config: TrainConfig,
    output: str | Path,
    *,
    overwrite: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, float]:
    """Train, or go on training, and write everything that later commands need to `output`.

    The same configuration again goes on from the last good checkpoint; another one is an InputError unless `overwrite`.
    `callbacks` of the Hugging Face Trainer may look on.

    Returns:
        The metrics of the model that was kept, on validation data.
    """
    directory = Path(output).expanduser()
    prepared = load_prepared(config.data)
    processes = PartialState(cpu=not torch.cuda.is_available())
    main = processes.is_main_process
    _check_data(config, prepared, processes.num_processes)
    _check_trackers(config.watch.trackers)
    set_seed(config.seed)
    with processes.main_process_first():  # which makes the directory that the others then find
        finished = claim(directory, config, overwrite=overwrite and main)
        if finished is not None:
            return finished
        model = make_model(config, prepared)
        if main:
            _write_run(directory, config, prepared)
    trainer = make_trainer(config, directory, prepared, model, callbacks)
    start = last_good_checkpoint(directory / CHECKPOINTS, trainer.say)
    step = 0 if start is None else int(start.name.split("-")[1])
    if main:
        _cut_log(directory / LOG, step)
    if start is not None:
        trainer.say(f"going on from {start}")
    try:
        if start is not None and step >= trainer.args.max_steps:
            _restore(trainer, start)
        else:
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
    except FloatingPointError as error:
        raise InputError(f"{directory}: {error}") from error
    metrics = {name.removeprefix("eval_"): value for name, value in trainer.evaluate().items()}
    if trainer.is_world_process_zero():
        with writing_to(directory / MODEL):
            trainer.autoencoder.save_pretrained(directory / MODEL)
        _write_metrics(directory, trainer.state.global_step, metrics)
    return metrics


def _write_metrics(directory: Path, step: int, metrics: dict[str, float]) -> None:
    """Beside what was measured before of this very model, whose metrics were lost."""
    model = digest_of_file(directory / MODEL / WEIGHTS)

    def change(known: dict[str, Any]) -> None:
        same = {name: each for name, each in known.pop(EVALUATIONS, {}).items() if each.get("model") == model}
        known.update({"step": step, VALIDATION: metrics, **({EVALUATIONS: same} if same else {})})

    change_metrics(directory, change)


def _check_data(config: TrainConfig, prepared: Prepared, processes: int) -> None:
    """See that the data fits the settings before anything is written."""
    histogram = prepared.length_histogram(config.partition)
    longest, sentences = len(histogram) - 1, int(histogram.sum())
    if longest + 1 > config.model.max_positions:
        raise InputError(
            f"{prepared.path}: sentences have up to {longest} tokens and an end, wanted at most max_positions = "
            f"{config.model.max_positions} in all. Raise --model.max_positions."
        )
    optimiser = config.optimiser
    batch = optimiser.batch_size * optimiser.accumulate * processes
    if batch > sentences:
        raise InputError(
            f"{prepared.path}: {sentences} sentences to train on are not one batch of {batch} (batch_size × accumulate "
            f"× processes). Lower --optimiser.batch_size."
        )


def _check_trackers(trackers: list[str]) -> None:
    """See that each is there before anything is written."""
    there = get_available_reporting_integrations()
    for name in trackers:
        if name not in there:
            raise InputError(
                f"watch.trackers: {name!r} is not installed here, there is {', '.join(sorted(there)) or 'none'}. "
                f"Install its package, or leave it out."
            )


def _restore(trainer: AutoencoderTrainer, checkpoint: Path) -> None:
    """The state after the last step, which the Trainer's own resuming would take once more."""
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    best = trainer.state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    trainer._load_from_checkpoint(best or str(checkpoint))


def make_model(config: TrainConfig, prepared: Prepared) -> TextAutoencoder:
    tokenizer: Any = prepared.tokenizer
    settings = TextAutoencoderConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        lambda_g=last_value(config.loss.lambda_g),
        lambda_d=last_value(config.loss.lambda_d),
        delta=last_value(config.loss.delta),
        alpha_contrast=None if config.loss.alpha_contrast is None else last_value(config.loss.alpha_contrast),
        keep_share=None if config.loss.keep_share is None else last_value(config.loss.keep_share),
        **asdict(config.model),
    )
    model = TextAutoencoder(settings)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def make_trainer(
    config: TrainConfig,
    directory: Path,
    prepared: Prepared,
    model: TextAutoencoder,
    callbacks: Sequence[TrainerCallback] = (),
) -> AutoencoderTrainer:
    sentences = Sentences.of(prepared.split(config.partition, "train"))
    validation = list(prepared.split(config.partition, "validation")["input_ids"])
    validation = validation[: config.watch.evaluate_sentences or None]
    arguments = training_arguments(config, directory, len(sentences))

    def say(text: str) -> None:
        if PartialState().is_main_process:
            print(text, file=sys.stderr, flush=True)

    trainer = AutoencoderTrainer(
        model,
        settings=config.loss,
        tokenizer=prepared.tokenizer,
        validation=validation,
        bleu_sentences=config.watch.bleu_sentences,
        say=say,
        args=arguments,
        train_dataset=sentences,
        eval_dataset=[],
        callbacks=[JsonLines(directory / LOG), *callbacks],
    )
    terminal = sys.stderr.isatty()
    trainer.remove_callback(ProgressCallback if terminal else PrinterCallback)
    trainer.add_callback(Bar() if terminal else Console(say))
    disable_progress_bar()  # of every small file that is written
    return trainer


def training_arguments(config: TrainConfig, directory: Path, sentences: int) -> TrainingArguments:
    optimiser, watch = config.optimiser, config.watch
    steps = optimiser.steps_for(sentences, PartialState().num_processes)
    decay: dict[str, Any] = {}
    if optimiser.schedule == "warmup_stable_decay":
        decay_steps = max(1, int(steps * optimiser.decay_share))
        decay = {"num_decay_steps": decay_steps}
    best = watch.best_metric != "last"
    return TrainingArguments(
        output_dir=str(directory / CHECKPOINTS),
        max_steps=steps,
        per_device_train_batch_size=optimiser.batch_size,
        gradient_accumulation_steps=optimiser.accumulate,
        learning_rate=optimiser.learning_rate,
        lr_scheduler_type=optimiser.schedule,
        lr_scheduler_kwargs=decay,
        warmup_steps=optimiser.warmup_steps,
        max_grad_norm=optimiser.clip,
        weight_decay=optimiser.weight_decay,
        bf16=optimiser.precision == "bf16",
        use_cpu=not torch.cuda.is_available(),
        logging_steps=watch.log_every,
        eval_strategy="steps",
        eval_steps=watch.evaluate_every,
        save_strategy="steps",
        save_steps=watch.evaluate_every,
        save_total_limit=watch.keep_checkpoints,
        load_best_model_at_end=best,
        metric_for_best_model=f"eval_{watch.best_metric}" if best else None,
        greater_is_better=watch.best_metric != "loss" if best else None,
        report_to=watch.trackers or "none",
        seed=config.seed,
        data_seed=config.seed,
        dataloader_drop_last=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        disable_tqdm=not sys.stderr.isatty(),
        average_tokens_across_devices=True,
    )


def last_good_checkpoint(directory: Path, say: Any) -> Path | None:
    """The newest checkpoint that is complete and undamaged; others are passed over with a line."""
    for checkpoint in checkpoints(directory):
        wrong = damage(checkpoint)
        if wrong is None:
            return checkpoint
        say(f"{checkpoint}: passed over, {wrong}")
    return None


class JsonLines(TrainerCallback):
    """The log as one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            with self.path.open("a") as stream:
                stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def _write_run(directory: Path, config: TrainConfig, prepared: Prepared) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    prepared.tokenizer.save_pretrained(str(directory / TOKENIZER))
    histogram = {"partition": config.partition, "lengths": prepared.length_histogram(config.partition).tolist()}
    write_json(directory / LENGTHS, {**histogram, "recipe": prepared.recipe})
    write_text(directory / CONFIG, yaml.safe_dump(as_plain(config), sort_keys=False))


def _cut_log(path: Path, step: int) -> None:
    """Forget what was logged after `step`, which is going to happen again."""
    if path.exists():
        lines = [
            line for line in path.read_text().splitlines() if line.endswith("}") and json.loads(line)["step"] <= step
        ]
        write_text(path, "".join(f"{line}\n" for line in lines))
