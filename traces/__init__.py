"""REQUESTS. Traces of real services, generators of synthetic ones, and the verbs to cut and scale them."""

from __future__ import annotations

from .arrivals import Ramp, bench_arrivals_s
from .azure_conv import azure_conv_like
from .describe import LengthBin, LengthSummary, TraceDescription, describe
from .errors import TraceError
from .generate import generate
from .lengths import Empirical, Fixed, LengthDistribution, Lognormal, Quantiles
from .load import GENERATORS, load_trace
from .readers import read_trace
from .render import render
from .trace import Trace
from .writers import write_vidur_csv

__all__ = [
    "GENERATORS",
    "Empirical",
    "Fixed",
    "LengthBin",
    "LengthDistribution",
    "LengthSummary",
    "Lognormal",
    "Quantiles",
    "Ramp",
    "Trace",
    "TraceDescription",
    "TraceError",
    "azure_conv_like",
    "bench_arrivals_s",
    "describe",
    "generate",
    "load_trace",
    "read_trace",
    "render",
    "write_vidur_csv",
]
