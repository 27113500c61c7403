// terrace_plan, and the size of chunks.
#include <terrace/capi/commit_text.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/request.h>
#include <terrace/capi/structs.h>
#include <terrace/memory/space/space_layout.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/options/tier_name.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/runtime/config/tier_paths.h>

namespace terrace::c {
namespace {

// The size of chunks of the commit that is to be resumed; 0 where there is none to see, which the Offloader
// says in its own words.
uint64_t chunk_elements_of_commit(const Request& request) {
  OffloadOptions options = request.options;
  FoundTier found = look_at_tier(tier_folders(options));
  if (!found.has_manifests) {
    options.tier_name = tier_name_of({options.rank, options.ranks, true}, request.tier_name);
    found = look_at_tier(tier_folders(options));
  }
  return read_commit_text(found.newest.info).chunk_elements;
}

}  // namespace

void settle_chunk_elements(Request& request) {
  if (request.chunk_elements == 0 && request.options.tier_start == TierStart::resume)
    request.chunk_elements = chunk_elements_of_commit(request);
  if (request.chunk_elements == 0)
    request.chunk_elements = choose_chunk_elements(request.tensors, request.trace, request.options, 0);
  require_bookkeeping(SpaceLayout(request.tensors, request.chunk_elements), request.options);
}

terrace_plan_result result_of(const MemoryPlan& plan, const SpaceLayout& space) {
  terrace_plan_result result{};
  result.chunk_elements = space.chunk_elements();
  result.parameter_count = space.parameter_count();
  result.trainable_count = space.trainable_count();
  result.device_least_bytes = plan.device_minimum_bytes;
  result.host_least_bytes = plan.host_minimum_bytes;
  result.device_bytes = plan.device_bytes;
  result.host_bytes = plan.host_bytes;
  result.device_useful_bytes = useful_device_bytes(plan);
  result.file_bytes = plan.file_bytes();
  result.chunk_count = space.chunk_count();
  result.keeps_commits = plan.keeps_commits ? 1 : 0;
  result.fits = 1;
  return result;
}

namespace {

terrace_plan_result shortage_result(const ShortageError& shortage, const Request& request) {
  terrace_plan_result result{};
  const SpaceLayout space(request.tensors,
                          request.chunk_elements > 0 ? request.chunk_elements : kTileElements);
  result.chunk_elements = request.chunk_elements;
  result.parameter_count = space.parameter_count();
  result.trainable_count = space.trainable_count();
  for (const TierShortage& tier : shortage.tiers()) {
    if (tier.tier == "device") result.device_least_bytes = tier.needed_bytes;
    if (tier.tier == "host") result.host_least_bytes = tier.needed_bytes;
  }
  return result;
}

}  // namespace
}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

terrace_error* terrace_plan(const terrace_device* device, const terrace_tensor* tensors,
                            uint32_t tensor_count, const terrace_options* options, const terrace_use* uses,
                            uint32_t use_count, terrace_plan_result* result) {
  return c::answer([&] {
    constexpr std::string_view kAction = "cannot plan a store";
    c::require_result(result, kAction, "result");
    c::Request request = c::read_request({device, tensors, tensor_count, options, uses, use_count}, kAction);
    try {
      c::settle_chunk_elements(request);
      const FlatSpace space(request.tensors, request.chunk_elements);
      c::give(result, c::result_of(plan_memory(space, request.trace, request.options), space));
    } catch (const ShortageError& shortage) {
      c::give(result, c::shortage_result(shortage, request));
      throw;
    }
  });
}
