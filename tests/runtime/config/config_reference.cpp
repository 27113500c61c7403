#include "runtime/config/config_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <terrace/runtime/config/schema/engine_keys.h>
#include <terrace/runtime/config/schema/schema.h>

namespace terrace::testing {
namespace {

constexpr std::string_view kIntroduction = R"(# Configuration

Terrace reads the DeepSpeed JSON files that people have. This page lists every key it knows. It
is written from the table that the parser uses (`runtime/config/schema/schema_table.cpp`).

- `//`, `#` and `/* */` comments, trailing commas, a missing comma where a line ends (as in Hjson) and whole numbers such as
  `5e8` are accepted; keys that begin with `_` are comments too. `null` is as good as leaving the key out.
- A key that is not listed here is an error with its line and column, and with a suggestion where one is near. So are
  duplicate keys, values of the wrong type, and keys that contradict each other; both are named.
- `"auto"` is accepted for every value and stands for the default, unless the table says otherwise: where Hugging
  Face's trainer fills it in, it is what that trainer has without further arguments, or what the run itself says.
- A file that holds `"auto"` and no `optimizer` section is one for that trainer: it gets AdamW with a rate of 5e-5 that falls to 0
  over the run in a line. `terrace.initialize` makes up neither if it is given an optimizer.
- `terrace.initialize` and `terrace.config.read_config` read the same files. Where a key does something else in Python, its
  note says so.
- Files that give no batch size rely on their trainer for it; here they get one sequence at a time.
- Known keys that have no effect here are accepted and listed in one warning, section by section.
- `--print-config` shows every value in force on this machine and where it came from: the line of the file, a flag, `auto`, a
  default, or what was found here, such as the tuning of a path. `--explain KEY` says what one key means and what it is in
  this run.

| you want to set | keys |
|---|---|
| the batch | `train_batch_size`, `train_micro_batch_size_per_gpu`, `gradient_accumulation_steps` ([top level](#top-level)) |
| precision | `bf16.enabled` ([bf16](#bf16)), `fp16.enabled` and its loss scale ([fp16](#fp16)) |
| the optimizer | `optimizer.type`, `optimizer.params.lr`, `betas`, `eps`, `weight_decay` ([optimizer](#optimizer)), `gradient_clipping` |
| the learning rate over time | `scheduler.type`, `scheduler.params.warmup_num_steps`, `total_num_steps` ([scheduler](#scheduler)) |
| where bytes live | `zero_optimization.stage`, `offload_param.device`, `offload_optimizer.device`, `nvme_path` ([zero_optimization](#zero_optimization)) |
| budgets | `terrace.device_memory`, `terrace.host_memory` ([terrace](#terrace)) |
| the size of what moves | `zero_optimization.sub_group_size`, `terrace.chunk_elements` |
| when the update runs | `terrace.update`, `terrace.compact_state` |
| adapters, frozen weights | `terrace.lora`, `terrace.frozen` ([finetuning.md](finetuning.md)) |
| groups of weights with settings of their own | `terrace.parameter_groups` |
| several ranks | `zero_optimization.overlap_comm`, `mics_shard_size`, the keys of [ZeRO++](#zero) ([ranks.md](ranks.md)) |
| reading and writing of files | `aio.block_size`, `aio.queue_depth` ([aio](#aio)) |
| what a run reports | `steps_per_print`, `tensorboard`, `csv_monitor`, `wall_clock_breakdown`; in Python `wandb`, `comet` |

Effects: **honoured** keys do here what they do in DeepSpeed, or what the note says; **mapped** keys stand for another
key; keys **without effect** are accepted; **refused** keys are an error unless they have a value that changes nothing,
which the note or the column "value" names.

## What the stages mean here

One rank divides nothing, whatever `zero_optimization.stage` says. A stage says which offload sections the file may have; a
flag of the command line may ask for a placement at any stage. Several ranks divide optimizer states and the sums of gradients
at every stage, and parameters at stage 3 ([ranks.md](ranks.md)).

| stage | DeepSpeed divides | here | the file may have |
|---|---|---|---|
| 0 | nothing | everything is in device memory | neither `offload_optimizer` nor `offload_param` |
| 1 | optimizer states | master weights and moments are where `offload_optimizer.device` says: device memory, host memory or nvme | `offload_optimizer` |
| 2 | and gradients | the same as stage 1; gradients go straight to where the states are | `offload_optimizer` |
| 3 | and parameters | parameters are where `offload_param.device` says, fetched before each use; in device memory several ranks have a share each | both |

In stages 1 and 2 DeepSpeed quietly uses host memory for `"device": "nvme"`; here the states are on nvme, and a warning
says so. `--print-config` says what the stage comes to for a given file.

## ZeRO++

Its keys are honoured where the numbers stay exact or are those of its own rounding:

- `zero_quantized_weights` needs bf16 or fp16. DeepSpeed's own example has neither section; add `"bf16": {"enabled": true}`.
- `zero_quantized_gradients` rounds gradients between ranks, and with one rank too.
- `zero_hpz_partition_size` above 1 keeps gathered parameters in host memory, as far as the budget has room.
- `zeropp_loco_param` and `zero_quantized_nontrainable_weights` are refused. Leave them out.

## How the learning rate of a group comes about

Every weight belongs to one parameter group: the first of `terrace.parameter_groups` whose patterns match its name, else
the model's own two, weights that decay and weights that do not (biases and norms). A group's own `lr` is its own key, else
`optimizer.params.lr`. As with DeepSpeed's schedulers on torch parameter groups,

- without a scheduler each group keeps its own rate;
- WarmupLR without `warmup_max_lr`, and any warm-up with `"auto"`, rise to each group's own rate;
- WarmupCosineLR multiplies each group's own rate;
- everything else sets the rate of all groups alike, or takes a list: one number for each of `terrace.parameter_groups` in
  their order, then one for the other weights that decay and one for those that do not. Own rates have no effect then, and
  a warning says so.

The very first update runs with what DeepSpeed's scheduler sets when it is made, update number k (from 0) with its
iteration k - 1; updates that fp16 skips do not count.
)";

// Keeps a cell of a table one cell.
std::string cell(std::string_view text) {
  std::string safe;
  for (char c : text) safe += c == '|' ? std::string("\\|") : std::string(1, c);
  return safe;
}

// The note, and what the engine for Python does if that is something else.
std::string note_of(const SchemaKey& row) {
  const EngineKey* const engine = engine_key(row.path());
  if (engine == nullptr || row.effect == KeyEffect::mapped) return std::string(row.note);
  switch (engine->effect) {
    case EngineEffect::idle:
      return row.effect == KeyEffect::honoured ? fmt::format("{} In Python: without effect.", row.note)
                                               : std::string(row.note);
    case EngineEffect::refused:
      return row.path() == engine->path ? fmt::format("{} In Python: refused; {}.", row.note, engine->note)
                                        : std::string(row.note);
    case EngineEffect::as_program:
    case EngineEffect::honoured:
      return fmt::format("{} In Python: {}", row.note, engine->note);
  }
  return "";
}

// The part of the path that a heading of the page stands for: "optimizer" of optimizer.params.lr.
std::string_view top_section(const SchemaKey& row) {
  return row.section.substr(0, row.section.find('.'));
}

std::string section_heading(std::string_view section) {
  return section.empty() ? "## Top level\n" : fmt::format("## {}\n", section);
}

}  // namespace

std::string config_reference_markdown() {
  std::string page(kIntroduction);
  std::vector<std::string_view> sections;
  for (const SchemaKey& row : schema()) {
    if (std::find(sections.begin(), sections.end(), top_section(row)) == sections.end())
      sections.push_back(top_section(row));
  }
  for (const std::string_view section : sections) {
    page += "\n" + section_heading(section) +
            "\n| key | value | default | effect | note |\n|---|---|---|---|---|\n";
    for (const SchemaKey& row : schema()) {
      if (top_section(row) != section) continue;
      const std::string path = row.path();
      page += fmt::format(
          "| `{}` | {} | {} | {} | {} |\n", section.empty() ? path : path.substr(section.size() + 1),
          cell(accepted_values(row)), cell(row.default_text), name_of(row.effect), cell(note_of(row)));
    }
  }
  return page;
}

}  // namespace terrace::testing
