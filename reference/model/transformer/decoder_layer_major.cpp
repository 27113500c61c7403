// The order of a pass over several micro-batches.
#include <terrace/reference/model/transformer/internal/layer_major_pass.h>

namespace terrace::decoder {

void LayerMajorPass::select(uint32_t run) {
  batch = runs_[run].batch;
  if (!tokens_.empty()) batch.tokens = of(tokens_, run), batch.targets = of(targets_, run);
  prefix = runs_[run].operation_prefix;
  access.select_micro_batch(run);
}

HeadActivations LayerMajorPass::of(const HeadActivations& all, uint32_t run) const {
  HeadActivations one;
  one.statistics = {of(all.statistics.means, run), of(all.statistics.inverse_deviations, run)};
  one.normalised = of(all.normalised, run);
  one.log_sums = of(all.log_sums, run);
  return one;
}

HeadActivations LayerMajorPass::allocate_heads() {
  HeadActivations all;
  all.statistics = allocate_statistics(tokens_count() * count());
  all.normalised = allocate_all(config.width);
  all.log_sums = allocate_all(1);
  return all;
}

// As operations read them, of all micro-batches; empty where they read them where they are.
void LayerMajorPass::send_tokens() {
  const uint64_t all = tokens_count() * count();
  const std::span<int32_t> tokens = ops.memory_for_ids(all, arena);
  const std::span<int32_t> targets = ops.memory_for_ids(all, arena);
  if (tokens.empty()) return;
  for (uint32_t run = 0; run < count(); ++run) {
    ops.send_ids(runs_[run].batch.tokens, of(tokens, run));
    ops.send_ids(runs_[run].batch.targets, of(targets, run));
  }
  tokens_ = tokens;
  targets_ = targets;
}

void LayerMajorPass::train(float loss_scale) {
  const StackArena::Frame frame(arena);
  send_tokens();
  prepare_rotation();
  HeadActivations late_heads;
  if (head_gradient_is_late()) late_heads = allocate_heads();
  const std::span<float> x = allocate_all(config.width);
  const std::span<float> dx = allocate_all(config.width);
  embed_all(x);
  const uint32_t lowest = lowest_backward_layer();
  forward_layers(0, lowest, [&](uint32_t run) { return of(x, run); });
  const auto head = [&](RowsOf last) {
    const StackArena::Frame head_frame(arena);
    run_head(last, head_gradient_is_late() ? late_heads : allocate_heads(), dx, loss_scale);
  };
  const Segments segments(lowest, config.layers, options.checkpoint_count);
  if (segments.count() == 0) {
    head([&](uint32_t run) { return of(x, run); });
  } else if (store != nullptr) {
    run_segments_stored(segments, x, dx, head);
  } else {
    run_segments(segments, x, dx, head);
  }
  if (embedding_is_trainable()) embed_all_backward(dx, late_heads, loss_scale);
  ops.finish();
}

void LayerMajorPass::embed_all(std::span<float> x) {
  for (uint32_t part = 0; part < tensors.tokens.part_count; ++part)
    for_each_run([&](uint32_t run) { embed_part(part, of(x, run), kForward); });
  for_each_run([&](uint32_t run) { embed_positions(of(x, run), kForward); });
}

// In place.
void LayerMajorPass::forward_layers(uint32_t layer, uint32_t end, RowsOf x) {
  for (; layer < end; ++layer)
    for_each_run([&](uint32_t run) { run_forgetting(layer, layer + 1, x(run), x(run), kForward); });
}

void LayerMajorPass::forward_segment(const Segments& segments, uint32_t segment, RowsOf x, RowsOf y) {
  const uint32_t layer = segments.begin(segment);
  for_each_run([&](uint32_t run) { run_forgetting(layer, layer + 1, x(run), y(run), kForward); });
  forward_layers(layer + 1, segments.end(segment), y);
}

void LayerMajorPass::run_segments(const Segments& segments, std::span<float> x, std::span<float> dx,
                                  FunctionRef<void(RowsOf)> above) {
  const std::span<float> outputs = allocate_all(config.width * segments.count());
  // Of all micro-batches.
  const auto output_of = [&](uint32_t segment) { return from(outputs, segment * x.size()).first(x.size()); };
  const auto input_of = [&](uint32_t segment) { return segment == 0 ? x : output_of(segment - 1); };
  for (uint32_t s = 0; s < segments.count(); ++s) {
    forward_segment(
        segments, s, [&](uint32_t run) { return of(input_of(s), run); },
        [&](uint32_t run) { return of(output_of(s), run); });
  }
  above([&](uint32_t run) { return of(output_of(segments.count() - 1), run); });
  for (uint32_t s = segments.count(); s-- > 0;) {
    for_each_run([&](uint32_t run) {
      run_keeping(segments.begin(s), segments.end(s), of(input_of(s), run), of(dx, run), kRecompute, nullptr);
    });
  }
}

// The inputs of segments live in the store, numbered as they come. The arena has a buffer for each
// micro-batch and one more, used in turn: an output takes the place of the input before its own, which has
// been put away by then. On the way back two of them do.
void LayerMajorPass::run_segments_stored(const Segments& segments, std::span<float> x, std::span<float> dx,
                                         FunctionRef<void(RowsOf)> above) {
  const std::span<float> one_more = allocate(config.width);
  const auto buffer = [&](uint32_t number) {
    const uint32_t index = number % (count() + 1);
    return index < count() ? of(x, index) : one_more;
  };
  for (uint32_t s = 0; s < segments.count(); ++s) {
    const uint32_t first = s * count();  // the number of the segment's first input
    forward_segment(
        segments, s,
        [&](uint32_t run) {
          store->start_put(first + run, buffer(first + run));
          if (first + run > 0) store->wait(first + run - 1);
          return buffer(first + run);
        },
        [&](uint32_t run) { return buffer(first + run + count()); });
  }
  uint32_t number = segments.count() * count();  // of inputs that are still to come back
  store->wait(number - 1);
  above([&](uint32_t run) { return buffer(number + run); });
  uint32_t next = (segments.count() - 1) * count();
  store->start_get(next, buffer(0));
  for (uint32_t s = segments.count(), turn = 0; s-- > 0;) {
    for_each_run([&](uint32_t run) {
      store->wait(s * count() + run);
      next = run + 1 < count() ? s * count() + run + 1 : (s - 1) * count();
      if (run + 1 < count() || s > 0) store->start_get(next, buffer((turn + 1) % 2));
      run_keeping(segments.begin(s), segments.end(s), buffer(turn % 2), of(dx, run), kRecompute, nullptr);
      ++turn;
    });
  }
}

// A part of the table is used by all micro-batches before the next one is. dx holds the gradient of what the
// norm makes until the norm's backward pass, and becomes that of x.
void LayerMajorPass::run_head(RowsOf x, const HeadActivations& kept, std::span<float> dx, float loss_scale) {
  for_each_run([&](uint32_t run) { head_norm_forward(x(run), of(kept, run), kForward); });
  {
    const StackArena::Frame frame(arena);
    const std::span<RunningLoss> running = arena.allocate<RunningLoss>(tokens_count() * count());
    for (uint32_t part = 0; part < tensors.head.part_count; ++part) {
      for_each_run([&](uint32_t run) { head_part_forward(part, of(kept, run), of(running, run), kForward); });
    }
    for (uint32_t run = 0; run < count(); ++run) head_loss(of(running, run), of(kept, run), runs_[run].loss);
  }
  for (uint32_t part = 0; part < tensors.head.part_count; ++part)
    for_each_run([&](uint32_t run) { head_part_backward(part, of(kept, run), of(dx, run), loss_scale); });
  const StackArena::Frame frame(arena);
  const std::span<float> dnormalised = allocate(config.width);
  for_each_run([&](uint32_t run) {
    ops.copy(of(dx, run), dnormalised);
    head_norm_backward(x(run), of(kept, run), dnormalised, of(dx, run));
  });
}

void LayerMajorPass::embed_all_backward(std::span<const float> dx, const HeadActivations& heads,
                                        float loss_scale) {
  const StackArena::Frame frame(arena);
  if (tensors.any_trainable(tensors.tokens)) {
    const TokenOrder all{arena.allocate<uint32_t>((tensors.tokens.rows + 1) * count()),
                         arena.allocate<uint32_t>(tokens_count() * count())};
    const auto order_of = [&](uint32_t run) { return TokenOrder{of(all.ends, run), of(all.places, run)}; };
    for_each_run([&](uint32_t run) { ops.order_tokens(batch.tokens, order_of(run)); });
    for (uint32_t part = 0; part < tensors.tokens.part_count; ++part) {
      for_each_run([&](uint32_t run) {
        embed_part_backward(part, order_of(run), of(dx, run), of(heads, run), loss_scale);
      });
    }
  }
  for_each_run([&](uint32_t run) { embed_positions_backward(of(dx, run)); });
}

}  // namespace terrace::decoder
