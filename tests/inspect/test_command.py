"""`zstate inspect`: runs, texts, two runs, the server."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import zstate as zs
from zstate import cli
from zstate.inspection.serving import Server
from zstate.train.loop import load_model
from zstate.train.losses import LN2

from .pages import TEXT, lstm_in_torch, read, small_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on the same text; the default text is theirs, from the file beside them."""
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "lstm", "lstm", 2)
    small_run(folder / "gru", "gru")
    (folder / "text.txt").write_text(TEXT)
    return folder


def _written(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["inspect", *words]) == 0
    return capsys.readouterr().out


def test_a_run_on_a_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(runs / "lstm"), "--text", str(runs / "text.txt"), "--steps", "40"]
    said = _written(words, capsys)
    path = runs / "lstm" / "inspect.html"
    assert said.startswith(f"wrote {path} (0.")
    page = read(path)
    model = page.said["models"][0]
    assert "".join(model["labels"]) == TEXT[:40]
    assert model["summary"].startswith("2 × lstm of 12, ")
    assert [layer["name"] for layer in model["layers"]] == ["layer 1", "layer 2"]
    trained, alphabet, _ = load_model(runs / "lstm")
    ids = alphabet.encode(TEXT[:41])
    gates, flow = lstm_in_torch(trained.graph.variables(), ids)
    for k, name in enumerate("ifzo"):
        found, off = page.map(name, 1)
        np.testing.assert_allclose(found, gates[:, k], atol=off + 1e-6)
    for layer in range(2):
        np.testing.assert_allclose(page.flow("h", layer)[-1], flow[layer], rtol=6e-3)
    program = trained.validation_program(40, 1)
    one = np.asarray(np.float32(0))
    (loss,) = program.run([ids[:-1, None], ids[1:, None], one])
    losses = page.array(model["loss"])
    assert losses.mean() == pytest.approx(float(loss) / LN2, rel=1e-4)


def test_the_curves_of_the_training(runs: Path) -> None:
    path = zs.inspect(runs / "lstm", text=TEXT, steps=20, path=runs / "page.html")
    curves = read(path).said["models"][0]["training"]
    about = json.loads((runs / "lstm" / "run.json").read_text())
    assert curves["training"] == [line[1] for line in about["history"]]
    assert curves["validation"] == [line[2] for line in about["history"]]
    assert curves["gradient norm"] == about["gradient_norms"]
    assert len(curves["learning rate"]) == len(curves["gradient norm"]) == 4
    assert all(norm > 0 for norm in curves["gradient norm"])


def test_a_run_of_an_earlier_version_has_no_gradient_norms(runs: Path, tmp_path: Path) -> None:
    for name in ("run.json", "checkpoint.safetensors"):
        (tmp_path / name).write_bytes((runs / "gru" / name).read_bytes())
    about = json.loads((tmp_path / "run.json").read_text())
    norms = about.pop("gradient_norms")
    (tmp_path / "run.json").write_text(json.dumps(about))
    page = read(zs.inspect(tmp_path, text=TEXT, steps=10, path=tmp_path / "page.html"))
    assert page.said["models"][0]["training"]["gradient norm"] == [None] * 4
    (tmp_path / "run.json").write_text(json.dumps({**about, "gradient_norms": norms[1:]}))
    with pytest.raises(zs.GraphError, match="gradient_norms"):
        zs.inspect(tmp_path, text=TEXT, path=tmp_path / "page.html")


def test_two_runs_read_the_same_text(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = runs / "two.html"
    words = [str(runs / "lstm"), str(runs / "gru"), "--prompt", "the cat", "--out", str(out)]
    _written([*words, "--steps", "30"], capsys)
    first, second = read(out).said["models"]
    assert first["labels"] == second["labels"]
    assert "".join(first["labels"]).startswith("the cat")
    assert len(first["labels"]) == 30
    assert [layer["cell"] for layer in (first["layers"][0], second["layers"][0])] == ["lstm", "gru"]


def test_the_default_is_the_text_that_the_run_did_not_see(tmp_path: Path) -> None:
    from zstate.train import Run, Settings, data

    text = tmp_path / "own.txt"
    text.write_text(TEXT)
    settings = Settings("gru", hidden=4, embedding=3, window=8, batch=4, total=2)
    list(Run.create(tmp_path / "run", settings, TEXT, str(text)).train(2))
    page = read(zs.inspect(tmp_path / "run", steps=50, path=tmp_path / "page.html"))
    shown = "".join(page.said["models"][0]["labels"])
    assert shown in TEXT[data.split(len(TEXT)) :]
    text.unlink()
    with pytest.raises(zs.OptionError, match="pass another with --text.*no such file"):
        zs.inspect(tmp_path / "run", path=tmp_path / "page.html")


def test_any_script(tmp_path: Path) -> None:
    text = "天地玄黃宇宙洪荒。 שלום עולם! 🙂\n" * 40
    small_run(tmp_path / "run", "rnn", text=text)
    page = read(zs.inspect(tmp_path / "run", text=text, steps=30, path=tmp_path / "page.html"))
    assert "".join(page.said["models"][0]["labels"]) == text[:30]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["{runs}/none"], "expected the folder of a run of `zstate train`, got no such folder"),
        (["{runs}/lstm", "--out", "page.png"], "--out: expected a name that ends in .html"),
        (
            ["{runs}/lstm", "--out", "{runs}/no/page.html"],
            "--out: expected a file in a folder that",
        ),
        (["{runs}/lstm", "--prompt", "Ж"], "[inspect] prompt: expected the 18 characters"),
        (["{runs}/lstm", "--text", "{runs}/none.txt"], "[inspect] --text: '"),
        (["{runs}/lstm", "{runs}", "--prompt", "the"], "got a folder without run.json"),
        (["{runs}/lstm", "--encoding", "latin-1"], "[inspect] --encoding needs --text"),
        (
            ["{runs}/lstm", "--serve", "--out", "page.html"],
            "[inspect] --serve cannot be combined with --out page.html",
        ),
    ],
)
def test_refusals(
    words: list[str], expected: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", *(word.format(runs=runs) for word in words)]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_text_and_prompt_exclude_each_other(runs: Path) -> None:
    with pytest.raises(zs.OptionError, match="expected one of them, got both"):
        zs.inspect(runs / "lstm", text=TEXT, prompt="the")
    with pytest.raises(zs.OptionError, match="steps: expected at least 1, got 0"):
        zs.inspect(runs / "lstm", text=TEXT, steps=0)
    with pytest.raises(zs.OptionError, match="labels: expected None with the folder of a run"):
        zs.inspect(runs / "lstm", labels="ab")


class _Source:
    """What a server serves: a page per version, unless it cannot be made."""

    def __init__(self) -> None:
        self.version, self.broken = "1", False

    def make(self, version: str) -> bytes:
        if self.broken:
            raise zs.OptionError("a checkpoint that is being written")
        return f"page {version}".encode()


@pytest.fixture
def served() -> Iterator[tuple[_Source, Server]]:
    source = _Source()
    with Server(lambda: source.version, source.make) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield source, server
        server.shutdown()


def _get(server: Server, path: str, host: str | None = None) -> str:
    request = urllib.request.Request(server.address + path, headers={"Host": host} if host else {})
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def test_the_server_makes_a_new_page_when_there_is_a_new_checkpoint(
    served: tuple[_Source, Server],
) -> None:
    source, server = served
    assert _get(server, "") == "page 1"
    assert _get(server, "version") == "1"
    source.version = "2"
    assert _get(server, "version") == "2"
    assert _get(server, "") == "page 2"
    source.version, source.broken = "3", True
    assert _get(server, "") == "page 2"  # until the next one can be made


def test_the_last_page_stays_when_the_run_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    source, gone = _Source(), threading.Event()

    def version() -> str:
        if gone.is_set():
            raise zs.OptionError("a folder without a run")
        return source.version

    with Server(version, source.make) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        gone.set()
        assert _get(server, "") == "page 1"
        assert _get(server, "version") == "1"
        try:
            raise BrokenPipeError  # a browser that left
        except BrokenPipeError:
            server.handle_error(None, None)
        server.shutdown()
    assert not capsys.readouterr().err


def test_the_server_is_for_this_machine_alone(served: tuple[_Source, Server]) -> None:
    _, server = served
    assert server.address.startswith("http://127.0.0.1:")
    for path, host, status in (("", "evil.example", 403), ("etc/passwd", None, 404)):
        with pytest.raises(urllib.error.HTTPError) as error:
            _get(server, path, host)
        assert error.value.code == status
        error.value.close()


def test_a_page_that_cannot_be_made_is_refused_before_the_browser_opens() -> None:
    source = _Source()
    source.broken = True
    with pytest.raises(zs.OptionError, match="being written"):
        Server(lambda: source.version, source.make)
