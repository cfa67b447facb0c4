"""The command line: one function a verb, no logic."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .scheduler.errors import BatchTwinError
from .traces.errors import TraceError

UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises for words that it cannot read; it exports only this subclass of it."""

_NO_NUMBER = re.compile(r"Input should be a valid integer, unable to parse string as an integer")

app = typer.Typer(
    name="batchtwin",
    help=(
        "A digital twin of LLM continuous batching: which max_num_seqs, which max_num_batched_tokens?\n\n"
        "It predicts a request trace through a serving scheduler, measures the same trace on a real paged-attention "
        "executor with the same scheduler, and shows the error.\n\n"
        "Start with:  batchtwin calibrate -o profile.json,  then  batchtwin sweep results/first -p profile.json"
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
)
trace_app = typer.Typer(no_args_is_help=True, help="Look at request traces.")
app.add_typer(trace_app, name="trace", rich_help_panel="Look")

PREDICT, MEASURE, LOOK = "Predict and measure", "Calibrate", "Look"
TRACE, SERVER, KNOBS = "Requests", "Model and device", "Scheduler"

ProfileOption = Annotated[Path | None, typer.Option("--profile", "-p", help="Profile that calibrate wrote.")]
TraceOption = Annotated[
    str,
    typer.Option(
        "--trace", "-t", help="Trace file (Azure CSV, Mooncake JSONL, Vidur CSV) or generator.", rich_help_panel=TRACE
    ),
]
RequestsOption = Annotated[
    int | None, typer.Option("--requests", "-n", help="Only the first so many.", rich_help_panel=TRACE)
]
RateOption = Annotated[float, typer.Option("--rate-scale", help="2 doubles the request rate.", rich_help_panel=TRACE)]
PromptScale = Annotated[float, typer.Option("--prompt-scale", help="Factor on prompt lengths.", rich_help_panel=TRACE)]
OutputScale = Annotated[float, typer.Option("--output-scale", help="Factor on output lengths.", rich_help_panel=TRACE)]
MaxPrompt = Annotated[
    int | None, typer.Option("--max-prompt-tokens", help="Cut prompts to this.", rich_help_panel=TRACE)
]
MaxOutput = Annotated[
    int | None, typer.Option("--max-output-tokens", help="Cut outputs to this.", rich_help_panel=TRACE)
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="All requests arrive at once.", rich_help_panel=TRACE)]
ClientsOption = Annotated[
    int | None, typer.Option("--clients", help="Closed loop with so many clients.", rich_help_panel=TRACE)
]
RequestRate = Annotated[
    float | None,
    typer.Option("--request-rate", help="Send at so many a second, not as the trace says.", rich_help_panel=TRACE),
]
Burstiness = Annotated[
    float, typer.Option("--burstiness", help="Of --request-rate: 1 Poisson, less burstier.", rich_help_panel=TRACE)
]
MaxConcurrency = Annotated[
    int | None,
    typer.Option("--max-concurrency", help="The client's gate: so many under way.", rich_help_panel=TRACE),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Preset, folder or hub id; the profile's if not given.", rich_help_panel=SERVER),
]
DtypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="float32, bfloat16, …; the profile's if not given.", rich_help_panel=SERVER),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda; the profile's if not given.", rich_help_panel=SERVER)
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="CPU threads of the executor.", rich_help_panel=SERVER)
]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="A policy's name, or package.module:Class.", rich_help_panel=KNOBS)
]
SeqsOption = Annotated[int, typer.Option("--max-num-seqs", rich_help_panel=KNOBS)]
TokensOption = Annotated[int, typer.Option("--max-num-batched-tokens", rich_help_panel=KNOBS)]
ModelLenOption = Annotated[int, typer.Option("--max-model-len", rich_help_panel=KNOBS)]
BlocksOption = Annotated[
    int | None, typer.Option("--num-gpu-blocks", help="KV blocks (4096 if nothing is said).", rich_help_panel=KNOBS)
]
KvBytesOption = Annotated[
    int | None,
    typer.Option(
        "--kv-memory-bytes", help="Instead: a budget from which each cell derives its blocks.", rich_help_panel=KNOBS
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="A GPU by name: KV blocks from its memory, and without a profile a first answer from its data sheet.",
        rich_help_panel=SERVER,
    ),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Any other scenario field, as field=value.", rich_help_panel=KNOBS)
]
ReplicasOption = Annotated[
    int, typer.Option("--replicas", help="Servers behind a router (predicted only).", rich_help_panel=SERVER)
]
RouterOption = Annotated[
    str,
    typer.Option("--router", help="round_robin, least_outstanding or prefix_affinity.", rich_help_panel=SERVER),
]
SloOption = Annotated[
    list[str] | None, typer.Option("--slo", help="ttft_ms=500, tpot_ms=50 or e2el_ms=9000; repeat for several.")
]
SeedOption = Annotated[int, typer.Option("--seed")]
WorkersOption = Annotated[int, typer.Option("--workers", "-j", help="Predictions at a time (measurements run alone).")]
BackendOption = Annotated[str, typer.Option("--backend", help="Where predictions run: loky, ray or dask.")]


@app.command(rich_help_panel=MEASURE)
def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the profile goes.")] = Path("profile.json"),
    model: Annotated[
        str, typer.Option("--model", "-m", help="Preset (tiny-llama, …), folder or hub id.")
    ] = "tiny-llama",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    minutes: Annotated[float, typer.Option(help="Time budget.")] = 2.0,
    max_num_seqs: SeqsOption = 128,
    max_num_batched_tokens: TokensOption = 2048,
    max_model_len: ModelLenOption = 2048,
    block_size: Annotated[int, typer.Option("--block-size", rich_help_panel=KNOBS)] = 16,
    num_gpu_blocks: Annotated[
        int | None,
        typer.Option("--num-gpu-blocks", help="4096 on a CPU, what fits on a GPU.", rich_help_panel=KNOBS),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option("--gpu-memory-utilization", help="Share of a GPU's memory to use.", rich_help_panel=KNOBS)
    ] = 0.9,
    seed: SeedOption = 0,
) -> None:
    """Measure iterations on this device and write a profile: the law, its held-out error, the device's noise."""
    from .experiments.preflight import check_ready
    from .experiments.render_profile import calibration_progress, print_profile
    from .experiments.run import check_writable

    check_writable(output)
    check_ready(model, device or "cpu")
    from .experiments.calibrate import calibrate as run

    with calibration_progress() as progress:
        profile = run(
            model,
            dtype=dtype,
            device=device or "cpu",
            threads=threads,
            minutes=minutes,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            gpu_memory_utilization=gpu_memory_utilization,
            seed=seed,
            progress=progress,
        )
    profile.save(output)
    print_profile(profile, output)


@app.command("calibrate-from", rich_help_panel=MEASURE)
def calibrate_from(
    source: Annotated[
        Path, typer.Argument(help="A vLLM log with iteration details, vllm bench forward JSON, or an FPM table.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="The server's model: name, config.json or folder.")],
    gpu: Annotated[str, typer.Option("--gpu", help="Its device, such as H100.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the profile goes.")] = Path("profile.json"),
    trace: Annotated[
        str | None,
        typer.Option("--trace", "-t", help="A log's requests: trace file, or detailed vllm bench serve JSON."),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="log, forward or fpm, if the content should not say.")] = None,
    cell: Annotated[str | None, typer.Option(help="cell_id of an FPM table that holds several.")] = None,
    dtype: DtypeOption = None,
    max_num_seqs: SeqsOption = 128,
    max_num_batched_tokens: TokensOption = 2048,
    max_model_len: Annotated[int | None, typer.Option("--max-model-len", rich_help_panel=KNOBS)] = None,
    block_size: Annotated[int, typer.Option("--block-size", rich_help_panel=KNOBS)] = 16,
    num_gpu_blocks: BlocksOption = None,
    fields: SetOption = None,
) -> None:
    """Fit a profile to what a server of yours logged; a log's context lengths are recovered by replaying it."""
    from .experiments.calibrate_from import calibrate_from as run
    from .experiments.exchange.log_options import log_fields, measured_on
    from .experiments.exchange.render import print_calibrated_from
    from .experiments.run import check_writable

    check_writable(output)
    about = measured_on(model, gpu, dtype, block_size)
    done = run(source, about, kind=kind, trace=trace, fields=log_fields(locals()), cell=cell)
    done.profile.save(output)
    print_calibrated_from(done, output)


@app.command(rich_help_panel=PREDICT)
def replay(
    profile: ProfileOption = None,
    measured: Annotated[bool, typer.Option("--measured", help="Run it on the executor instead of predicting.")] = False,
    clock: Annotated[
        str, typer.Option("--clock", help="sim (idle time is skipped) or wall (arrivals in real time).")
    ] = "sim",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the run to this folder.")] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Write it while it goes: a trace of any length in bounded memory.")
    ] = False,
    trace: TraceOption = "azure-conv-like",
    requests: RequestsOption = None,
    rate_scale: RateOption = 1.0,
    prompt_scale: PromptScale = 1.0,
    output_scale: OutputScale = 1.0,
    max_prompt_tokens: MaxPrompt = None,
    max_output_tokens: MaxOutput = None,
    offline: OfflineOption = False,
    clients: ClientsOption = None,
    request_rate: RequestRate = None,
    burstiness: Burstiness = 1.0,
    max_concurrency: MaxConcurrency = None,
    model: ModelOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    replicas: ReplicasOption = 1,
    router: RouterOption = "round_robin",
    policy: PolicyOption = "vllm_v1",
    max_num_seqs: SeqsOption = 128,
    max_num_batched_tokens: TokensOption = 2048,
    max_model_len: ModelLenOption = 4096,
    num_gpu_blocks: BlocksOption = None,
    kv_memory_bytes: KvBytesOption = None,
    gpu: GpuOption = None,
    slo: SloOption = None,
    fields: SetOption = None,
    seed: SeedOption = 0,
) -> None:
    """Replay one scenario, predicted from a profile or measured on the executor."""
    from .experiments.options import parse_clock, parse_stream, profile_from_options, scenario_from_options
    from .experiments.render import print_run
    from .experiments.replay import replay as run

    options = dict(locals())
    loaded = profile_from_options(options)
    scenario = scenario_from_options(options, loaded)
    wall_clock, stream_to = parse_clock(clock), parse_stream(stream, output)
    done = run(scenario, profile=loaded, measured=measured, wall_clock=wall_clock, stream_to=stream_to)
    if output is not None and stream_to is None:
        done.save(output)
    print_run(done, output)


@app.command(rich_help_panel=PREDICT)
def sweep(
    folder: Annotated[Path, typer.Argument(help="Where the results go; the same command resumes it.")],
    profile: Annotated[Path, typer.Option("--profile", "-p", help="Profile that calibrate wrote.")],
    seqs: Annotated[str, typer.Option("--seqs", help="Values of max_num_seqs.")] = "8,16,32,64,128",
    tokens: Annotated[str, typer.Option("--tokens", help="Of max_num_batched_tokens.")] = "128,256,512,1024,2048",
    policies: Annotated[str, typer.Option("--policies", help="Policies, separated by commas.")] = "vllm_v1",
    objective: Annotated[
        str | None, typer.Option(help="Metric to maximise (output_throughput, or request_goodput with SLOs).")
    ] = None,
    measure: Annotated[str | None, typer.Option(help="Cells to measure: a number, or all.")] = None,
    repeats: Annotated[int, typer.Option(help="How often each is measured.")] = 1,
    seeds: Annotated[int, typer.Option(help="Seeds of arrivals to predict with (1 for a recorded trace).")] = 3,
    workers: WorkersOption = 2,
    backend: BackendOption = "loky",
    search: Annotated[bool, typer.Option("--search", help="Leave out cells bad on a part of the trace.")] = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="No baselines, intervals, load, seeds: a sixth of the work.")
    ] = False,
    trace: TraceOption = "azure-conv-like",
    requests: RequestsOption = None,
    rate_scale: RateOption = 1.0,
    prompt_scale: PromptScale = 1.0,
    output_scale: OutputScale = 1.0,
    max_prompt_tokens: MaxPrompt = None,
    max_output_tokens: MaxOutput = None,
    offline: OfflineOption = False,
    clients: ClientsOption = None,
    request_rate: RequestRate = None,
    burstiness: Burstiness = 1.0,
    max_concurrency: MaxConcurrency = None,
    model: ModelOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    max_model_len: ModelLenOption = 4096,
    num_gpu_blocks: BlocksOption = None,
    kv_memory_bytes: KvBytesOption = None,
    gpu: GpuOption = None,
    slo: SloOption = None,
    fields: SetOption = None,
    seed: SeedOption = 0,
) -> None:
    """Predict a grid of both knobs, measure some or all of its cells, recommend."""
    from .experiments.options import profile_from_options, scenario_from_options, sweep_from_options
    from .experiments.render_sweep import print_sweep, sweep_progress
    from .experiments.sweep import sweep as run

    options = dict(locals())
    loaded = profile_from_options(options)
    scenario = scenario_from_options(options, loaded)
    with sweep_progress(folder) as progress:
        done = run(folder, scenario, loaded or profile, **sweep_from_options(options), progress=progress)
    print_sweep(done)


@app.command(rich_help_panel=PREDICT)
def capacity(
    profile: Annotated[Path, typer.Option("--profile", "-p", help="Profile that calibrate wrote.")],
    slo: SloOption = None,
    attainment: Annotated[
        float | None, typer.Option(help="Share of requests that must meet every SLO (instead of the P99s).")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How exact the rate is, as a share.")] = 0.02,
    seqs: Annotated[str | None, typer.Option("--seqs", help="Several values of max_num_seqs: a grid.")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", help="Several values of max_num_batched_tokens.")] = None,
    workers: WorkersOption = 2,
    backend: BackendOption = "loky",
    trace: TraceOption = "azure-conv-like",
    requests: RequestsOption = None,
    prompt_scale: PromptScale = 1.0,
    output_scale: OutputScale = 1.0,
    max_prompt_tokens: MaxPrompt = None,
    max_output_tokens: MaxOutput = None,
    model: ModelOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    threads: ThreadsOption = None,
    replicas: ReplicasOption = 1,
    router: RouterOption = "round_robin",
    policy: PolicyOption = "vllm_v1",
    max_num_seqs: SeqsOption = 128,
    max_num_batched_tokens: TokensOption = 2048,
    max_model_len: ModelLenOption = 4096,
    num_gpu_blocks: BlocksOption = None,
    kv_memory_bytes: KvBytesOption = None,
    gpu: GpuOption = None,
    fields: SetOption = None,
    seed: SeedOption = 0,
) -> None:
    """The highest request rate within the SLOs, with every rate tried; over a grid with --seqs or --tokens."""
    from .experiments import capacity as module
    from .experiments.options import parse_list, scenario_from_options
    from .experiments.pool import parse_backend
    from .experiments.render_capacity import print_capacity, print_frontier
    from .experiments.replay import open_profile

    scenario = scenario_from_options({**locals(), "rate_scale": 1.0, "offline": False, "clients": None})
    loaded = open_profile(profile, scenario)
    if seqs is None and tokens is None:
        print_capacity(module.capacity(scenario, loaded, attainment=attainment, tolerance=tolerance))
        return
    points = module.frontier(
        scenario,
        loaded,
        attainment=attainment,
        tolerance=tolerance,
        max_num_seqs=parse_list("--seqs", seqs) if seqs else [max_num_seqs],
        max_num_batched_tokens=parse_list("--tokens", tokens) if tokens else [max_num_batched_tokens],
        workers=workers,
        backend=parse_backend(backend),
    )
    print_frontier(points)


@app.command(rich_help_panel=PREDICT)
def plan(
    model: Annotated[str, typer.Option("--model", "-m", help="config.json, its folder, or a model's name.")],
    gpu: Annotated[str, typer.Option("--gpu", help="A GPU by name: H100, A100-40GB, RTX-4090, …")],
    max_num_seqs: Annotated[int | None, typer.Option(help="vLLM's default for the GPU if not given.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="vLLM's default for the GPU too.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="The model's if not given.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "--tp")] = 1,
    gpu_memory_utilization: Annotated[float, typer.Option()] = 0.92,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto (the model's), fp8, bfloat16, …")] = "auto",
    quantization: Annotated[str | None, typer.Option(help="awq, gptq, fp8, …; the config's if not given.")] = None,
    block_size: Annotated[int, typer.Option()] = 16,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="KV blocks, instead of deriving them.")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="How long a prompt is, for a practical concurrency.")
    ] = None,
    output_tokens: Annotated[int | None, typer.Option(help="How long an output is.")] = None,
    chunked_prefill: Annotated[bool, typer.Option(help="Prompts may be served in chunks.")] = True,
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager", help="No CUDA graphs.")] = False,
    vllm_version: Annotated[str, typer.Option(help="Whose account of memory: 0.33, 0.19, 0.6, …")] = "0.33",
    entry: Annotated[str, typer.Option(help="Whose defaults: server or llm_class.")] = "server",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Capacity before time: does a cell fit its GPU, how much does it hold, what to change. Exits 1 if not."""
    from .experiments.options import plan_from_options
    from .experiments.render_plan import print_plan, print_plan_json

    found = plan_from_options(locals())
    (print_plan_json if as_json else print_plan)(found)
    raise typer.Exit(0 if found.feasible else 1)


@app.command(rich_help_panel=LOOK)
def compare(folder: Annotated[Path, typer.Argument(help="A sweep's folder.")]) -> None:
    """Predicted beside measured: errors, repeat noise, regret, and where the error comes from."""
    from .experiments.compare import compare as run
    from .experiments.render import print_comparison

    print_comparison(run(folder))


@app.command(rich_help_panel=LOOK)
def recommend(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder.")],
    slo: SloOption = None,
    policy: Annotated[str | None, typer.Option(help="Among this policy's cells only.")] = None,
) -> None:
    """The smallest knobs within 2 % of the best that meet the SLOs, and what holds the rest back (exit code 1 if no
    cell meets them).
    """
    from .experiments.options import parse_slo
    from .experiments.recommend import recommend as run
    from .experiments.render import print_recommendation
    from .experiments.sweep import open_sweep

    found = run(open_sweep(folder), slo=parse_slo(slo) if slo else None, policy=policy)
    print_recommendation(found)
    raise typer.Exit(int(not found.meets_slo))


@app.command("import", rich_help_panel=MEASURE)
def import_(
    sources: Annotated[
        list[Path], typer.Argument(help="vllm bench serve JSON, vllm bench sweep folders, auto_tune's result.txt.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Results folder; without one the runs are only checked.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", "-p", help="Profile from which the same cells are predicted.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", help="Where a file does not say.", rich_help_panel=KNOBS)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option("--max-num-batched-tokens", help="Where a file does not say.", rich_help_panel=KNOBS)
    ] = None,
    input_len: Annotated[
        int | None, typer.Option("--input-len", help="Prompt tokens, where a file does not say.", rich_help_panel=TRACE)
    ] = None,
    output_len: Annotated[
        int | None, typer.Option("--output-len", help="Output tokens, likewise.", rich_help_panel=TRACE)
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option("--num-prompts", help="Requests, likewise.", rich_help_panel=TRACE)
    ] = None,
    num_gpu_blocks: BlocksOption = None,
    slo: SloOption = None,
    fields: SetOption = None,
    workers: WorkersOption = 2,
) -> None:
    """Check runs of a server of yours, and lay them beside predictions of the same cells (compare, report, …)."""
    from .experiments.exchange.options import import_options
    from .experiments.exchange.render import print_imported
    from .experiments.render_sweep import sweep_progress

    with sweep_progress(output or Path()) as progress:
        done = import_options(locals(), progress)
    print_imported(done, output)


@app.command(rich_help_panel=LOOK)
def export(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder, a run's (batchtwin replay -o) or a cell's.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where it goes (a folder for bench, else a file).")
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", "-f", help="bench (vllm bench serve/sweep), vidur (trace), fpm (a run), serve."),
    ] = "bench",
) -> None:
    """Write predictions as vLLM's benchmarks write results, the trace for Vidur, or a vllm serve command a cell."""
    from .experiments.exchange.export_runs import export as run

    for line in run(folder, output, form):
        typer.echo(line)


@app.command(rich_help_panel=LOOK)
def report(
    folder: Annotated[Path, typer.Argument(help="A sweep's folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file (report.html in the folder).")
    ] = None,
) -> None:
    """Write a sweep as one self-contained HTML file."""
    from .dashboard.report import write_report
    from .experiments.sweep import open_sweep

    path = output or folder / "report.html"
    write_report(open_sweep(folder), path)
    typer.echo(f"Wrote {path}")


@app.command(rich_help_panel=LOOK)
def dashboard(
    results: Annotated[Path, typer.Argument(help="Folder that holds sweeps.")] = Path("results"),
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
) -> None:
    """Open the dashboard in a browser."""
    from .dashboard.launch import launch

    raise typer.Exit(launch(results, port=port))


@app.command("export-trace", rich_help_panel=LOOK)
def export_trace(
    run: Annotated[Path, typer.Argument(help="A run's folder (replay -o, measured-… of a sweep) or a cell's.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="JSON file.")] = Path("trace.json"),
) -> None:
    """Write a run, or a sweep's cell as predicted, as a Chrome trace for Perfetto (https://ui.perfetto.dev)."""
    from .experiments.chrome_trace import export_trace as write
    from .experiments.open_run import open_run

    typer.echo(f"Wrote {write(open_run(run), output):,} events to {output}: open it in https://ui.perfetto.dev")


@app.command(rich_help_panel=LOOK)
def policies() -> None:
    """List the scheduling policies."""
    from .experiments.render import print_policies

    print_policies()


@app.command(rich_help_panel=LOOK)
def verify(
    recordings: Annotated[list[Path], typer.Argument(help="Schedules recorded from vLLM (JSON).")],
) -> None:
    """Hold the scheduler against recorded vLLM schedules; the first difference of each, in words."""
    from .experiments.verify import first_difference, load_golden

    failed = False
    for path in recordings:
        difference = first_difference(load_golden(path))
        failed |= difference is not None
        typer.echo(f"{path}: {difference or 'equal, step for step'}")
    raise typer.Exit(int(failed))


@app.command(rich_help_panel=LOOK)
def validate(
    profile: Annotated[Path | None, typer.Option("--profile", "-p", help="Folder of a GPU's operator tables.")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Folder of a recorded run, or a CSV of points (default: ours).")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write JSON, CSV and a figure.")] = None,
    fields: SetOption = None,
) -> None:
    """Predict a real server's recorded run from a GPU's operator tables alone, and print the errors."""
    from .experiments.validate_any import validate_any

    validate_any(profile, run, fields or (), output)


@app.command(rich_help_panel=PREDICT)
def demo(
    folder: Annotated[Path, typer.Argument(help="Where the results go.")] = Path("results/demo"),
    trace: TraceOption = "azure-conv-like",
    model: Annotated[str, typer.Option("--model", "-m", help="Preset, smollm2, folder or hub id.")] = "tiny-llama",
    minutes: Annotated[float, typer.Option(help="Minutes of calibration.")] = 1.2,
    measure: Annotated[int, typer.Option(help="Cells to measure, at least.")] = 8,
    threads: ThreadsOption = 1,
) -> None:
    """The whole line on this machine: calibrate, predict a grid, measure some of it, compare, write a report."""
    from .dashboard.report import write_report
    from .experiments.demo import run_demo
    from .experiments.render_sweep import print_demo

    done = run_demo(folder, trace, model=model, minutes=minutes, measure=measure, threads=threads)
    write_report(done, folder / "report.html")
    print_demo(done, folder / "report.html")


@trace_app.command("describe")
def trace_describe(
    source: Annotated[str, typer.Argument(help="A trace file or a generator (azure-conv-like).")],
    sort: Annotated[bool, typer.Option("--sort", help="Sort rows by arrival first.")] = False,
    drop_zero_output: Annotated[
        bool, typer.Option("--drop-zero-output", help="Leave out rows without output.")
    ] = False,
    seed: SeedOption = 0,
) -> None:
    """Rows, span, rate, percentiles of lengths, burstiness, and a small histogram."""
    from rich.console import Console

    from .traces import describe, load_trace, render

    Console().print(render(describe(load_trace(source, seed=seed, sort=sort, drop_zero_output=drop_zero_output))))


def main() -> None:
    """Run the command line. Whatever is wrong with the input is one sentence and exit code 1 (2 if it is the words)."""
    try:
        sys.exit(app(standalone_mode=False))
    except (BatchTwinError, TraceError) as error:
        typer.echo(f"batchtwin: {error}", err=True)
        sys.exit(1)
    except typer.Abort:
        sys.exit(130)
    except UsageError as error:
        if said := _NO_NUMBER.sub("it must be a whole number", " ".join(error.format_message().split())):
            typer.echo(f"batchtwin: {said.rstrip('.')} (see --help).", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
