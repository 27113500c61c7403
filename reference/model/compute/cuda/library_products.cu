// Products of matrices by cuBLASLt. The library's matrices are column-major, so that what is stored in rows
// here is the transpose there, and target^T = b^T a^T is what it is asked for.
#include "library_products.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/data_type.h>
#include <terrace/memory/space/flat_space.h>

namespace terrace {
namespace {

using namespace cublas_lt;

int type_code(DataType type) {
  if (type == DataType::bf16) return kTypeBf16;
  return type == DataType::fp16 ? kTypeFp16 : kTypeFp32;
}

// Lines of an operand as they are stored, and elements of a line.
struct Stored {
  uint64_t lines, width;
};
Stored stored_a(const ProductShape& shape, bool transposed) {
  return transposed ? Stored{shape.depth, shape.rows} : Stored{shape.rows, shape.depth};
}
Stored stored_b(const ProductShape& shape, bool transposed) {
  return transposed ? Stored{shape.columns, shape.depth} : Stored{shape.depth, shape.columns};
}

// The operand from this element of its stored form on.
Operand from_element(Operand operand, uint64_t element) {
  operand.data = static_cast<const std::byte*>(operand.data) + element * bytes_of(operand.type);
  return operand;
}

// Of an address, as far as it does not depend on where memory happens to lie.
uint32_t alignment_of(const void* address) {
  static_assert(StackArena::kAlignment == 64 && kTensorAlignment * sizeof(Bf16) % 64 == 0);
  return uint32_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(address) | StackArena::kAlignment);
}

std::string text_of(const ProductShape& shape, DataType a, DataType b, DataType target) {
  const auto number = [](uint64_t value) { return std::to_string(value); };
  return "a product of " + number(shape.rows) + " x " + number(shape.depth) + " (" + std::string(name_of(a)) +
         ") and " + number(shape.depth) + " x " + number(shape.columns) + " (" + std::string(name_of(b)) +
         ") in " + std::string(name_of(target));
}

// So many lines that they fit into `elements`, in groups that keep their addresses aligned; 0: not one.
uint64_t lines_that_fit(uint64_t elements, uint64_t stride, uint64_t width) {
  constexpr uint64_t kGroup = 64;
  if (elements < width) return 0;
  const uint64_t lines = (elements - width) / stride + 1;
  return lines > kGroup ? lines / kGroup * kGroup : lines;
}

}  // namespace

ProductMemory take_library_memory(const ProductShape& shape, const ProductTypes& types,
                                  uint64_t workspace_bytes, StackArena& arena) {
  constexpr uint64_t kWorkspaceAlignment = 256;
  constexpr uint64_t kMostScratch = 4 * 1024 * 1024;
  const std::span<std::byte> raw =
      arena.allocate<std::byte>(workspace_bytes + kWorkspaceAlignment - StackArena::kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(raw.data());
  ProductMemory memory;
  if (!arena.is_dry_run())
    memory.workspace = raw.subspan(round_up(address, kWorkspaceAlignment) - address, workspace_bytes);
  // What goes by scratch memory, and a line of it, whichever way it is stored.
  uint64_t elements = 0, line = 0;
  if (types.a != types.b) {
    const uint64_t lines = types.a != DataType::fp32 ? shape.rows : shape.columns;
    elements = lines * shape.depth;
    line = std::max(lines, shape.depth);
  } else if (types.target != DataType::fp32 && types.target != types.a) {
    elements = shape.rows * shape.columns;
    line = shape.columns;
  }
  memory.scratch = arena.allocate<float>(std::min(elements, std::max(kMostScratch, line)));
  return memory;
}

// Its objects are the library's, which takes null where there is none.
struct LibraryProducts::Answer {
  Answer(const CublasLt& library_, std::string subject_) : library(library_), subject(std::move(subject_)) {}
  ~Answer() {
    if (description != nullptr) library.description_destroy(description);
    for (Layout* const layout : {a, b, target}) {
      if (layout != nullptr) library.layout_destroy(layout);
    }
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  const CublasLt& library;
  const std::string subject;
  Description* description = nullptr;
  Layout *a = nullptr, *b = nullptr, *target = nullptr;
  Algorithm algorithm = {};
  bool is_possible = false;
};

LibraryProducts::LibraryProducts(const CublasLt& library, TiledProducts& plain, uint64_t workspace_bytes,
                                 Log& log)
    : library_(library), plain_(plain), workspace_bytes_(workspace_bytes), log_(log) {
  if (const Status status = library.create(&handle_); status != kSuccess) {
    throw Error(ErrorKind::device,
                {"cannot start", "cuBLASLt", library.reason(status, "cublasLtCreate"),
                 "see whether its version fits the driver's (terrace report), or set terrace.gpu_products to "
                 "own"});
  }
}

LibraryProducts::~LibraryProducts() {
  answers_.clear();
  if (const Status status = library_.destroy(handle_); status != kSuccess)
    log_.warning(library_.reason(status, "cublasLtDestroy"));
}

void LibraryProducts::say(const ProductShape& shape, DataType a, DataType b, DataType target,
                          const char* reason) {
  if (said_.insert({shape.rows, shape.columns, shape.depth, a, b, target, reason}).second)
    log_.info(text_of(shape, a, b, target) + " goes without cuBLASLt, which is slower: " + reason);
}

void LibraryProducts::describe(const Question& question, const Target& target, Answer& answer) const {
  const auto set = [&](int attribute, const auto& value) {
    library_.check(library_.description_set(answer.description, attribute, &value, sizeof(value)),
                   "cublasLtMatmulDescSetAttribute", answer.subject);
  };
  library_.check(library_.description_create(&answer.description, kComputeFp32, kTypeFp32),
                 "cublasLtMatmulDescCreate", answer.subject);
  // The library's first operand is b.
  set(kTransposeA, question.b_transposed ? kTransposed : kAsStored);
  set(kTransposeB, question.a_transposed ? kTransposed : kAsStored);
  if (question.bias_alignment > 0) {
    set(kEpilogue, kEpilogueBias);
    set(kBiasPointer, target.bias);  // the choice looks at how it is aligned
  }
  const auto lay_out = [&](Layout*& layout, DataType type, const Stored& stored, uint64_t stride) {
    library_.check(library_.layout_create(&layout, type_code(type), stored.width, stored.lines,
                                          static_cast<int64_t>(stride)),
                   "cublasLtMatrixLayoutCreate", answer.subject);
  };
  const ProductShape shape{question.rows, question.columns, question.depth};
  lay_out(answer.a, question.a_type, stored_a(shape, question.a_transposed), question.a_stride);
  lay_out(answer.b, question.b_type, stored_b(shape, question.b_transposed), question.b_stride);
  lay_out(answer.target, question.type, {question.rows, question.columns}, question.stride);
}

void LibraryProducts::choose(const Question& question, Answer& answer) {
  Preference* preference = nullptr;
  library_.check(library_.preference_create(&preference), "cublasLtMatmulPreferenceCreate", answer.subject);
  const std::unique_ptr<Preference, Status (*)(Preference*)> owner(preference, library_.preference_destroy);
  const auto prefer = [&](int attribute, const auto& value) {
    library_.check(library_.preference_set(preference, attribute, &value, sizeof(value)),
                   "cublasLtMatmulPreferenceSetAttribute", answer.subject);
  };
  prefer(kMaxWorkspaceBytes, workspace_bytes_);
  prefer(kReductionSchemeMask, kReduceInFp32);
  prefer(kMinAlignmentA, question.b_alignment);
  prefer(kMinAlignmentB, question.a_alignment);
  prefer(kMinAlignmentC, question.alignment);
  prefer(kMinAlignmentD, question.alignment);
  Heuristic found = {};
  int count = 0;
  const Status status = library_.find(handle_, answer.description, answer.b, answer.a, answer.target,
                                      answer.target, preference, 1, &found, &count);
  if (status != kNotSupported) library_.check(status, "cublasLtMatmulAlgoGetHeuristic", answer.subject);
  answer.is_possible = status == kSuccess && count > 0 && found.status == kSuccess;
  answer.algorithm = found.algorithm;
  if (!answer.is_possible)
    say({question.rows, question.columns, question.depth}, question.a_type, question.b_type, question.type,
        "it has no algorithm for it");
}

LibraryProducts::Answer& LibraryProducts::answer_to(const Question& question, const Target& target) {
  if (const auto known = answers_.find(question); known != answers_.end()) return *known->second;
  auto answer = std::make_unique<Answer>(library_, text_of({question.rows, question.columns, question.depth},
                                                           question.a_type, question.b_type, question.type));
  describe(question, target, *answer);
  choose(question, *answer);
  return *answers_.emplace(question, std::move(answer)).first->second;
}

bool LibraryProducts::run(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                          const Operand& b, const Target& target, std::span<std::byte> workspace) {
  TERRACE_ASSERT(workspace.size() == workspace_bytes_, "a product has another workspace than was said");
  Answer& answer = answer_to({.rows = shape.rows,
                              .columns = shape.columns,
                              .depth = shape.depth,
                              .a_stride = a.stride,
                              .b_stride = b.stride,
                              .stride = target.stride,
                              .a_alignment = alignment_of(a.data),
                              .b_alignment = alignment_of(b.data),
                              .alignment = alignment_of(target.data),
                              .bias_alignment = target.bias != nullptr ? alignment_of(target.bias) : 0,
                              .a_type = a.type,
                              .b_type = b.type,
                              .type = target.type,
                              .a_transposed = a.transposed,
                              .b_transposed = b.transposed},
                             target);
  if (!answer.is_possible) return false;
  if (target.bias != nullptr) {
    library_.check(
        library_.description_set(answer.description, kBiasPointer, &target.bias, sizeof(target.bias)),
        "cublasLtMatmulDescSetAttribute", answer.subject);
  }
  const float alpha = 1.0f, beta = target.accumulate ? 1.0f : 0.0f;
  library_.check(library_.multiply(handle_, answer.description, &alpha, b.data, answer.b, a.data, answer.a,
                                   &beta, target.data, answer.target, target.data, answer.target,
                                   &answer.algorithm, workspace.data(), workspace.size(), where.stream),
                 "cublasLtMatmul", answer.subject);
  return true;
}

void LibraryProducts::multiply(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                               const Operand& b, const ProductTarget& target, const ProductMemory& memory) {
  if (shape.rows == 0 || shape.columns == 0 || shape.depth == 0)
    return plain_.multiply(where, shape, a, b, target);
  if (a.type != b.type) return multiply_widened(where, shape, a, b, target, memory);
  const float* const bias = target.accumulate ? nullptr : target.bias;
  if (!run(where, shape, a, b, {target.data, target.stride, DataType::fp32, target.accumulate, bias},
           memory.workspace))
    plain_.multiply(where, shape, a, b, target);
}

void LibraryProducts::multiply_widened(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                                       const Operand& b, const ProductTarget& target,
                                       const ProductMemory& memory) {
  const bool widens_a = a.type != DataType::fp32;
  const Operand& narrow = widens_a ? a : b;
  const Stored stored = widens_a ? stored_a(shape, a.transposed) : stored_b(shape, b.transposed);
  const uint64_t most = lines_that_fit(memory.scratch.size(), narrow.stride, stored.width);
  if ((widens_a && b.type != DataType::fp32) || most == 0) {
    say(shape, a.type, b.type, DataType::fp32,
        most == 0 ? "its scratch memory has no room for a line" : "the operands are of two types of 16 bits");
    return plain_.multiply(where, shape, a, b, target);
  }
  const CudaOps ops(plain_, where);
  for (uint64_t first = 0; first < stored.lines; first += most) {
    const uint64_t lines = std::min(most, stored.lines - first);
    const Operand piece = from_element(narrow, first * narrow.stride);
    const std::span<float> wide = memory.scratch.first((lines - 1) * narrow.stride + stored.width);
    ops.convert_to_float({static_cast<const std::byte*>(piece.data), piece.type}, wide);
    const Operand widened{wide.data(), narrow.stride, DataType::fp32, narrow.transposed};
    ProductShape part = shape;
    Operand part_a = widens_a ? widened : a, part_b = widens_a ? b : widened;
    ProductTarget part_target = target;
    if (widens_a && !a.transposed) {  // lines are rows
      part.rows = lines;
      part_target.data += first * target.stride;
    } else if (!widens_a && b.transposed) {  // lines are columns
      part.columns = lines;
      part_target.data += first;
      if (target.bias != nullptr) part_target.bias += first;
    } else {  // lines are depths, which add up
      part.depth = lines;
      if (widens_a) {
        part_b = from_element(b, b.transposed ? first : first * b.stride);
      } else {
        part_a = from_element(a, a.transposed ? first * a.stride : first);
      }
      part_target.accumulate = target.accumulate || first > 0;
    }
    multiply(where, part, part_a, part_b, part_target, memory);
  }
}

void LibraryProducts::multiply_into(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                                    const Operand& b, const GradientTarget& target,
                                    const ProductMemory& memory) {
  if (target.view.data == nullptr) return;
  if (shape.rows == 0 || shape.columns == 0 || shape.depth == 0)
    return plain_.multiply_into(where, shape, a, b, target);
  if (a.type != b.type) {
    say(shape, a.type, b.type, target.type, "the operands are of two types");
    return plain_.multiply_into(where, shape, a, b, target);
  }
  if (target.type != DataType::fp32 && target.type != a.type)
    return multiply_and_land(where, shape, a, b, target, memory);
  if (!run(where, shape, a, b,
           {target.view.data, shape.columns, target.type, target.view.accumulate, nullptr}, memory.workspace))
    plain_.multiply_into(where, shape, a, b, target);
}

void LibraryProducts::multiply_and_land(const CudaLaunch& where, const ProductShape& shape, const Operand& a,
                                        const Operand& b, const GradientTarget& target,
                                        const ProductMemory& memory) {
  const uint64_t most = lines_that_fit(memory.scratch.size(), shape.columns, shape.columns);
  if (most == 0) {
    say(shape, a.type, b.type, target.type, "its scratch memory has no room for a row");
    return plain_.multiply_into(where, shape, a, b, target);
  }
  const CudaOps ops(plain_, where);
  for (uint64_t first = 0; first < shape.rows; first += most) {
    ProductShape part = shape;
    part.rows = std::min(most, shape.rows - first);
    const std::span<float> product = memory.scratch.first(part.rows * shape.columns);
    multiply(where, part, from_element(a, a.transposed ? first : first * a.stride), b,
             {.data = product.data(), .stride = shape.columns}, memory);
    GradientTarget landing = target;
    landing.view.data += first * shape.columns * bytes_of(target.type);
    ops.land(product, landing);
  }
}

}  // namespace terrace
