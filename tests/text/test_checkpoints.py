import pytest

from open_nvib.store.files import SEAL, damage, seal
from open_nvib.store.runs import checkpoints, last_good_checkpoint


def write_checkpoint(directory, step: int):
    checkpoint = directory / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(bytes(range(256)) * 10)
    (checkpoint / "optimizer.pt").write_bytes(b"moments" * 100)
    seal(checkpoint)
    return checkpoint


def flip_a_byte(file) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file) -> None:
    file.write_bytes(file.read_bytes()[:-1])


DAMAGES = {
    "no seal": (lambda c: (c / SEAL).unlink(), "incomplete"),
    "half a seal": (lambda c: (c / SEAL).write_text((c / SEAL).read_text()[:20]), "incomplete"),
    "truncated": (lambda c: cut(c / "optimizer.pt"), "optimizer.pt is damaged"),
    "empty": (lambda c: (c / "optimizer.pt").write_bytes(b""), "optimizer.pt is damaged"),
    "flipped byte": (lambda c: flip_a_byte(c / "model.safetensors"), "model.safetensors is damaged"),
    "missing": (lambda c: (c / "model.safetensors").unlink(), "model.safetensors is missing"),
}


def test_a_sealed_checkpoint_is_undamaged(tmp_path):
    checkpoint = write_checkpoint(tmp_path, 3)
    assert damage(checkpoint) is None
    seal(checkpoint)
    assert damage(checkpoint) is None
    assert not list(checkpoint.glob("*.partial"))


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name, tmp_path):
    harm, expected = DAMAGES[name]
    checkpoint = write_checkpoint(tmp_path, 3)
    harm(checkpoint)
    assert expected in (damage(checkpoint) or "")


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"model.safetensors": null}'])
def test_a_seal_of_another_kind_is_no_seal(content, tmp_path):
    checkpoint = write_checkpoint(tmp_path, 3)
    (checkpoint / SEAL).write_text(content)
    assert damage(checkpoint) is not None


def test_checkpoints_are_listed_by_step_and_nothing_else_is(tmp_path):
    for step in (9, 100, 20):
        write_checkpoint(tmp_path, step)
    for name in ("checkpoint-", "checkpoint-7.partial", "checkpoint-best", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-100", "checkpoint-20", "checkpoint-9"]
    assert checkpoints(tmp_path / "nowhere") == []


def test_damaged_checkpoints_are_passed_over_with_a_line_each(tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)
    flip_a_byte(tmp_path / "checkpoint-30" / "model.safetensors")
    (tmp_path / "checkpoint-20" / SEAL).unlink()
    said: list[str] = []
    assert last_good_checkpoint(tmp_path, said.append) == tmp_path / "checkpoint-10"
    assert len(said) == 2
    assert "checkpoint-30: passed over, model.safetensors is damaged" in said[0]
    assert "checkpoint-20: passed over, it is incomplete" in said[1]


def test_without_a_good_checkpoint_there_is_none(tmp_path):
    (write_checkpoint(tmp_path, 10) / SEAL).unlink()
    assert last_good_checkpoint(tmp_path, lambda line: None) is None
