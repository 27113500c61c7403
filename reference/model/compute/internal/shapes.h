// The checks of an operation's arguments and the cuts of its work, wherever it runs. They use sizes alone:
// nothing here touches the memory of an argument.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/products/products.h>
#include <terrace/reference/model/compute/ops.h>

namespace terrace::compute {

// ---- Rows

inline void require_copied_rows(const RowCopyShape& shape, size_t x, size_t y) {
  const auto holds = [&](size_t size, uint64_t stride) {
    return stride >= shape.width && size >= (shape.rows - 1) * stride + shape.width;
  };
  TERRACE_ASSERT(shape.rows > 0 && holds(x, shape.from_stride) && holds(y, shape.to_stride),
                 "copied rows have another size");
}

inline void require_norm_rows(const NormShape& shape, std::initializer_list<size_t> sizes) {
  const auto holds = [&](size_t size) { return size == shape.rows * shape.width; };
  TERRACE_ASSERT(std::all_of(sizes.begin(), sizes.end(), holds), "a norm's rows have another size");
}

inline void require_linear_rows(const LinearShape& shape, size_t x, size_t y) {
  TERRACE_ASSERT(x == shape.rows * shape.inputs && y == shape.rows * shape.outputs,
                 "a linear layer's rows have another size");
}

inline void require_adapter_rows(const AdapterShape& shape, size_t x, size_t y) {
  TERRACE_ASSERT(shape.rank > 0, "an adapter has a rank");
  TERRACE_ASSERT(x == shape.rows * shape.inputs && y == shape.rows * shape.outputs,
                 "an adapter's rows have another size");
}

inline void require_rotary_rows(const RotaryShape& shape, const RotaryTable& table, size_t x) {
  TERRACE_ASSERT(shape.head_size % 2 == 0, "rotary positions turn pairs: the size of a head is odd");
  TERRACE_ASSERT(x == shape.tokens * shape.heads * shape.head_size &&
                     table.cosines.size() == shape.sequence * (shape.head_size / 2) &&
                     table.sines.size() == table.cosines.size(),
                 "rotary positions' rows have another size");
}

inline void require_gated_units(std::initializer_list<size_t> sizes) {
  const auto holds = [&](size_t size) { return size == *sizes.begin(); };
  TERRACE_ASSERT(std::all_of(sizes.begin(), sizes.end(), holds), "a gated unit keeps the shape");
}

// ---- Attention

template <typename Float>
void require_attention_rows(const AttentionShape& shape, const AttentionRows<Float>& rows) {
  TERRACE_ASSERT(shape.key_value_heads != 0 && shape.heads % shape.key_value_heads == 0,
                 "the heads are not a multiple of the key-value heads");
  const auto holds = [&](size_t elements, uint64_t count, uint64_t stride, uint64_t width) {
    return stride >= width && elements >= (count - 1) * stride + width;
  };
  const uint64_t keys = shape.batch * shape.key_rows() - shape.spare;
  TERRACE_ASSERT(holds(rows.queries.size(), shape.tokens(), rows.query_stride, shape.query_width()) &&
                     holds(rows.keys.size(), keys, rows.key_value_stride, shape.key_value_width()) &&
                     holds(rows.values.size(), keys, rows.key_value_stride, shape.key_value_width()),
                 "attention's rows have another size");
}

inline void require_attention_results(const AttentionShape& shape, size_t y, size_t log_sums) {
  TERRACE_ASSERT(y == shape.tokens() * shape.query_width() && log_sums == shape.tokens() * shape.heads,
                 "attention's results have another size");
}

inline void require_attention_gradients(const AttentionShape& shape, const AttentionRows<const float>& inputs,
                                        size_t dy, const AttentionRows<float>& gradients) {
  TERRACE_ASSERT(shape.past == 0 && shape.spare == 0, "the gradients of earlier tokens are of another pass");
  require_attention_rows(shape, gradients);
  TERRACE_ASSERT(gradients.query_stride == inputs.query_stride &&
                     gradients.key_value_stride == inputs.key_value_stride &&
                     dy == shape.tokens() * shape.query_width(),
                 "attention's gradients have another size");
}

// ---- The vocabulary

inline void require_embedding_rows(const EmbeddingShape& shape, size_t tokens, size_t y) {
  TERRACE_ASSERT(tokens == shape.tokens && y == shape.tokens * shape.width,
                 "an embedding's rows have another size");
}

inline void require_token_order(const TokenOrder& order, size_t tokens) {
  TERRACE_ASSERT(order.places.size() == tokens && !order.ends.empty(),
                 "an order's places have another number");
}

inline void require_embedding_order(const EmbeddingShape& shape, const TokenOrder& order, size_t dy) {
  require_embedding_rows(shape, order.places.size(), dy);
  TERRACE_ASSERT(order.ends.size() > shape.first_row + shape.rows, "an embedding's rows have another size");
}

inline void require_position_rows(const PositionShape& shape, size_t y) {
  TERRACE_ASSERT(y == shape.batch * shape.sequence * shape.width, "an embedding's rows have another size");
  TERRACE_ASSERT(shape.first + shape.sequence <= shape.context, "more tokens than positions");
}

inline void require_loss_rows(const VocabularyShape& part, size_t x, size_t targets) {
  TERRACE_ASSERT(x == part.tokens * part.width && targets == part.tokens,
                 "the loss's rows have another size");
  TERRACE_ASSERT(part.first_row % VocabularyShape::kLossColumns == 0,
                 "a part of the vocabulary begins inside of a sum");
}

// The columns of logits that exist at once, for all tokens: 16 MiB of fp32, and never fewer than
// kLossColumns.
inline uint64_t logit_columns(const VocabularyShape& part) {
  constexpr uint64_t kLogits = 4 * 1024 * 1024, kLossColumns = VocabularyShape::kLossColumns;
  const uint64_t fitting = kLogits / std::max<uint64_t>(part.tokens, 1) / kLossColumns * kLossColumns;
  return std::min(std::max(fitting, kLossColumns), part.rows);
}

// ---- Operands of products

inline Operand rows_of(const float* data, uint64_t width, bool transposed = false) {
  return {.data = data, .stride = width, .transposed = transposed};
}

inline Operand transposed(Operand operand) {
  operand.transposed = !operand.transposed;
  return operand;
}

// The rows of a table from `first` on; a dry run's null address stays null.
inline ParameterView rows_from(ParameterView table, uint64_t first, uint64_t width) {
  const uint64_t offset = table.data == nullptr ? 0 : first * width * bytes_of(table.type);
  return {table.data + offset, table.type};
}

inline Operand matrix(ParameterView weight, uint64_t width, bool transposed) {
  return {.data = weight.data, .stride = width, .type = weight.type, .transposed = transposed};
}

// The weight of a linear layer, or its transpose.
inline Operand weight_of(const LinearShape& shape, ParameterView weight, bool transposed) {
  return matrix(weight, shape.outputs_first ? shape.inputs : shape.outputs,
                shape.outputs_first != transposed);
}

// The rows [first, ...) of a part of a table.
inline Operand table_rows(ParameterView weight, uint64_t first, uint64_t width, bool transposed) {
  return matrix({weight.data + first * width * bytes_of(weight.type), weight.type}, width, transposed);
}

}  // namespace terrace::compute
