// The order of the step of a stage of a pipeline.
#include <algorithm>

#include <terrace/reference/model/transformer/internal/stage_pass.h>

namespace terrace::decoder {

Segments StagePass::segments() const {
  return {lowest_backward_layer(), config.layers,
          options.checkpoint_activations ? options.checkpoint_count : 0};
}

std::span<float> StagePass::input_of(const Kept& kept, uint32_t segment) const {
  if (store != nullptr) return buffers_[segment % 2];
  return segment == 0 ? kept.input : kept.outputs[segment - 1];
}

StagePass::Kept StagePass::allocate_kept() {
  Kept kept;
  const uint32_t count = segments().count();
  if (store == nullptr || count == 0) kept.input = allocate(config.width);
  for (uint32_t s = 0; s < count; ++s) {
    const bool stays = store == nullptr || s + 1 == count;
    kept.outputs.push_back(stays ? allocate(config.width) : std::span<float>());
    if (!options.checkpoint_activations) kept.layers.push_back(allocate_layer());
  }
  if (part_.has_norm || part_.has_head) kept.head = allocate_head();
  return kept;
}

void StagePass::train() {
  const StackArena::Frame frame(arena);
  prepare_rotation();
  const uint32_t live = std::min(part_.stages_behind + 1, count());
  for (uint32_t slot = 0; slot < live; ++slot) kept_.push_back(allocate_kept());
  dx_ = allocate(config.width);
  if (store != nullptr) buffers_ = {allocate(config.width), allocate(config.width)};
  for (uint32_t run = 0; run < count(); ++run) {
    forward(run);
    if (run + 1 >= live) backward(run + 1 - live);
  }
  for (uint32_t run = count() + 1 - live; run < count(); ++run) backward(run);
}

void StagePass::select(uint32_t run, uint32_t ended) {
  batch = runs_[run].batch;
  batch.tokens = readable(batch.tokens);
  batch.targets = readable(batch.targets);
  prefix = runs_[run].operation_prefix;
  access.select_micro_batch(ended);
}

void StagePass::forward(uint32_t run) {
  const StackArena::Frame frame(arena);
  const auto live = static_cast<uint32_t>(kept_.size());
  const uint32_t slot = run % live;
  select(run, run < live ? 0 : run + 1 - live);
  Kept& kept = kept_[slot];
  const Segments all = segments();
  const std::span<float> x = all.count() == 0 ? kept.input : input_of(kept, 0);
  if (part_.has_embedding) embed(x, kForward);
  run_forgetting(0, all.first, x, x, kForward);
  layers_forward(slot, kept);
  head_forward_here(kept);
  ops.finish();
  at_(StageMoment::forward_is_over, run);
}

void StagePass::layers_forward(uint32_t slot, Kept& kept) {
  const Segments all = segments();
  const uint32_t count = all.count();
  for (uint32_t s = 0; s < count; ++s) {
    const std::span<float> input = input_of(kept, s);
    const std::span<float> output = s + 1 == count ? kept.outputs[s] : input_of(kept, s + 1);
    if (!options.checkpoint_activations) {
      layer_forward(all.begin(s), input, kept.layers[s], kForward);
      layer_output(all.begin(s), kept.layers[s], output, kForward);
      continue;
    }
    if (store != nullptr) store->start_put(slot * count + s, input);
    run_forgetting(all.begin(s), all.end(s), input, output, kForward);
    if (store != nullptr) store->wait(slot * count + s);
  }
}

void StagePass::head_forward_here(Kept& kept) {
  const std::span<const float> last = kept.outputs.empty() ? kept.input : kept.outputs.back();
  if (part_.has_norm) head_norm_forward(last, kept.head, kForward);
  if (!part_.has_head) return;
  const StackArena::Frame frame(arena);
  const std::span<RunningLoss> running = arena.allocate<RunningLoss>(tokens_count());
  for (uint32_t p = 0; p < tensors.head.part_count; ++p) head_part_forward(p, kept.head, running, kForward);
  float loss = 0.0f;
  head_loss(running, kept.head, loss);
}

void StagePass::backward(uint32_t run) {
  const StackArena::Frame frame(arena);
  select(run, run);
  at_(StageMoment::backward_begins, run);
  const uint32_t slot = run % static_cast<uint32_t>(kept_.size());
  Kept& kept = kept_[slot];
  head_backward_here(kept);
  layers_backward(slot, kept);
  if (part_.has_embedding) {
    if (part_.ties_across) allocate_tied_gradient(tensors.tokens);
    if (embedding_is_trainable()) embed_backward(dx_, kept.head, 1.0f);
  }
  ops.finish();
  at_(StageMoment::backward_is_over, run);
}

void StagePass::allocate_tied_gradient(const TableTensors& table) {
  for (uint32_t p = 0; p < table.part_count; ++p)
    arena.allocate<std::byte>(table.rows_of(p) * config.width * bytes_of(tensors.type(table.part(p))));
}

void StagePass::head_backward_here(Kept& kept) {
  if (!part_.has_norm && !part_.has_head) return;
  const StackArena::Frame frame(arena);
  const std::span<float> dnormalised = part_.has_norm ? allocate(config.width) : dx_;
  if (part_.has_head) {
    if (part_.ties_across) allocate_tied_gradient(tensors.head);
    for (uint32_t p = 0; p < tensors.head.part_count; ++p)
      head_part_backward(p, kept.head, dnormalised, 1.0f);
  }
  const std::span<const float> last = kept.outputs.empty() ? kept.input : kept.outputs.back();
  if (part_.has_norm) head_norm_backward(last, kept.head, dnormalised, dx_);
}

void StagePass::layers_backward(uint32_t slot, Kept& kept) {
  const Segments all = segments();
  const uint32_t count = all.count();
  for (uint32_t s = count; s-- > 0;) {
    const std::span<float> input = input_of(kept, s);
    if (!options.checkpoint_activations) {
      layer_backward(all.begin(s), input, kept.layers[s], dx_);
      continue;
    }
    if (store != nullptr) {
      store->start_get(slot * count + s, input);
      store->wait(slot * count + s);
    }
    run_keeping(all.begin(s), all.end(s), input, dx_, kRecompute, nullptr);
  }
}

}  // namespace terrace::decoder
