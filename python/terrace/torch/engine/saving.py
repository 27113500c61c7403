"""Of an engine: what it writes to files, and takes from them. Of several ranks all make these calls, and the first one
writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .alike import within
from .deepspeed_names import require_whole_load, require_whole_save
from .saved.by_first import by_first

if TYPE_CHECKING:
    import torch

    from ..._types import Named, Path
    from ...store import Store
    from .following import Following
    from .optimizer import EngineOptimizer
    from .saved.checkpoint import Checkpoints
    from .saved.export import Exports
    from .values import Values


class SavingNames:
    """For Engine."""

    if TYPE_CHECKING:  # of Engine
        store: Store
        optimizer: EngineOptimizer
        loaded_checkpoint_tag: str | None
        _checkpoints: Checkpoints
        _exports: Exports
        _settle_average: Callable[[str], None]
        _values: Values
        following: Following

    def save_safetensors(
        self, folder: Path, dtype: torch.dtype | str | None = None, shard_bytes: int = 5 << 30, averaged: bool = False
    ) -> None:
        """Writes the weights as Hugging Face's from_pretrained reads them, one tensor at a time; with `averaged`
        those of engine.average, beside what is not trained."""
        self._values.come_to_rest("save the weights")
        write = self._exports.save_safetensors
        by_first(self.store, "save the weights", lambda: write(folder, dtype, shard_bytes, averaged))

    def save_16bit_model(
        self, save_dir: Path, save_filename: str = "model.safetensors", exclude_frozen_parameters: bool = False
    ) -> bool:
        """Writes the weights in the parameters' type, or in bf16 where that is fp32, to one file of safetensors."""
        self._values.come_to_rest("save the weights")
        write = self._exports.save_16bit
        by_first(self.store, "save the weights", lambda: write(save_dir, save_filename, exclude_frozen_parameters))
        return True

    save_fp16_model = save_16bit_model

    def optimizer_state_dict(self) -> Named:
        """Moments, steps and groups in the layout of torch.optim."""
        return self._exports.optimizer_state_dict(self.optimizer)

    def load_optimizer_state_dict(self, state_dict: Named) -> None:
        self._exports.load_optimizer_state_dict(self.optimizer, state_dict)

    def save_checkpoint(
        self,
        save_dir: Path,
        tag: str | int | None = None,
        client_state: Named | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes weights, optimizer states and progress to a folder, save_dir/tag. A checkpoint of that tag is
        replaced when the new one is whole. `tag` is a plain name; one that anything else has is a ConfigError."""
        require_whole_save(save_dir, exclude_frozen_parameters)
        self._settle_average("save a checkpoint")
        return self._checkpoints.save(save_dir, tag, client_state or {}, save_latest)

    def load_checkpoint(
        self,
        load_dir: Path,
        tag: str | int | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: object = None,
    ) -> tuple[str | None, Any]:
        """(path, client_state) of what save_checkpoint wrote; (None, {}) and a warning where there is nothing. What
        is refused has changed nothing. After a failure of the drive within the load the engine has no whole state,
        and says so at every call until a load has ended well. A checkpoint is of the whole model:
        `load_module_strict=False` and `custom_load_fn` are ConfigErrors."""
        require_whole_load(load_dir, load_module_strict, custom_load_fn)
        self._settle_average("load a checkpoint")
        path, client_state = self._checkpoints.load(
            load_dir,
            tag,
            load_optimizer_states and not load_module_only,
            load_lr_scheduler_states and not load_module_only,
        )
        if path is not None:
            self.loaded_checkpoint_tag = os.path.basename(path)
        return path, client_state

    def commit(self, client_state: Any = None, retain: bool = False) -> None:
        """Begins a commit of the whole state on nvme, which becomes durable while training goes on.
        `client_state`, what JSON holds, comes back as engine.client_state after a resume. One that is refused has
        changed nothing. Its text and the progress of the engine may have 1 MiB."""
        with within(self.store.ranks, "commit"):
            self._checkpoints.begin(client_state, retain)

    def finish_commit(self) -> int:
        """Waits until the last commit is durable, and returns its number."""
        self._checkpoints.tell()
        number = self.store.finish_commit()
        self.following.look_at_commit()
        return number

    @property
    def client_state(self) -> Any:
        return self._checkpoints.client_state
