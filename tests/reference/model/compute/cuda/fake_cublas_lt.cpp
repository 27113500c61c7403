#include "fake_cublas_lt.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/data_type.h>

namespace terrace {

// The library's objects, complete here.
struct cublas_lt::Description {
  std::map<int, std::vector<std::byte>> attributes;

  template <typename T>
  T at(int attribute, T fallback) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return fallback;
    TERRACE_ASSERT(found->second.size() == sizeof(T), "an attribute has another size");
    std::memcpy(&fallback, found->second.data(), sizeof(T));
    return fallback;
  }
};
struct cublas_lt::Layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;
};
struct cublas_lt::Preference : cublas_lt::Description {};

namespace testing {

using namespace cublas_lt;

struct FakeCublasLt::State {
  // Whether the call is to go on; counts it.
  std::optional<Status> begin(const char* symbol) {
    ++calls[symbol];
    const auto failure = failures.find(symbol);
    if (failure == failures.end()) return std::nullopt;
    const Status status = failure->second;
    failures.erase(failure);
    return status;
  }

  std::map<std::string, uint64_t> calls;
  std::map<std::string, Status> failures;
  std::map<std::string, int64_t> alive;
  int refused_type = -1;
  Streams streams;
  // What a found algorithm was found for, by its number.
  struct Found {
    Description description;
    Layout a, b, d;
    uint32_t a_alignment, b_alignment, d_alignment;
    uint64_t workspace_bytes;
  };
  std::vector<Found> found;
};

namespace {

FakeCublasLt::State* state = nullptr;

#define BEGIN(symbol) \
  if (const auto failed = state->begin(#symbol)) return *failed

template <typename T, typename... Values>
Status make(const char* what, T** made, Values... values) {
  ++state->alive[what];
  *made = new T{values...};
  return kSuccess;
}
template <typename T>
Status destroy(const char* what, T* object) {
  --state->alive[what];
  delete object;
  return kSuccess;
}

Status set(Description& attributes, int attribute, const void* value, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(value);
  attributes.attributes[attribute] = {first, first + bytes};
  return kSuccess;
}

bool is_stored_well(const Layout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.stride >= static_cast<int64_t>(layout.rows);
}

// As the table of supported types has it for sums in fp32.
bool are_supported(const Layout& a, const Layout& b, const Layout& d) {
  return a.type == b.type && (d.type == kTypeFp32 || d.type == a.type) && a.type != state->refused_type;
}

bool fit(const Description& description, const Layout& a, const Layout& b, const Layout& d) {
  const bool turns_a = description.at<int32_t>(kTransposeA, kAsStored) == kTransposed;
  const bool turns_b = description.at<int32_t>(kTransposeB, kAsStored) == kTransposed;
  return (turns_a ? a.columns : a.rows) == d.rows && (turns_b ? b.rows : b.columns) == d.columns &&
         (turns_a ? a.rows : a.columns) == (turns_b ? b.columns : b.rows);
}

Status find(Handle*, Description* description, Layout* a, Layout* b, Layout* c, Layout* d,
            Preference* preference, int wanted, Heuristic* found, int* found_count) {
  BEGIN(cublasLtMatmulAlgoGetHeuristic);
  *found_count = 0;
  if (wanted != 1 || c != d || !is_stored_well(*a) || !is_stored_well(*b) || !is_stored_well(*d) ||
      !fit(*description, *a, *b, *d))
    return 7;  // CUBLAS_STATUS_INVALID_VALUE
  TERRACE_ASSERT(preference->at<uint32_t>(kReductionSchemeMask, 7) == kReduceInFp32,
                 "a split depth may be added in an order of chance or in a narrow type");
  if (!are_supported(*a, *b, *d)) return kNotSupported;
  const auto alignment = [&](int of) { return preference->at<uint32_t>(of, 256); };
  TERRACE_ASSERT(alignment(kMinAlignmentC) == alignment(kMinAlignmentD), "c is d");
  *found = {};
  found->algorithm.data[0] = state->found.size();
  state->found.push_back({*description, *a, *b, *d, alignment(kMinAlignmentA), alignment(kMinAlignmentB),
                          alignment(kMinAlignmentD), preference->at<uint64_t>(kMaxWorkspaceBytes, 0)});
  *found_count = 1;
  return kSuccess;
}

float element(const void* matrix, const Layout& layout, uint64_t row, uint64_t column) {
  const uint64_t index = column * static_cast<uint64_t>(layout.stride) + row;
  if (layout.type == kTypeBf16) return to_float(static_cast<const Bf16*>(matrix)[index]);
  if (layout.type == kTypeFp16) return to_float(static_cast<const Fp16*>(matrix)[index]);
  return static_cast<const float*>(matrix)[index];
}

void set_element(void* matrix, const Layout& layout, uint64_t row, uint64_t column, float value) {
  const uint64_t index = column * static_cast<uint64_t>(layout.stride) + row;
  if (layout.type == kTypeBf16) {
    static_cast<Bf16*>(matrix)[index] = to_bf16(value);
  } else if (layout.type == kTypeFp16) {
    static_cast<Fp16*>(matrix)[index] = to_fp16(value);
  } else {
    static_cast<float*>(matrix)[index] = value;
  }
}

bool same(const Layout& one, const Layout& other) {
  return one.type == other.type && one.rows == other.rows && one.columns == other.columns &&
         one.stride == other.stride;
}

bool is_aligned(const void* address, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

// What a call asks for, of which nothing is looked at again before it is made.
struct Product {
  Layout a_layout, b_layout, d_layout;
  bool turns_a, turns_b;
  const void *a, *b;
  void* d;
  float alpha, beta;
  const float* bias;  // null: none
  void* workspace;
  size_t workspace_bytes;

  void make() const {
    std::memset(workspace, 0xff, workspace_bytes);
    const uint64_t depth = turns_a ? a_layout.rows : a_layout.columns;
    for (uint64_t j = 0; j < d_layout.columns; ++j) {
      for (uint64_t i = 0; i < d_layout.rows; ++i) {
        float sum = 0;
        for (uint64_t k = 0; k < depth; ++k) {
          const float left = turns_a ? element(a, a_layout, k, i) : element(a, a_layout, i, k);
          const float right = turns_b ? element(b, b_layout, j, k) : element(b, b_layout, k, j);
          sum = std::fma(left, right, sum);
        }
        float value = alpha * sum;
        if (beta != 0) value += beta * element(d, d_layout, i, j);
        set_element(d, d_layout, i, j, bias != nullptr ? value + bias[i] : value);
      }
    }
  }
};

Status multiply(Handle*, Description* description, const void* alpha, const void* a, Layout* a_layout,
                const void* b, Layout* b_layout, const void* beta, const void* c, Layout* c_layout, void* d,
                Layout* d_layout, const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
                CUstream_st* stream) {
  BEGIN(cublasLtMatmul);
  TERRACE_ASSERT(algorithm->data[0] < state->found.size(), "an algorithm that was found");
  const FakeCublasLt::State::Found& found = state->found[algorithm->data[0]];
  const bool turns_a = description->at<int32_t>(kTransposeA, kAsStored) == kTransposed;
  const bool turns_b = description->at<int32_t>(kTransposeB, kAsStored) == kTransposed;
  if (!same(*a_layout, found.a) || !same(*b_layout, found.b) || !same(*d_layout, found.d) ||
      turns_a != (found.description.at<int32_t>(kTransposeA, 0) == kTransposed) || c != d ||
      c_layout != d_layout || !is_aligned(a, found.a_alignment) || !is_aligned(b, found.b_alignment) ||
      !is_aligned(d, found.d_alignment) || (workspace == nullptr) != (found.workspace_bytes == 0) ||
      !is_aligned(workspace, 256) || workspace_bytes != found.workspace_bytes)
    return 7;
  const bool biased = description->at<uint32_t>(kEpilogue, 1) == kEpilogueBias;
  const Product product = {*a_layout,
                           *b_layout,
                           *d_layout,
                           turns_a,
                           turns_b,
                           a,
                           b,
                           d,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta),
                           biased ? description->at<const float*>(kBiasPointer, nullptr) : nullptr,
                           workspace,
                           workspace_bytes};
  if (state->streams) {
    state->streams(stream, [product] { product.make(); });
  } else {
    product.make();
  }
  return kSuccess;
}

}  // namespace

FakeCublasLt::FakeCublasLt() : state_(std::make_unique<State>()) {
  TERRACE_ASSERT(state == nullptr, "one fake library at a time");
  state = state_.get();
}

FakeCublasLt::~FakeCublasLt() {
  state = nullptr;
}

std::unique_ptr<const CublasLt> FakeCublasLt::table() {
  auto calls = std::make_unique<CublasLt>();
  calls->version = []() -> size_t { return 120000; };
  calls->status_text = [](Status status) { return status == kNotSupported ? "not supported" : "a failure"; };
  calls->create = [](Handle** handle) -> Status {
    BEGIN(cublasLtCreate);
    ++state->alive["handles"];
    *handle = reinterpret_cast<Handle*>(state);
    return kSuccess;
  };
  calls->destroy = [](Handle*) -> Status {
    BEGIN(cublasLtDestroy);
    --state->alive["handles"];
    return kSuccess;
  };
  calls->description_create = [](Description** made, int compute_type, int scale_type) -> Status {
    BEGIN(cublasLtMatmulDescCreate);
    TERRACE_ASSERT(compute_type == kComputeFp32 && scale_type == kTypeFp32, "sums are in fp32");
    return make("descriptions", made);
  };
  calls->description_destroy = [](Description* object) { return destroy("descriptions", object); };
  calls->description_set = [](Description* object, int attribute, const void* value, size_t bytes) -> Status {
    BEGIN(cublasLtMatmulDescSetAttribute);
    return set(*object, attribute, value, bytes);
  };
  calls->layout_create = [](Layout** made, int type, uint64_t rows, uint64_t columns,
                            int64_t stride) -> Status {
    BEGIN(cublasLtMatrixLayoutCreate);
    return make("layouts", made, type, rows, columns, stride);
  };
  calls->layout_destroy = [](Layout* object) { return destroy("layouts", object); };
  calls->preference_create = [](Preference** made) -> Status {
    BEGIN(cublasLtMatmulPreferenceCreate);
    return make("preferences", made);
  };
  calls->preference_destroy = [](Preference* object) { return destroy("preferences", object); };
  calls->preference_set = [](Preference* object, int attribute, const void* value, size_t bytes) -> Status {
    BEGIN(cublasLtMatmulPreferenceSetAttribute);
    return set(*object, attribute, value, bytes);
  };
  calls->find = find;
  calls->multiply = multiply;
  return calls;
}

void FakeCublasLt::fail(const std::string& symbol, Status status) {
  state_->failures[symbol] = status;
}

void FakeCublasLt::set_streams(Streams streams) {
  state_->streams = std::move(streams);
}

void FakeCublasLt::refuse_type(int type) {
  state_->refused_type = type;
}

uint64_t FakeCublasLt::calls(const std::string& symbol) const {
  const auto found = state_->calls.find(symbol);
  return found == state_->calls.end() ? 0 : found->second;
}

std::string FakeCublasLt::leftovers() const {
  std::string text;
  for (const auto& [what, count] : state_->alive) {
    if (count != 0) text += what + ": " + std::to_string(count) + " ";
  }
  return text;
}

}  // namespace testing
}  // namespace terrace
