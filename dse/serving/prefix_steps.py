"""The tree of prompts as it grows and shrinks: what the first prompts find, compute and leave."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dse.serving import loop
from dse.serving.prefix_tree import PrefixTree

#: prompts whose blocks are followed, and steps that are kept
MAX_PROMPTS, MAX_STEPS = 12, 9
FOUND, LOADED, COMPUTED = "found on the device", "loaded from host memory", "computed"
IN_USE, KEPT, IN_HOST, GIVEN_UP = "in use by others", "kept", "in host memory", "given up"


@dataclass
class PrefixSteps:
    """Blocks of the first prompts after each step that admits one of them, in the first group of requests."""

    tree: PrefixTree
    _boxes: list[dict[str, object]] = field(default_factory=list)
    _n_steps: int = 0
    _seen: set[int] = field(default_factory=set)
    _ever: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        n = min(len(self.tree.first) - 1, MAX_PROMPTS)
        paths = [self.tree.nodes[self.tree.first[r] : self.tree.first[r + 1]].tolist() for r in range(n)]
        #: prompts that begin alike stand together: a row each
        self.rows = sorted(range(n), key=lambda r: paths[r])
        self.paths = {r: paths[r] for r in self.rows}
        self.under: dict[int, list[int]] = {}
        for r in self.rows:
            for node in self.paths[r]:
                self.under.setdefault(node, []).append(r)

    @property
    def is_done(self) -> bool:
        """Whether all that is kept has been seen."""
        return self._n_steps == MAX_STEPS or len(self._seen) == len(self.rows)

    def watch(self, state: loop.State) -> None:
        """Look at the state after a step."""
        new = [r for r in self.rows if state.device_tokens[r] != loop.NONE and r not in self._seen]
        if not new or self.is_done:
            return
        self._seen |= {*new}
        self._n_steps += 1
        title = f"request {new[0] + 1}" if len(new) == 1 else f"requests {', '.join(str(r + 1) for r in sorted(new))}"
        states = {node: self._state(state, node, new) for node in self.under}
        drawn: set[int] = set()
        for row, r in enumerate(self.rows):
            box: dict[str, object] | None = None
            for k, node in enumerate(self.paths[r]):
                name = states[node]
                if name is None or node in drawn or self.tree.pages[node] == 0:
                    box = None
                    continue
                drawn.add(node)
                low = 0 if k == 0 else int(self.tree.end_tokens[self.paths[r][k - 1]])
                users = ", ".join(str(request + 1) for request in self.under[node])
                if box is not None and (box["state"], box["requests"]) == (name, users):
                    box["end_tokens"] = int(self.tree.end_tokens[node])
                    continue
                box = {
                    "step": self._n_steps,
                    "admitted": title,
                    "first_row": row,
                    "requests": users,
                    "start_tokens": low,
                    "end_tokens": int(self.tree.end_tokens[node]),
                    "state": name,
                }
                self._boxes.append(box)

    def _state(self, state: loop.State, node: int, new: list[int]) -> str | None:
        """Say what has become of a block; None where it has not been yet."""
        mine = [r for r in new if r in self.under[node]]
        end, n_users = self.tree.end_tokens[node], state.users[0, node]
        if mine:
            self._ever.add(node)
            if any(end > state.device_tokens[r] + state.host_tokens[r] for r in mine):
                return COMPUTED
            return LOADED if any(end > state.device_tokens[r] for r in mine) else FOUND
        if node not in self._ever:
            return None
        if n_users != loop.NONE:
            return IN_USE if n_users > 0 else KEPT
        return IN_HOST if state.in_host[0, node] else GIVEN_UP

    def table(self) -> pd.DataFrame:
        """A row for each stretch of blocks in one state: the step, its prompts, and where it begins and ends."""
        return pd.DataFrame(self._boxes).astype({"step": np.int64}) if self._boxes else pd.DataFrame()
