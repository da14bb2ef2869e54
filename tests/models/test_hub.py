from __future__ import annotations

from pathlib import Path

import pytest

from mlxserver.models.errors import ModelError
from mlxserver.models.hub import choose, fetch, split_repo

REPO = "user/repo"
GGUF = ["README.md", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m-Q4_K_M.gguf"]
SPLIT = [f"big/m-Q6_K-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
MLX = ["config.json", "model.safetensors", "tokenizer.json"]


def cache(folder: Path, files: list[str], revision: str = "abc", main: str = "abc") -> Path:
    """huggingface_hub's layout of a cache, by hand."""
    root = folder / "models--user--repo"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(main)
    for name in files:
        path = root / "snapshots" / revision / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root / "snapshots" / revision


def test_repo_and_quant() -> None:
    assert split_repo("user/repo") == ("user/repo", "")
    assert split_repo("user/repo:Q8_0") == ("user/repo", "Q8_0")
    for bad in ("repo", "a/b/c", "/repo", "user/", ""):
        with pytest.raises(ModelError, match="USER/REPO"):
            split_repo(bad)


@pytest.mark.parametrize(
    ("files", "quant", "file", "chosen"),
    [
        (GGUF, "", "", ["m-Q4_K_M.gguf"]),
        (GGUF, "q8_0", "", ["m-Q8_0.gguf"]),
        (GGUF, "F16", "", ["m-F16.gguf"]),
        (GGUF, "", "m-F16.gguf", ["m-F16.gguf"]),
        (["a-IQ1_S.gguf", "a-Q8_0.gguf"], "", "", ["a-Q8_0.gguf"]),
        (["a-imatrix.gguf", "a-IQ1_S.gguf", "b.gguf"], "", "", ["a-IQ1_S.gguf"]),
        (SPLIT[::-1], "", "", SPLIT),
        (SPLIT, "Q6_K", "", SPLIT),
        (SPLIT, "", SPLIT[0], SPLIT),
        (MLX, "", "", []),
        ([*MLX, "a-Q8_0.gguf"], "", "", ["a-Q8_0.gguf"]),
    ],
)
def test_choice(files: list[str], quant: str, file: str, chosen: list[str]) -> None:
    assert choose(files, REPO, quant, file) == chosen


@pytest.mark.parametrize(
    ("files", "quant", "file", "message"),
    [
        (
            GGUF,
            "Q5_K_M",
            "",
            "no GGUF file of the kind Q5_K_M .it has m-F16.gguf, m-Q4_K_M.gguf, m-Q8_0.gguf.",
        ),
        (GGUF, "", "x.gguf", "no file 'x.gguf'"),
        (["README.md"], "", "", "no model"),
        (MLX, "Q8_0", "", "no GGUF file of the kind Q8_0"),
    ],
)
def test_nothing_to_choose(files: list[str], quant: str, file: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        choose(files, REPO, quant, file)


def offline(folder: Path, repo: str = REPO, file: str = "") -> Path:
    return fetch(repo, file, offline=True, cache=str(folder))


def test_offline_from_the_cache(tmp_path: Path) -> None:
    snapshot = cache(tmp_path, ["m-Q4_K_M.gguf", *SPLIT])
    assert offline(tmp_path) == snapshot / "m-Q4_K_M.gguf"
    assert offline(tmp_path, "user/repo:Q6_K") == snapshot / SPLIT[0]
    assert offline(tmp_path, file="m-Q4_K_M.gguf") == snapshot / "m-Q4_K_M.gguf"


def test_an_mlx_repository_is_its_folder(tmp_path: Path) -> None:
    snapshot = cache(tmp_path, MLX)
    assert offline(tmp_path) == snapshot


def test_the_main_branch_goes_first(tmp_path: Path) -> None:
    cache(tmp_path, ["m-Q4_K_M.gguf"], revision="aaa", main="bbb")
    newer = cache(tmp_path, ["m-Q4_K_M.gguf"], revision="bbb", main="bbb")
    assert offline(tmp_path).parent == newer


def test_what_is_not_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="user/repo is not in the cache, and --offline is set"):
        offline(tmp_path)
    cache(tmp_path, [SPLIT[0], SPLIT[2]])
    with pytest.raises(ModelError, match="has no big/m-Q6_K-00002-of-00003.gguf in the cache"):
        offline(tmp_path)


def test_an_unreachable_hub_falls_back_on_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(HfApi, "list_repo_files", unreachable)
    with pytest.raises(ModelError, match="not in the cache, and the hub cannot be reached: no route to host"):
        fetch(REPO, cache=str(tmp_path))
    snapshot = cache(tmp_path, ["m-Q4_K_M.gguf"])
    assert fetch(REPO, cache=str(tmp_path)) == snapshot / "m-Q4_K_M.gguf"


def test_only_what_is_wanted_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = {}

    def download(repo_id: str, **options: object) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: [*GGUF, *SPLIT])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch("user/repo:Q6_K", token="secret", cache=str(tmp_path)) == tmp_path / SPLIT[0]
    assert asked == {
        "repo_id": REPO,
        "allow_patterns": SPLIT,
        "token": "secret",
        "cache_dir": str(tmp_path),
    }
