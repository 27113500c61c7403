"""Names every key of an installed DeepSpeed's configuration classes, schedulers and optimizers that
tests/runtime/config/known_keys.txt lacks; prints nothing and exits 0 when there is none.

    venv/bin/python bench/compare/config_keys/check.py tests/runtime/config/known_keys.txt

Sections without a class (aio, checkpoint, activation_checkpointing, the top level) are compared by the constants
that DeepSpeed looks keys up with.
"""

import inspect
import logging
import re
import sys

logging.disable(logging.CRITICAL)

from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CSVConfig, TensorBoardConfig
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime import constants, lr_schedules
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.swap_tensor import constants as swap_constants
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig

ZERO = "zero_optimization."
CLASSES = {
    ZERO: DeepSpeedZeroConfig,
    ZERO + "offload_param.": DeepSpeedZeroOffloadParamConfig,
    ZERO + "offload_optimizer.": DeepSpeedZeroOffloadOptimizerConfig,
    ZERO + "zenflow.": ZenFlowConfig,
    ZERO + "leaf_module.": DeepSpeedZeroLeafModuleConfig,
    "bf16.": DeepSpeedBF16Config,
    "fp16.": DeepSpeedFP16Config,
    "compile.": CompileConfig,
    "tensorboard.": TensorBoardConfig,
    "csv_monitor.": CSVConfig,
}
CONSTRUCTORS = {
    "scheduler.params.": [
        getattr(lr_schedules, name)
        for name in ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
    ],
    "optimizer.params.": [DeepSpeedCPUAdam, FusedAdam],
}
# Arguments that are no settings, and constants that are values or names of something else.
NO_KEYS = {"self", "optimizer", "params", "model_params"}
NO_CONSTANTS = re.compile(
    "ROUTE_|PIPE_|DATA_PARALLEL_GROUP|GLOBAL_RANK|CHECK_OVERFLOW|GRADIENT_ALLREDUCE_OP_|.*_DEFAULT"
)


def wanted():
    for prefix, kind in CLASSES.items():
        for name, field in kind.model_fields.items():
            yield prefix + name
            yield prefix + (field.alias or name)
    for prefix, kinds in CONSTRUCTORS.items():
        for kind in kinds:
            yield from (prefix + name for name in inspect.signature(kind.__init__).parameters if name not in NO_KEYS)
    for module in (constants, swap_constants):
        for name, value in vars(module).items():
            if isinstance(value, str) and re.fullmatch("[a-z0-9_]+", value) and not NO_CONSTANTS.match(name):
                yield value


with open(sys.argv[1]) as file:
    known = {line.split()[0] for line in file if line.strip() and not line.startswith("#")}
last_words = {key.rsplit(".", 1)[-1] for key in known}
missing = sorted({key for key in wanted() if key not in (known if "." in key else last_words)})
print(*missing, sep="\n", end="\n" if missing else "")
sys.exit(bool(missing))
