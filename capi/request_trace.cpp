// The part of a Request that says which uses a step has.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/request.h>
#include <terrace/capi/structs.h>

namespace terrace::c {
namespace {

std::vector<TensorId> tensors_of(const terrace_use& use, const std::string& subject, size_t tensor_count,
                                 const Subject& action) {
  require_list(use.tensors, use.tensor_count, action, subject + ": tensors");
  std::vector<TensorId> tensors;
  for (uint32_t i = 0; i < use.tensor_count; ++i) {
    if (use.tensors[i] >= tensor_count)
      misuse(action, subject,
             fmt::format("there is no tensor {}: {} are described", use.tensors[i], tensor_count),
             "count tensors from 0 in the order of their description");
    tensors.push_back(TensorId{use.tensors[i]});
  }
  std::vector<TensorId> sorted = tensors;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end())
    misuse(action, subject, "it names a tensor twice", "name each tensor once");
  return tensors;
}

// Throws Error(misuse) where a use of a step cannot be what it says.
void require_use(const terrace_use& use, const std::string& subject, uint64_t behind_it,
                 uint32_t micro_batches, const Subject& action) {
  if (use.kind == TERRACE_INFERENCE || use.kind == TERRACE_UNIT)
    misuse(action, subject, "it is neither forward nor backward",
           "announce the uses of one training step, or units and nothing else");
  if (use.micro_batch >= micro_batches)
    misuse(action, subject,
           fmt::format("its micro-batch is {}, and a step has {}", use.micro_batch, micro_batches),
           "count micro-batches from 0");
  if (use.encloses > behind_it)
    misuse(action, subject,
           fmt::format("it encloses {} uses, and {} come behind it", use.encloses, behind_it),
           "enclose uses that are in the list");
}

}  // namespace

std::vector<TensorUse> read_trace(const RequestArguments& arguments, const Request& request,
                                  const Subject& action) {
  const auto uses = taken_list(arguments.uses, arguments.use_count, action, "uses");
  const bool are_units = !uses.empty() && uses.front().kind == TERRACE_UNIT;
  const uint32_t micro_batches = rounds_of(request.options).count();  // of this rank
  require_at_most(uint64_t{uses.size()} * (are_units ? 2 * uint64_t{micro_batches} : 1), kMostUses, action,
                  "uses");
  std::vector<TensorUse> trace;
  std::vector<TensorUnit> units;
  for (size_t u = 0; u < uses.size(); ++u) {
    const terrace_use& use = uses[u];
    const std::string subject = fmt::format("use {}", u);
    require_enum(use.kind, 4, action, subject + ": kind");
    require_zero(use.reserved, action, subject + ": reserved");
    require_pointer(use.key, action, subject + ": key");
    std::vector<TensorId> tensors = tensors_of(use, subject, request.tensors.size(), action);
    if (are_units && use.kind == TERRACE_UNIT) {
      units.push_back({use.key, std::move(tensors)});
      continue;
    }
    if (are_units)
      misuse(action, subject, "it is no unit, and others are", "announce units and nothing else");
    require_use(use, subject, uses.size() - 1 - u, micro_batches, action);
    trace.push_back(
        {use.key, static_cast<UseKind>(use.kind), std::move(tensors), use.micro_batch, use.encloses});
  }
  if (!are_units) return trace;
  return trace_of_units(units, micro_batches, request.options.layer_major);
}

}  // namespace terrace::c
