"""Texts in memory for jobs, and the scores of such a job."""

from __future__ import annotations

from broadsheet import pipeline

TEXTS = [f"Article number {i} of the day, about {'sport' if i % 2 else 'money'}" for i in range(90)]


def scores_of(report: pipeline.JobReport) -> list[float]:
    return report.to_arrow().column("score").to_pylist()
