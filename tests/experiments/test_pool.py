"""Back ends write the same bytes, and what goes wrong in a worker is one cell's result."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest
from profiles import toy_profile
from sweeps import bytes_of, tiny_scenario

from batchtwin.experiments.cells import predict_cells
from batchtwin.experiments.errors import ExperimentError
from batchtwin.experiments.grid import Cell, CellResult
from batchtwin.experiments.pool import Pool, open_pool
from batchtwin.experiments.sweep import Sweep, open_sweep, sweep

PROFILE = toy_profile()
SEQS, TOKENS = (2, 3, 4, 6), (32, 64)
BUG = "ZeroDivisionError at failing_policies.py:"


def run(folder: Path, **options: object) -> Sweep:
    return sweep(folder, tiny_scenario(), PROFILE, max_num_seqs=SEQS, max_num_batched_tokens=TOKENS, **options)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("reference") / "sweep"
    run(folder)
    return bytes_of(folder)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Other people's cluster code warns of this and that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_rule_7_loky_workers_write_the_same_bytes_as_this_process(reference: dict[str, bytes], tmp_path: Path) -> None:
    run(tmp_path / "s", workers=2, backend="loky")
    assert bytes_of(tmp_path / "s") == reference


@pytest.mark.full
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_rule_7_a_local_cluster_of_two_processes_writes_the_same_bytes(
    reference: dict[str, bytes], tmp_path: Path, backend: str
) -> None:
    need(backend)
    run(tmp_path / "s", workers=2, backend=backend)
    assert bytes_of(tmp_path / "s") == reference


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_back_end_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if backend == "dask":
        monkeypatch.setitem(sys.modules, "dask", ModuleType("dask"))
    with pytest.raises(ExperimentError, match=rf"{backend} is not installed: pip install 'batchtwin\[{backend}\]'"):
        run(tmp_path / "s", backend=backend)
    assert not (tmp_path / "s").exists()


def test_an_unknown_back_end_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no back end 'slurm'; known are loky, ray, dask"):
        run(tmp_path / "s", backend="slurm")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_raises_is_reported_as_failed_and_the_others_are_there(tmp_path: Path, workers: int) -> None:
    done = run(tmp_path / "s", policies=["failing_policies:Raises"], workers=workers)
    by_status = {result.cell.max_num_seqs: result.status for result in done.predicted()}
    assert by_status == {2: "ok", 3: "ok", 4: "failed", 6: "ok", 128: "ok"}
    failed = next(result for result in done.predicted() if result.status == "failed")
    assert failed.reason.startswith(f"Failed twice: {BUG}")
    assert failed.reason.endswith("a bug of the user's own.")
    assert failed.metrics == {}
    assert failed.cell not in {result.cell for result in done.feasible()}


def test_rule_7_failures_are_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2):
        run(tmp_path / str(workers), policies=["failing_policies:Raises"], workers=workers)
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("times", "attempts", "status"), [(1, 2, "ok"), (2, 2, "failed"), (9, 2, "failed")])
def test_a_cell_is_tried_twice_and_no_more(
    tmp_path: Path, times: int, attempts: int, status: str, workers: int
) -> None:
    """One failure is forgiven. (An attempt that goes well is counted too, at its first step.)"""
    policy = f"failing_policies:Raises:attempts={tmp_path},times={times}"
    result = predict([Cell(policy, 4, 64)], workers)[0]
    assert result.status == status
    if status == "failed":
        assert len(list(tmp_path.iterdir())) == attempts


def check_that_only_the_guilty_fail(backend: str) -> None:
    """The innocent cells' results are those of a healthy pool, although workers died beside them."""
    cells = [Cell("failing_policies:Dies", seqs, tokens) for seqs in SEQS for tokens in TOKENS]
    results = predict(cells, workers=2, backend=backend)
    assert [result.cell for result in results] == cells
    for result in results:
        if result.cell.max_num_seqs == 4:
            assert (result.status, result.metrics) == ("failed", {})
            assert result.reason == "Failed twice: the worker process died (killed, or out of memory)."
        else:
            healthy = predict([result.cell._replace(policy="vllm_v1")], workers=1)[0]
            assert (result.status, result.metrics) == ("ok", pytest.approx(healthy.metrics, nan_ok=True))


def test_a_worker_that_dies_fails_its_own_cells_and_no_others() -> None:
    check_that_only_the_guilty_fail("loky")


@pytest.mark.full
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_worker_of_a_cluster_that_dies_fails_its_own_cells_and_no_others(backend: str) -> None:
    need(backend)
    check_that_only_the_guilty_fail(backend)


def test_a_pool_that_cannot_even_start_fails_every_cell_and_ends() -> None:
    def lost(jobs: object) -> Iterator[CellResult]:
        """A connection that ends before anything is taken."""
        raise ConnectionError("no scheduler")
        yield

    cells = [Cell("vllm_v1", seqs, 64) for seqs in SEQS]
    results = list(predict_cells(cells, tiny_scenario(), PROFILE, Pool(lost)))
    assert [(result.cell, result.status) for result in results] == [(cell, "failed") for cell in cells]


def test_failed_cells_are_tried_again_when_the_sweep_is_resumed(reference: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "s"
    done = run(folder)
    cell = Cell("vllm_v1", 3, 64)
    done._store(CellResult(cell, "failed", "Failed twice: a disk that was busy.", 0, {}, {}))
    assert cell not in {result.cell for result in open_sweep(folder).feasible()}
    run(folder)
    assert bytes_of(folder) == reference


def need(backend: str) -> None:
    module = {"dask": "distributed", "ray": "ray.util.joblib"}[backend]
    pytest.importorskip(module, reason=f"the extra {backend} is not installed", exc_type=ImportError)


def predict(cells: list[Cell], workers: int, backend: str = "loky") -> list[CellResult]:
    """In the order of ``cells``."""
    with open_pool(backend, workers) as pool, closing(predict_cells(cells, tiny_scenario(), PROFILE, pool)) as results:
        found = {result.cell: result for result in results}
    assert len(found) == len(cells)
    return [found[cell] for cell in cells]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_relative_trace_is_the_one_where_the_sweep_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Workers live on from one sweep to the next, in the folder in which they were started."""
    found = []
    for name, num_rows in (("first", 3), ("second", 5)):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        rows = "".join(f"{i},20,5\n" for i in range(num_rows))
        Path("rows.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
        scenario = tiny_scenario(trace={"source": "rows.csv"})
        made = sweep("s", scenario, PROFILE, max_num_seqs=[4, 6], max_num_batched_tokens=[64], workers=workers)
        found.append([result.metrics.get("num_requests") for result in made.predicted()[:2]])
    assert found == [[3, 3], [5, 5]]


def test_a_trace_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    spec = tiny_scenario(trace={"source": str(path)}).trace
    for num_rows in (3, 5):
        path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "0,20,5\n" * num_rows)
        assert len(spec.load()) == num_rows
