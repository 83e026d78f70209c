"""Fits the weights of ranking (`core.rank.WEIGHTS`) on conversation files, and shows what each part of the score is worth.

Usage: fit_ranking.py [FILE...] (default: ../shared/data/conversations; three files or more; half a minute)

The memories of a file are made as the daemon makes them, and all of them are scored for every question of every file.
What is learned: among the memories of a file the turns that answer a question come first (softmax over TOP of them), and
some memory reaches a common level for a file's own questions, none for those of other files (logistic, weight GATE), a
little also where a foreign question names this file's people (weight RENAMED). Weights and floor that are told of a file
were fitted without it and without its questions. Formula and figures: ARCHITECTURE.md, "Ranking".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])

from calibration.scored import FORMER, PARTS, Array, Seen, keep, see  # noqa: E402
from recalld.core import rank  # noqa: E402
from recalld.core.choose import choose  # noqa: E402
from recalld.core.given import Recent  # noqa: E402
from recalld.core.pack import RecallSettings, pack  # noqa: E402
from recalld.core.scored import Scored  # noqa: E402
from recalld.edge.embed import StaticEmbedder, load_background  # noqa: E402
from recalld.edge.recordings import conversation  # noqa: E402

FILES = Path(__file__).parents[3] / "shared" / "data" / "conversations"
TOP, TOP_FOREIGN = 128, 24  # memories of a question that are learned from; the rest is far below
GATE, RENAMED, SMALL = 0.3, 0.3, 0.01  # of the losses; of the squares of weights, where each part's spread is 1
STEPS = 200
NOISE = 0.06  # the share of foreign questions that a fitted floor lets through
FLOORS = (0.6, 0.7, 0.76, 0.8, 0.84, 0.88, 0.92, 1.0, 1.15)
PACKED = 50  # best memories that are offered to the prompt: five turns are among them
ROUNDING = 0.02  # of a weight
FIGURES = ("recall@5", "recall@10", "MRR", "session recall@5", "injected", "noise", "noise, all", "renamed")
HEAD = f"\n\n| | {' | '.join(FIGURES)} |\n|{'---|' * (len(FIGURES) + 1)}"

Learn = Callable[[Sequence[int]], Mapping[str, float]]  # numbers of files to weights


class Examples(NamedTuple):
    """What is learned of one file: the parts of the best memories of each question. `target` sums to 1 for a question."""

    own: Array
    target: Array
    foreign: Array
    source: Array
    renamed: Array
    renamed_source: Array


class Model(NamedTuple):
    weights: Mapping[str, float]
    floor: float

    def scores(self, parts: Array) -> Array:
        """Shape (questions, memories)."""
        columns = [PARTS.index(name) for name in self.weights]
        return np.asarray(parts[..., columns] @ np.array(list(self.weights.values()), dtype=np.float32))


def examples_of(seen: Seen) -> Examples:
    """Of turns alone: a fact repeats a line of its turn."""
    turns = np.array([m.kind == "turn" for m in seen.kept.memories])
    rough = Model({"window": 1.0, "lexical": 1.0, "before": 0.5}, 0)
    parts, foreign, renamed = seen.own[:, turns], seen.foreign[:, turns], seen.renamed[:, turns]
    target = np.stack([np.isin(seen.kept.turn[turns], wanted) for wanted in seen.wanted])
    own = np.argsort(-rough.scores(parts) - 100 * target, axis=1)[:, :TOP]
    target = np.take_along_axis(target, own, 1) / target.sum(axis=1, keepdims=True)
    first, also = (np.argsort(-rough.scores(p), axis=1)[:, :TOP_FOREIGN, None] for p in (foreign, renamed))
    return Examples(
        own=np.take_along_axis(parts, own[:, :, None], 1),
        target=target.astype(np.float32),
        foreign=np.take_along_axis(foreign, first, 1),
        source=seen.source,
        renamed=np.take_along_axis(renamed, also, 1),
        renamed_source=seen.source[seen.some],
    )


def fit(examples: Sequence[Examples], numbers: Sequence[int], names: Sequence[str]) -> dict[str, float]:
    """The weights of these parts, that of the first as 1, from those files."""
    columns = [PARTS.index(name) for name in names]
    here = [examples[n] for n in numbers]
    own = [(e.own[..., columns], e.target) for e in here]
    foreign = [e.foreign[np.isin(e.source, numbers)][..., columns] for e in here]
    renamed = [e.renamed[np.isin(e.renamed_source, numbers)][..., columns] for e in here]
    everything = np.concatenate([v.reshape(-1, len(names)) for v in (*(v for v, _ in own), *foreign, *renamed)])
    spread = everything.std(axis=0)
    spread[spread < 1e-4] = 1
    lists: list[tuple[Array, Array | None, float]] = []
    lists += [(values, target, 1.0 / sum(len(v) for v, _ in own)) for values, target in own]
    lists += [(values, None, 1.0 / sum(map(len, foreign))) for values in foreign]
    lists += [(values, None, RENAMED / sum(map(len, renamed))) for values in renamed]
    lists = [((values - everything.mean(axis=0)) / spread, target, weight) for values, target, weight in lists]

    def loss(x: Array) -> tuple[float, Array]:
        weights, level = x[:-1].astype(np.float32), x[-1]
        value, slope = SMALL * float(weights @ weights), np.append(2.0 * SMALL * weights, 0.0)
        for values, target, weight in lists:
            scores, mass, share = _softmax(values, weights)
            side = 1 if target is None else -1
            wrong = side / (1 + np.exp(side * (level - mass)))
            value += weight * GATE * float(np.logaddexp(0, side * (mass - level)).sum())
            push = GATE * wrong[:, None] * share
            if target is not None:
                value += weight * float((mass - (target * scores).sum(axis=1)).sum())
                push += share - target
            slope += weight * np.append(np.tensordot(push, values, 2), -GATE * wrong.sum())
        return value, slope

    weights = _minimum(loss, len(names) + 1)[:-1] / spread
    return dict(zip(names, (weights / weights[0]).tolist(), strict=True))


def _softmax(values: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Scores, the logarithm of their exponentials' sum, and each one's share of it."""
    scores = values @ weights
    highest = scores.max(axis=1, keepdims=True)
    raised = np.exp(scores - highest)
    total = raised.sum(axis=1, keepdims=True)
    return scores, (highest + np.log(total))[:, 0], raised / total


def _minimum(loss: Callable[[Array], tuple[float, Array]], size: int) -> Array:
    """BFGS with a halved step: a dozen unknowns, smooth."""
    x, inverse = np.zeros(size), np.eye(size)
    value, slope = loss(x)
    for _ in range(STEPS):
        step = -inverse @ slope
        while (found := loss(x + step))[0] > value + 1e-4 * float(slope @ step) and np.abs(step).max() > 1e-6:
            step = step / 2
        change = found[1] - slope
        x, slope, gained, value = x + step, found[1], value - found[0], found[0]
        if gained < 1e-7:
            break
        if (bend := float(step @ change)) > 1e-12:
            left = np.eye(size) - np.outer(step, change) / bend
            inverse = left @ inverse @ left.T + np.outer(step, step) / bend
    return x


def floor_of(best: Array) -> float:
    """The lowest floor that lets no more than NOISE of these scores through."""
    return float(np.sort(best)[::-1][int(NOISE * len(best))]) + 1e-6


def figures_of(seen: Seen, model: Model) -> Array:
    """FIGURES: means of this file."""
    kept, own, settings = seen.kept, model.scores(seen.own), RecallSettings(floor=model.floor)
    turns = np.maximum.reduceat(own, np.flatnonzero(np.diff(kept.turn, prepend=-1)), axis=1)
    foreign, renamed = (model.scores(p).max(axis=1) >= model.floor for p in (seen.foreign, seen.renamed))
    found = []
    for scores, ranked, wanted in zip(own, np.argsort(-turns, axis=1, kind="stable"), seen.wanted, strict=True):
        place = np.argsort(ranked)[wanted]
        at_5 = np.isin(np.unique(kept.session[wanted]), kept.session[ranked[:5]])
        best = [
            Scored(kept.memories[i], float(scores[i]), dict.fromkeys(PARTS, 0.0))
            for i in np.argsort(-scores, kind="stable")[:PACKED].tolist()
        ]
        injected = [m.turn_id for m in pack(choose(best, settings, {}, {}, Recent()), settings, {}).memories]
        shown = np.isin(wanted, np.array(injected, dtype=int))
        found.append([(place < 5).mean(), (place < 10).mean(), 1 / (1 + place.min()), at_5.mean(), shown.mean()])
    return np.append(np.mean(found, axis=0), [foreign[seen.some].mean(), foreign.mean(), renamed.mean()])


def apart(all_seen: Sequence[Seen], learn: Learn) -> list[tuple[Model, Array]]:
    """Each file by a model, floor included, that the others gave."""
    found = []
    for number, seen in enumerate(all_seen):
        others = [n for n in range(len(all_seen)) if n != number]
        weights = learn(others)
        model = Model(weights, floor_of(best_of(weights, [all_seen[n] for n in others], others)))
        found.append((model, figures_of(seen, model)))
    return found


def best_of(weights: Mapping[str, float], all_seen: Sequence[Seen], numbers: Sequence[int]) -> Array:
    """The best score of each foreign question that is of those files."""
    model = Model(weights, 0)
    return np.concatenate([model.scores(s.foreign[np.isin(s.source, numbers)]).max(axis=1) for s in all_seen])


def mean(all_seen: Sequence[Seen], figures: Sequence[Array]) -> Array:
    """Over all questions; of what is said of foreign ones, over the files."""
    of_questions = np.average(figures, axis=0, weights=[len(s.own) for s in all_seen])
    return np.append(of_questions[:5], np.mean(figures, axis=0)[5:])


def line(name: str, values: Sequence[float] | Array) -> str:
    return f"| {name} | " + " | ".join(f"{value:.3f}".removeprefix("0") for value in values) + " |"


def main(paths: Sequence[Path]) -> None:
    if len(paths) < 3:
        sys.exit("three conversation files or more: two to learn from, for each that is measured")
    embedder, background = StaticEmbedder(), load_background()
    all_kept = [keep(conversation(path), embedder) for path in paths]
    all_seen = [see(all_kept, number, embedder, background) for number in range(len(all_kept))]
    examples, eight = [examples_of(seen) for seen in all_seen], list(rank.WEIGHTS)

    def fitting(names: Sequence[str]) -> Learn:
        return lambda numbers: fit(examples, numbers, names)

    every = range(len(all_seen))
    fitted, folds = fit(examples, every, eight), apart(all_seen, fitting(eight))
    print("| part | fitted | without each file | shipped |\n|---|---|---|---|")
    for name, shipped in rank.WEIGHTS.items():
        each = " ".join(f"{model.weights[name]:.2f}" for model, _ in folds)
        print(f"| {name} | {fitted[name]:.2f} | {each} | {shipped:.2f} |")
    if differ := [name for name, shipped in rank.WEIGHTS.items() if abs(fitted[name] - shipped) > ROUNDING]:
        print(f"Fitted and shipped differ by more than {ROUNDING}: {', '.join(differ)}.")
    print(HEAD)
    for path, (model, figures) in zip(paths, folds, strict=True):
        print(line(f"{path.stem}, floor {model.floor:.2f}", figures))

    trials = {"all eight": fitting(eight)}
    trials |= {f"without {name}": fitting([other for other in eight if other != name]) for name in eight}
    trials["the memory's own cosine for window"] = fitting(["cosine", *eight[1:]])
    trials |= {f"{name} alone": fitting([name]) for name in ("window", "cosine", "lexical", "passage", "session")}
    trials["coverage + 0.6 cosine, not fitted"] = lambda _: FORMER
    trials["shipped weights"] = lambda _: rank.WEIGHTS
    print(HEAD)
    for name, learn in trials.items():
        print(line(name, mean(all_seen, [figures for _, figures in apart(all_seen, learn)])), flush=True)

    for title, weights in (("shipped", rank.WEIGHTS), ("fitted", fitted)):
        print(
            f"\n{title}: {NOISE:.0%} of foreign questions pass {floor_of(best_of(weights, all_seen, every)):.3f}{HEAD}"
        )
        for floor in FLOORS:
            print(line(str(floor), mean(all_seen, [figures_of(s, Model(weights, floor)) for s in all_seen])))


if __name__ == "__main__":
    main([Path(a) for a in sys.argv[1:]] or sorted(FILES.glob("*.json")))
