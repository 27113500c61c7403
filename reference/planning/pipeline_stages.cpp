#include <terrace/reference/planning/pipeline_stages.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

__extension__ using Square = unsigned __int128;  // of the elements of a large model

// Of the first weights in so many parts.
struct Division {
  uint64_t largest = 0;
  Square squares = 0;  // of the sums
  uint32_t begin = 0;  // where the last part begins
  auto order() const { return std::tuple(largest, squares, begin); }
};

// The layers [first, end) of the pipeline of a model: 0 is the embedding.
ModelConfig part_of(const ModelConfig& model, uint32_t first, uint32_t end) {
  const uint32_t blocks = model.layers, norm = blocks + 1, head = blocks + 2;
  const auto has = [&](uint32_t layer) { return first <= layer && layer < end; };
  ModelPart part{.all_layers = blocks,
                 .first_layer = std::clamp(first, 1u, blocks + 1) - 1,
                 .has_embedding = has(0),
                 .has_norm = has(norm),
                 .has_head = has(head)};
  part.ties_across = model.tied_embeddings && !(part.has_embedding && part.has_head);
  ModelConfig config = completed(model);
  config.layers = std::clamp(end, 1u, blocks + 1) - 1 - part.first_layer;
  config.tied_embeddings = config.tied_embeddings && !part.ties_across;
  config.part = part;
  return config;
}

// Each use of a tied table counts, as PipelineModule counts it.
uint64_t trained_elements(const ModelConfig& model, const ModelOptions& options, uint32_t layer) {
  ModelConfig untied = model;
  untied.tied_embeddings = false;
  uint64_t elements = 0;
  for (const TensorSpec& tensor : make_model(part_of(untied, layer, layer + 1), options)->tensors())
    elements += tensor.trainable ? tensor.element_count() : 0;
  return elements;
}

}  // namespace

std::vector<uint32_t> balanced_bounds(std::span<const uint64_t> weights, uint32_t parts) {
  TERRACE_ASSERT(parts > 0 && parts <= weights.size(), "there are more parts than weights");
  const auto count = static_cast<uint32_t>(weights.size());
  std::vector<uint64_t> sums(count + 1, 0);
  for (uint32_t w = 0; w < count; ++w) sums[w + 1] = sums[w] + weights[w];
  std::vector<std::vector<std::optional<Division>>> rounds(parts + 1,
                                                           std::vector<std::optional<Division>>(count + 1));
  rounds[0][0] = Division{};
  for (uint32_t part = 1; part <= parts; ++part) {
    for (uint32_t end = 1; end <= count; ++end) {
      std::optional<Division>& best = rounds[part][end];
      for (uint32_t begin = 0; begin < end; ++begin) {
        const std::optional<Division>& before = rounds[part - 1][begin];
        if (!before) continue;
        const uint64_t own = sums[end] - sums[begin];
        const Division tried{std::max(before->largest, own), before->squares + Square{own} * own, begin};
        if (!best || tried.order() < best->order()) best = tried;
      }
    }
  }
  std::vector<uint32_t> bounds{count};
  for (uint32_t part = parts; part > 0; --part) bounds.push_back(rounds[part][bounds.back()]->begin);
  std::ranges::reverse(bounds);
  return bounds;
}

std::vector<StagePart> divide_into_stages(const ModelConfig& model, const ModelOptions& options,
                                          const PipelineShape& shape) {
  const uint32_t layers = model.layers + 3;
  if (shape.stages > layers)
    throw Error(ErrorKind::config,
                {"cannot divide layers into stages", fmt::format("{} stages", shape.stages),
                 fmt::format("the model has {} layers: the embedding, {} blocks, a norm and the head", layers,
                             model.layers),
                 "take fewer stages"});
  std::vector<uint64_t> weights;
  for (uint32_t layer = 0; layer < layers; ++layer)
    weights.push_back(layer > 1 && layer <= model.layers && options.frozen.empty()
                          ? weights.back()
                          : trained_elements(model, options, layer));
  const std::vector<uint32_t> bounds = balanced_bounds(weights, shape.stages);
  std::vector<StagePart> stages;
  for (uint32_t s = 0; s < shape.stages; ++s) {
    StagePart stage{bounds[s], bounds[s + 1], part_of(model, bounds[s], bounds[s + 1])};
    // No more micro-batches are ahead than there are.
    stage.model.part->stages_behind = std::min(shape.stages - 1 - s, shape.micro_batches - 1);
    stages.push_back(std::move(stage));
  }
  return stages;
}

TrainConfig stage_config(const TrainConfig& config, const PipelineShape& shape, const StagePart& stage) {
  if (shape.data_ranks % shape.ranks_together() != 0 || shape.ranks_per_host % shape.ranks_together() != 0)
    throw Error(
        ErrorKind::config,
        {"cannot place stages on hosts", fmt::format("{} ranks of a stage", shape.data_ranks),
         fmt::format("hosts have {} ranks, so that some would have parts of stages", shape.ranks_per_host),
         "let one of the two be a multiple of the other"});
  TrainConfig own = config;
  own.ranks_on_host = shape.ranks_per_host;
  BatchConfig& batch = own.batch;
  batch.ranks = shape.data_ranks;
  batch.hosts = shape.data_ranks / shape.ranks_together();
  batch.micro_batches = shape.micro_batches * shape.data_ranks;
  batch.gradient_group = batch.new_gradient_group();
  batch.layer_major = false;
  // Segments have as many blocks as in the whole model.
  uint32_t& segments = own.activations.checkpoint_count;
  const uint32_t all = stage.model.part->all_layers;
  if (segments > 0 && stage.model.layers > 0)
    segments = static_cast<uint32_t>(divide_up(stage.model.layers, divide_up(all, std::min(segments, all))));
  return own;
}

}  // namespace terrace
