"""A file that cannot be written is refused before the work that would fill it."""

import pytest

VERBS = {
    "calibrate, tables": ("calibrate", "--from", "x.csv", "--hw", "h200-sxm", "--out", ".toml"),
    "calibrate, points": ("calibrate", "--points", "x.csv", "--out", ".toml"),
    "engine": ("engine", "llama-3.1-8b", "--trace", ".json"),
    "validate, figure": ("validate", "--plot", ".html"),
    "validate, report": ("validate", "--report", ".md"),
    "simulate": ("simulate", "llama-3.1-8b", "h100-sxm", "--rate", "1", "--out", ".json"),
    "optimize": ("optimize", "llama-3.1-8b", "h100-sxm", "--table", ".csv"),
    "plot": ("plot", "roofline", "llama-3.1-8b", "h100-sxm", "--out", ".svg"),
    "report": ("report", "llama-3.1-8b", "h100-sxm", "--out", ".html"),
    "explore": ("explore", "llama-3.1-8b", "--out", ".html"),
}
WORK = (
    "kvroof.calibration.calibrate.load_hardware",
    "kvroof.calibration.calibrate.read_points",
    "kvroof.calibration.measured.gather",
    "kvroof.cli.deployed.load_model",
    "kvroof.cli.engine.load_model",
    "kvroof.cli.explore.load_model",
    "kvroof.catalog.models.load_model",
)


@pytest.fixture
def idle(monkeypatch):
    """Let any work fail."""

    def work(*args, **options):
        pytest.fail("the work began")

    for place in WORK:
        monkeypatch.setattr(place, work)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("idle")
def test_a_place_that_cannot_be_is_refused_before_the_work(kvroof, tmp_path, verb):
    *words, option, ending = VERBS[verb]
    (tmp_path / f"folder{ending}").mkdir()
    for name, said in (
        (f"nowhere/x{ending}", "its folder does not exist"),
        (f"folder{ending}", "is a folder"),
        ("x" * 300 + ending, "cannot be written"),
    ):
        answer = kvroof(*words, option, tmp_path / name)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith(f"kvroof: {option} ")
        assert said in answer.err
        assert len(answer.err.splitlines()) == 1
