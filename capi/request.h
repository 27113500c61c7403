// Request: what a program asks for when it plans or creates a store, checked and in the words of the
// Offloader.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace.h>
#include <terrace/capi/names.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/offload/plan/update_mode.h>
#include <terrace/offload/plan/use_trace.h>
#include <terrace/runtime/checkpoint/state_set.h>

struct terrace_ranks;

namespace terrace {
class NcclExchange;
}

namespace terrace::c {

struct Request {
  std::vector<TensorSpec> tensors;
  std::vector<bool> are_words;             // by tensor: of TERRACE_WORD
  const terrace_device* device = nullptr;  // as given, or one without memory
  OffloadOptions options;
  std::vector<TensorUse> trace;
  UpdateMode update_mode = UpdateMode::after_backward;
  uint32_t threads = 0;
  uint64_t chunk_elements = 0;  // 0: to be chosen
  terrace_log_fn log = nullptr;
  void* log_context = nullptr;
  terrace_ranks* ranks = nullptr;  // that the store is divided over; null: it is of one process
  // Of all parts of a model, where the store has one part; null: it has the model.
  terrace_ranks* model_ranks = nullptr;
  std::string tier_name;  // as given: that of the options is this rank's
  // By which the store's ranks gather, and exchange gradients on GPUs; null: through host memory.
  std::shared_ptr<NcclExchange> nccl;
  // settle_start() says these three.
  std::optional<StateSet> set;   // what is in another place (TierPlace), to go on from
  std::vector<StateSet> passed;  // what is left in other places, on the first rank
  uint64_t commit_number = 1;    // CommitText::number of the next commit
};

// terrace_type, of which words are no numbers: what is below moves them as fp32, whose conversion to fp32 is
// a copy of the bits.
inline constexpr uint32_t kTypes = 4;
constexpr DataType data_type_of(uint32_t type) {
  return type == TERRACE_WORD ? DataType::fp32 : static_cast<DataType>(type);
}

// The arguments of terrace_plan and terrace_create, which come together everywhere.
struct RequestArguments {
  const terrace_device* device;
  const terrace_tensor* tensors;
  uint32_t tensor_count;
  const terrace_options* options;
  const terrace_use* uses;
  uint32_t use_count;
};
// Throws Error(misuse) and Error(config); looks at nothing but the arguments.
Request read_request(const RequestArguments& arguments, const Subject& action);

// Where a store lies and what it begins with, of its options alone. Throws as read_request() does.
Request read_place(const terrace_options* options, const Subject& action);

// The uses that a program announces. The tensors of the request have been read.
std::vector<TensorUse> read_trace(const RequestArguments& arguments, const Request& request,
                                  const Subject& action);

// Chooses the size of chunks where that is left open: the size of the commit to resume, or one for the
// budgets. Throws ShortageError where none fits.
void settle_chunk_elements(Request& request);

terrace_plan_result result_of(const MemoryPlan& plan, const SpaceLayout& space);

}  // namespace terrace::c
