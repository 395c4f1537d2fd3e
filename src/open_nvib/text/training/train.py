"""`train`: a configuration and prepared data to a run directory."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.integrations.integration_utils import get_available_reporting_integrations
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerState
from transformers.utils.logging import disable_progress_bar

from open_nvib.store import runs
from open_nvib.store.files import MANIFEST, InputError, digest_of_file, in_one_line, write_json, writing_to
from open_nvib.store.settings import TrainConfig
from open_nvib.text.data import Prepared, load_prepared
from open_nvib.text.data.tokenizer import load_tokenizer
from open_nvib.text.model.autoencoder import TextAutoencoder
from open_nvib.text.model.backbone import decoder_kind, options_of
from open_nvib.text.model.configuration import TextAutoencoderConfig
from open_nvib.text.model.decoding import make_batch
from open_nvib.text.model.vector_count import find_fewest
from open_nvib.text.opening import find_device, open_saved, open_weights
from open_nvib.text.training.trainer import AutoencoderTrainer, ProgressBar, RunLog

SENTENCES_COUNTED = 2000
"""Training sentences whose numbers of vectors are counted, for a model that takes any."""
SENTENCES_MEASURED = 256
"""Training sentences on which the hidden states of a pretrained encoder are measured."""


@dataclass(frozen=True)
class Sentences(torch.utils.data.Dataset[dict[str, np.ndarray]]):
    """The training sentences as one array of tokens and where each begins, so that an index costs next to nothing."""

    tokens: np.ndarray
    starts: np.ndarray

    @staticmethod
    def of(rows: Dataset) -> "Sentences":
        """Read the column `input_ids`."""
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
    device: str | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, float | None]:
    """Train, or go on training, and write everything that later commands need to `output`.

    The same configuration again goes on from the last good checkpoint; another one is an InputError unless `overwrite`.
    A run that is replaced stays as it is until the new one is finished. One process at a time trains in a directory.

    Args:
        config: the settings.
        output: the run directory.
        overwrite: replace a run with other settings.
        device: such as cpu or cuda:1; the first GPU if not given, or else the CPU. Under torchrun, cpu or cuda.
        callbacks: of the Hugging Face Trainer.

    Returns:
        The metrics of the model that was kept, on validation data.
    """
    directory = Path(output).expanduser()
    if (claim := runs.claim_directory(directory, config, overwrite=overwrite)).finished is not None:
        return claim.finished
    chosen = find_device(device)
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} cannot be used to train, expected cpu, cuda or cuda:N.")
    prepared = load_prepared(config.data)
    processes = PartialState(cpu=chosen.type == "cpu")
    main = processes.is_main_process
    config = _choose_partition(config, prepared)
    _check_data(config, prepared, processes.num_processes)
    if not runs.is_run(claim.path):  # a run that was begun goes on, whatever earlier versions let pass
        config.check_used()
    _check_trackers(config.watch.trackers)
    set_seed(config.seed)
    model = make_model(config, prepared)
    with ExitStack() as held:
        with processes.main_process_first():  # which makes the directory that the others then find
            if main:
                held.enter_context(runs.training_lock(directory))
                runs.replace_run(directory)
            claim = runs.claim_directory(directory, config, overwrite=overwrite and main)
            if claim.finished is not None:  # by another process in the meantime
                return claim.finished
            if main:
                runs.discard_other_replacement(claim.path, config)
                _write_run(claim.path, config, prepared)
        try:
            trainer = make_trainer(config, claim.path, prepared, model, chosen, callbacks)
            metrics = _train_and_save(trainer, claim.path)
        except BaseException:
            if main:
                runs.discard_empty_replacement(claim.path)
            raise
        if main:
            runs.replace_run(directory)
    return metrics


def _train_and_save(trainer: AutoencoderTrainer, run: Path) -> dict[str, float | None]:
    """Take the steps that are left, and write the model and its metrics."""
    start = runs.last_good_checkpoint(run / runs.CHECKPOINTS, trainer.say)
    step = 0 if start is None else runs.step_of(start)
    if trainer.is_world_process_zero():
        runs.cut_log(run, step)
    trainer.add_callback(RunLog(run, None if sys.stderr.isatty() else trainer.say))
    if start is not None:
        trainer.say(f"going on from {start}")
    try:
        if start is not None and step >= trainer.args.max_steps:
            _restore(trainer, start)
        else:
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
    except FloatingPointError as error:
        raise InputError(f"{run}: {error}") from error
    except UnpicklingError as error:  # torch.load refuses to run it
        raise InputError(
            f"{start}: has a file that is not of tensors alone, so it is not opened. Remove this checkpoint."
        ) from error
    metrics: dict[str, float | None] = {name.removeprefix("eval_"): value for name, value in trainer.evaluate().items()}
    if trainer.is_world_process_zero():
        with writing_to(run / runs.MODEL):
            save_model(run, trainer.autoencoder, trainer.tokenizer)
            if trainer.autoencoder.config.shares is not None:
                runs.write_numbers(run, count_numbers(trainer.autoencoder, trainer.train_dataset))
            runs.seal_run(run)
        model_digest = digest_of_file(run / runs.MODEL / runs.WEIGHTS)

        def add(known: runs.RunMetrics) -> runs.RunMetrics:
            """Keep evaluations of this very model, made before its metrics were lost."""
            same = {name: each for name, each in known.evaluations.items() if each.model == model_digest}
            return replace(known, step=trainer.state.global_step, validation=metrics, evaluations=same)

        runs.change_metrics(run, add)
    return metrics


def count_numbers(model: TextAutoencoder, sentences: Any) -> runs.Numbers:
    """Count the fewest vectors of training sentences of each length, for the prior to draw from.

    A search takes time for each decoder layer, so a deep model counts fewer sentences.
    """
    counted = max(1, SENTENCES_COUNTED // model.config.decoder_layers)
    step = max(1, len(sentences) // counted)
    texts = [sentences[index]["input_ids"].tolist() for index in range(0, len(sentences), step)][:counted]
    numbers = find_fewest(model.eval(), texts).vectors.tolist()
    found = Counter(zip(map(len, texts), numbers, strict=True))
    return runs.Numbers(tuple((length, number, count) for (length, number), count in sorted(found.items())))


def _write_run(directory: Path, config: TrainConfig, prepared: Prepared) -> None:
    """Write what a run has from its beginning."""
    with writing_to(directory, remove=False):
        (directory / runs.TOKENIZER).mkdir(parents=True, exist_ok=True)  # as in save_model
        (directory / MANIFEST).unlink(missing_ok=True)  # of files that are now written anew
        prepared.tokenizer.save_pretrained(str(directory / runs.TOKENIZER))
        histogram = prepared.length_histogram(config.partition).tolist()
        runs.write_lengths(directory, runs.Lengths(histogram, config.partition, prepared.recipe))
        runs.write_config(directory, config)


def _say(text: str) -> None:
    """Print a line on standard error; of several processes, the first alone does."""
    if PartialState().is_main_process:
        print(text, file=sys.stderr, flush=True)


def _choose_partition(config: TrainConfig, prepared: Prepared) -> TrainConfig:
    """Take the only partition that the data has, where it does not have the one of the settings."""
    if config.partition in prepared.partitions or len(prepared.partitions) > 1:
        return config
    (only,) = prepared.partitions
    _say(f"{prepared.path}: no partition {config.partition!r}, training on {only!r}")
    return replace(config, partition=only)


def save_model(run: Path, model: TextAutoencoder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the model such that the Auto classes of transformers open both the run and its folder model/."""
    folder = run / runs.MODEL
    folder.mkdir(exist_ok=True)  # transformers writes nothing, and says nothing, where a file is
    model.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))
    for name in runs.FOR_TRANSFORMERS:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, run / name)
    with safe_open(folder / runs.WEIGHTS, framework="pt") as weights:
        places = dict.fromkeys(weights.keys(), f"{runs.MODEL}/{runs.WEIGHTS}")
    write_json(run / runs.INDEX, {"metadata": {}, "weight_map": places}, indent=1)


def _check_data(config: TrainConfig, prepared: Prepared, processes: int) -> None:
    """Check that the data fits the settings before anything is written."""
    sentences, optimiser = int(prepared.length_histogram(config.partition).sum()), config.optimiser
    steps = optimiser.steps_for(sentences, processes)
    if optimiser.schedule == "warmup_stable_decay" and optimiser.warmup_steps > steps:
        raise InputError(
            f"optimiser.warmup_steps is {optimiser.warmup_steps}, expected at most the {steps} steps of the training. "
            f"Lower --optimiser.warmup_steps, or train longer."
        )
    batch = optimiser.batch_size * optimiser.accumulate * processes
    if batch > sentences:
        raise InputError(
            f"{prepared.path}: {sentences} sentences to train on are not one batch of {batch} (batch_size × accumulate "
            f"× processes). Lower --optimiser.batch_size."
        )


def _check_trackers(trackers: list[str]) -> None:
    """Check that each is installed before anything is written."""
    installed = get_available_reporting_integrations()
    for name in trackers:
        if name not in installed:
            raise InputError(
                f"watch.trackers: {name!r} is not installed; available: {', '.join(sorted(installed)) or 'none'}. "
                f"Install its package, or leave it out."
            )


def _restore(trainer: AutoencoderTrainer, checkpoint: Path) -> None:
    """Restore the state after the last step, which the Trainer's own resuming would take once more."""
    trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    trainer.find_best_checkpoint()
    best = trainer.state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    trainer._load_from_checkpoint(best or str(checkpoint))
    trainer.apply_schedule()


def make_model(config: TrainConfig, prepared: Prepared) -> TextAutoencoder:
    """Build the model for the vocabulary of the data, with the numbers at which the schedules end."""
    tokenizer: Any = prepared.tokenizer
    source = None if config.model.pretrained is None else _open_pretrained(config.model.pretrained, prepared)
    options: dict[str, Any] = asdict(config.model) | asdict(config.loss.at_end()) | {"vocab_size": len(tokenizer)}
    if source is None:
        options |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        options["decoder_start_token_id"] = tokenizer.bos_token_id
    else:
        options |= options_of(source) | {"vocab_size": max(len(tokenizer), source.config.vocab_size)}
    longest, positions = len(prepared.length_histogram(config.partition)) - 1, options["max_positions"]
    if longest + 1 > positions:
        fix = "Raise --model.max_positions" if source is None else "Prepare shorter sentences by --partitions"
        raise InputError(
            f"{prepared.path}: sentences have up to {longest} tokens and an end, expected at most max_positions = "
            f"{positions} in all. {fix}."
        )
    settings = TextAutoencoderConfig(**options)
    _check_memory(settings)
    model = TextAutoencoder(settings)
    model.generation_config.pad_token_id = settings.pad_token_id
    if source is not None:
        texts = prepared.split(config.partition, "train")[:SENTENCES_MEASURED]["input_ids"]
        batch = make_batch(model, texts)
        model.start_from(source, batch["input_ids"], batch["attention_mask"])
        model.train_only(config.optimiser.trained)
    return model


def _open_pretrained(name: str, prepared: Prepared) -> PreTrainedModel:
    """Open the pretrained model that a model starts from, and check that the data has its tokenizer."""
    path = Path(name).expanduser()
    where = path if path.is_dir() else name
    try:
        decoder_kind(open_saved(AutoConfig, where))
        model = open_weights(AutoModelForSeq2SeqLM, where, dtype=torch.float32)
    except Exception as error:  # the libraries raise errors of many kinds
        raise InputError(
            f"model.pretrained {name!r}: cannot be used ({in_one_line(error)}). Give the folder of a saved T5, BART or "
            f"Marian, or with network the id of one on the hub."
        ) from error
    if load_tokenizer(name, lowercase=False).get_vocab() != prepared.tokenizer.get_vocab():
        raise InputError(
            f"{prepared.path}: was not prepared with the tokenizer of model.pretrained. Prepare the text again with "
            f"--tokenizer {name}."
        )
    return model


def _check_memory(settings: TextAutoencoderConfig) -> None:
    """Raise an InputError if weights, gradients and Adam's two averages are more than the memory of the machine."""
    p, d, ffn, vocabulary = settings.p, settings.d_model, settings.ffn_size, settings.vocab_size
    layers = settings.encoder_layers * (4 * d * d + 2 * d * ffn) + settings.decoder_layers * (6 * d * d + 2 * d * ffn)
    positions = settings.max_positions * d  # learned or not, they are a table
    parameters = layers + positions + 2 * d * p + vocabulary * d * (1 if settings.tie_word_embeddings else 2)
    needed, there = 16 * parameters, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there and not torch.cuda.is_available():
        raise InputError(
            f"a model of about {parameters:.1e} parameters takes about {needed / 2**30:,.0f} GB to train, and this "
            f"machine has {there / 2**30:,.0f} GB. Lower --model.d_model, --model.ffn_size, --model.latent_size, "
            f"--model.max_positions or the numbers of layers."
        )


def make_trainer(
    config: TrainConfig,
    directory: Path,
    prepared: Prepared,
    model: TextAutoencoder,
    device: torch.device,
    callbacks: Sequence[TrainerCallback] = (),
) -> AutoencoderTrainer:
    """Build the trainer of a run in `directory`."""
    sentences = Sentences.of(prepared.split(config.partition, "train"))
    validation = list(prepared.split(config.partition, "validation")["input_ids"])
    validation = validation[: config.watch.evaluate_sentences or None]
    arguments = training_arguments(config, directory, len(sentences), device)
    if unfinished := config.unfinished_ramps(arguments.max_steps):
        ramps = f"{'; '.join(unfinished)}, after the {arguments.max_steps} steps of this training"
        _say(f"nvib: warning: {ramps}. Shorten the ramps, or train longer.")
    terminal = sys.stderr.isatty()
    trainer = AutoencoderTrainer(
        model,
        settings=config.loss,
        tokenizer=prepared.tokenizer,
        validation=validation,
        bleu_sentences=config.watch.bleu_sentences,
        say=_say,
        args=arguments,
        train_dataset=sentences,
        eval_dataset=[],
        callbacks=list(callbacks),
    )
    trainer.remove_callback(ProgressCallback if terminal else PrinterCallback)
    if terminal:
        trainer.add_callback(ProgressBar())
    disable_progress_bar()  # of every small file that is written
    return trainer


def training_arguments(config: TrainConfig, directory: Path, sentences: int, device: torch.device) -> TrainingArguments:
    """Translate the settings for the Hugging Face Trainer."""
    optimiser, watch = config.optimiser, config.watch
    steps = optimiser.steps_for(sentences, PartialState().num_processes)
    decay: dict[str, Any] = {}
    if optimiser.schedule == "warmup_stable_decay":
        decay = {"num_decay_steps": max(1, int(steps * optimiser.decay_share))}
    best = watch.best_metric != "last"
    arguments = TrainingArguments(
        output_dir=str(directory / runs.CHECKPOINTS),
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
        gradient_checkpointing=optimiser.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=device.type == "cpu",
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
        dataloader_pin_memory=device.type == "cuda",
        remove_unused_columns=False,
        disable_tqdm=not sys.stderr.isatty(),
        average_tokens_across_devices=True,
    )
    if device.type == "cuda" and PartialState().num_processes == 1:  # the Trainer would take all GPUs, the first ahead
        torch.cuda.set_device(device)
        arguments.__dict__["_setup_devices"], arguments._n_gpu = torch.device("cuda", torch.cuda.current_device()), 1
    return arguments
