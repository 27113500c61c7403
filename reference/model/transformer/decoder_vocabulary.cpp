// The two ends of a decoder: the embedding and the head, a part of the vocabulary's table at a time.
#include <terrace/reference/model/transformer/internal/decoder_pass.h>

namespace terrace::decoder {

void DecoderPass::embed(std::span<float> x, Phase phase) {
  for (uint32_t part = 0; part < tensors.tokens.part_count; ++part) embed_part(part, x, phase);
  embed_positions(x, phase);
}

void DecoderPass::embed_part(uint32_t part, std::span<float> x, Phase phase) {
  const TableTensors& table = tensors.tokens;
  const Lease lease(access, OperationKey::of_part(prefix, "embedding.", part, phase.suffix),
                    TensorList(table.part(part)), phase.kind);
  ops.embedding_forward({tokens_count(), config.width, table.first_row(part), table.rows_of(part)},
                        batch.tokens, view(lease, table.part(part)), x);
}

void DecoderPass::embed_positions(std::span<float> x, Phase phase) {
  if (!tensors.positions) return;
  const Lease lease(access, OperationKey(prefix, "embedding.positions", phase.suffix),
                    TensorList(*tensors.positions), phase.kind);
  ops.position_forward({batch.batch, batch.sequence, config.width, config.positions, first_position()},
                       view(lease, *tensors.positions), x, arena);
}

void DecoderPass::embed_backward(std::span<const float> dx, const HeadActivations& head, float loss_scale) {
  const StackArena::Frame frame(arena);
  if (tensors.any_trainable(tensors.tokens)) {
    const TokenOrder order{arena.allocate<uint32_t>(tensors.tokens.rows + 1),
                           arena.allocate<uint32_t>(tokens_count())};
    ops.order_tokens(batch.tokens, order);
    for (uint32_t part = 0; part < tensors.tokens.part_count; ++part)
      embed_part_backward(part, order, dx, head, loss_scale);
  }
  embed_positions_backward(dx);
}

void DecoderPass::embed_part_backward(uint32_t part, const TokenOrder& order, std::span<const float> dx,
                                      const HeadActivations& head, float loss_scale) {
  const TableTensors& table = tensors.tokens;
  const TensorId tensor = table.part(part);
  const Lease lease(access, OperationKey::of_part(prefix, "embedding.", part, kBackward.suffix),
                    TensorList(tensor), kBackward.kind);
  GradientTarget gradient = target(lease, tensor);
  if (head_gradient_is_late()) {
    ops.cross_entropy_backward(head_part(part, tokens_count()), head.normalised, view(lease, tensor),
                               batch.targets, head.log_sums, loss_scale, {}, gradient, arena);
    gradient.view.accumulate = true;
  }
  ops.embedding_backward({tokens_count(), config.width, table.first_row(part), table.rows_of(part)}, order,
                         dx, gradient, arena);
}

void DecoderPass::embed_positions_backward(std::span<const float> dx) {
  if (!tensors.positions || !tensors.trainable(*tensors.positions)) return;
  const Lease lease(access, OperationKey(prefix, "embedding.positions", kBackward.suffix),
                    TensorList(*tensors.positions), kBackward.kind);
  ops.position_backward({batch.batch, batch.sequence, config.width, config.positions}, dx,
                        target(lease, *tensors.positions), arena);
}

HeadActivations DecoderPass::allocate_head() {
  HeadActivations kept;
  kept.statistics = allocate_statistics(tokens_count());
  kept.normalised = allocate(config.width);
  kept.log_sums = allocate(1);
  return kept;
}

void DecoderPass::head_forward(std::span<const float> x, const HeadActivations& kept, Phase phase,
                               float& loss) {
  head_norm_forward(x, kept, phase);
  const StackArena::Frame frame(arena);
  const std::span<RunningLoss> running = arena.allocate<RunningLoss>(tokens_count());
  for (uint32_t part = 0; part < tensors.head.part_count; ++part)
    head_part_forward(part, kept, running, phase);
  head_loss(running, kept, loss);
}

void DecoderPass::head_loss(std::span<const RunningLoss> running, const HeadActivations& kept, float& loss) {
  const StackArena::Frame frame(arena);
  const std::span<float> result = ops.memory_for_results({&loss, 1}, arena);
  ops.cross_entropy_loss(running, kept.log_sums, result.first<1>());
  ops.fetch(result, {&loss, 1});
}

void DecoderPass::head_norm_forward(std::span<const float> x, const HeadActivations& kept, Phase phase) {
  const Lease lease(access, OperationKey(prefix, "head.norm", phase.suffix), TensorList(tensors.final_norm),
                    phase.kind);
  norm_forward(lease, tensors.final_norm, x, kept.normalised, kept.statistics);
}

void DecoderPass::head_part_forward(uint32_t part, const HeadActivations& kept,
                                    std::span<RunningLoss> running, Phase phase) {
  const TensorId tensor = tensors.head.part(part);
  const Lease lease(access, OperationKey::of_part(prefix, "head.", part, phase.suffix), TensorList(tensor),
                    phase.kind);
  ops.cross_entropy_forward(head_part(part, tokens_count()), kept.normalised, view(lease, tensor),
                            batch.targets, running, arena);
}

void DecoderPass::head_backward(std::span<const float> x, const HeadActivations& kept, std::span<float> dx,
                                float loss_scale) {
  const StackArena::Frame frame(arena);
  const std::span<float> dnormalised = allocate(config.width);
  for (uint32_t part = 0; part < tensors.head.part_count; ++part)
    head_part_backward(part, kept, dnormalised, loss_scale);
  head_norm_backward(x, kept, dnormalised, dx);
}

// With a late head gradient the table's own gradient waits for embed_backward: the table's parts are then
// used once in the backward pass, and their gradients are complete at once.
void DecoderPass::head_part_backward(uint32_t part, const HeadActivations& kept, std::span<float> dnormalised,
                                     float loss_scale) {
  const Phase phase = head_gradient_is_late() ? kRecompute : kBackward;
  const TensorId tensor = tensors.head.part(part);
  const Lease lease(access, OperationKey::of_part(prefix, "head.", part, phase.suffix), TensorList(tensor),
                    phase.kind);
  ops.cross_entropy_backward(head_part(part, tokens_count()), kept.normalised, view(lease, tensor),
                             batch.targets, kept.log_sums, loss_scale, dnormalised,
                             head_gradient_is_late() ? GradientTarget{} : target(lease, tensor), arena);
}

void DecoderPass::head_norm_backward(std::span<const float> x, const HeadActivations& kept,
                                     std::span<const float> dnormalised, std::span<float> dx) {
  ops.set_zero(dx);
  const Lease lease(access, OperationKey(prefix, "head.norm", kBackward.suffix),
                    TensorList(tensors.final_norm), kBackward.kind);
  norm_backward(lease, tensors.final_norm, x, kept.statistics, dnormalised, dx);
}

void DecoderPass::next_token_logits(std::span<float> logits) {
  const StackArena::Frame frame(arena);
  const uint64_t rows = batch.batch, width = config.width;
  TERRACE_ASSERT(logits.size() == rows * config.vocabulary, "the logits' rows have another size");
  const std::span<float> results = ops.memory_for_results(logits, arena);
  const std::span<float> last = arena.allocate<float>(rows * width);
  {
    const StackArena::Frame layers(arena);
    const std::span<const float> x = run_inference();
    for (uint64_t row = 0; row < rows; ++row) {
      ops.copy(from(x, ((row + 1) * batch.sequence - 1) * width).first(width),
               from(last, row * width).first(width));
    }
  }
  const std::span<float> normalised = arena.allocate<float>(rows * width);
  {
    const Lease lease(access, OperationKey(prefix, "head.norm", kInference.suffix),
                      TensorList(tensors.final_norm), kInference.kind);
    norm_forward(lease, tensors.final_norm, last, normalised, allocate_statistics(rows));
  }
  for (uint32_t part = 0; part < tensors.head.part_count; ++part) {
    const TensorId tensor = tensors.head.part(part);
    const Lease lease(access, OperationKey::of_part(prefix, "head.", part, kInference.suffix),
                      TensorList(tensor), kInference.kind);
    ops.logits(head_part(part, rows), normalised, view(lease, tensor), config.vocabulary, results, arena);
  }
  ops.fetch(results, logits);
  ops.finish();
  if (cache != nullptr) cache->hold(cache->tokens() + batch.sequence);
}

}  // namespace terrace::decoder
