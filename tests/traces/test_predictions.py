"""A predicted output length a request: read, kept through every verb, written, handed to the policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchtwin.scheduler import Scheduler, SchedulerConfig
from batchtwin.traces import TraceError, read_trace, write_vidur_csv

ROWS = "arrived_at,num_prefill_tokens,num_decode_tokens,predicted_decode_tokens\n0,10,40,4\n1,10,20,30\n2,10,30,8\n"


def _read(tmp_path: Path, text: str = ROWS) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_predicted_lengths_are_read_kept_and_written(tmp_path: Path) -> None:
    trace = read_trace(_read(tmp_path))
    assert trace.predicted_output_len.tolist() == [4, 30, 8]
    assert trace.slice(1, 3).predicted_output_len.tolist() == [30, 8]
    assert trace.scale_lengths(1.0, 0.5).predicted_output_len.tolist() == [2, 15, 4]
    write_vidur_csv(trace, tmp_path / "again.csv")
    assert read_trace(tmp_path / "again.csv") == trace
    without = read_trace(
        _read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,40\n1,10,20\n2,10,30\n")
    )
    assert without.predicted_output_len is None
    assert without != trace


def test_a_prediction_of_zero_or_of_no_number_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 3: a request with 0 predicted output tokens"):
        read_trace(_read(tmp_path, ROWS.replace("20,30", "20,0")))
    with pytest.raises(TraceError, match="line 3: predicted_decode_tokens is 'many'"):
        read_trace(_read(tmp_path, ROWS.replace("20,30", "20,many")))


def test_sjf_by_predictions_orders_by_them_and_not_by_the_truth(tmp_path: Path) -> None:
    """Predicted 4, 30, 8 against true 40, 20, 30: by prediction 0, 2, 1; by the truth 1, 2, 0."""
    for policy, order in (("sjf:predicted=true", ["0", "2", "1"]), ("sjf", ["1", "2", "0"])):
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=64), policy)
        for request in read_trace(_read(tmp_path)).requests():
            scheduler.add(request)
        ended = []
        while scheduler.has_work:
            ended += [request.request_id for request in scheduler.complete(scheduler.schedule())]
        assert ended == order
        assert scheduler.policy.is_oracle == (policy == "sjf")
