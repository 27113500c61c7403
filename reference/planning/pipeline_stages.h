// How a model is divided into the stages of a pipeline, as PipelineModule does it with the method
// "parameters" (python/terrace/pipe/layers.py). The layers are the embedding, the blocks, the norm behind
// them and the head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/reference/model/transformer/model.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// How many processes train, and where they are. Process r has stage r / data_ranks, on host r /
// ranks_per_host.
struct PipelineShape {
  uint32_t stages = 1;
  uint32_t data_ranks = 1;  // of a stage, which divide its states and the micro-batches
  uint32_t ranks_per_host = 1;
  uint32_t micro_batches = 1;  // of a data rank in a step

  uint32_t ranks() const { return stages * data_ranks; }
  uint32_t host_of(uint32_t stage) const { return stage * data_ranks / ranks_per_host; }
  // Data ranks of a stage on one host.
  uint32_t ranks_together() const { return data_ranks < ranks_per_host ? data_ranks : ranks_per_host; }
};

// Bounds of `parts` runs of weights, none of them empty, whose largest sum is as small as can be; of several
// such the ones whose sums differ least. There are no more parts than weights.
std::vector<uint32_t> balanced_bounds(std::span<const uint64_t> weights, uint32_t parts);

// What a stage is in a plan.
struct StagePart {
  uint32_t first_layer = 0;  // of the layers of the pipeline,
  uint32_t layer_end = 0;
  ModelConfig model;  // with its part
};
// Throws Error(config) if there are more stages than layers.
std::vector<StagePart> divide_into_stages(const ModelConfig& model, const ModelOptions& options,
                                          const PipelineShape& shape);

// Returns the configuration of the data ranks of a stage with these blocks. Throws Error(config) if hosts
// would have unequal parts of stages.
TrainConfig stage_config(const TrainConfig& config, const PipelineShape& shape, const StagePart& stage);

}  // namespace terrace
