#include <terrace/capi/option_words.h>

#include <array>

#include <terrace.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/offloader.h>

namespace terrace::c {
namespace {

struct Words {
  std::string_view option;
  std::string_view in_c;
};

template <typename Member, typename InC>
constexpr Words row(Member, InC, std::string_view option, std::string_view in_c) {
  return {option, in_c};
}

// The macros make a row of the table. It does not compile if either side has no such member.
#define TERRACE_ROW(owner, member, owner_in_c, member_in_c) \
  row(&owner::member, &owner_in_c::member_in_c, #owner "::" #member, #owner_in_c "." #member_in_c)
#define TERRACE_CALL(owner, member, call) row(&owner::member, &call, #owner "::" #member, #call)

constexpr std::array kWords = {
    TERRACE_ROW(OffloadOptions, parameters, terrace_options, parameters),
    TERRACE_ROW(OffloadOptions, states, terrace_options, states),
    TERRACE_ROW(OffloadOptions, durable, terrace_options, durable),
    TERRACE_ROW(OffloadOptions, tier_name, terrace_options, tier_name),
    TERRACE_ROW(OffloadOptions, tier_start, terrace_options, resume),
    TERRACE_ROW(OffloadOptions, discard_commits, terrace_options, discard_commits),
    TERRACE_ROW(OffloadOptions, record_layout, terrace_options, masters),
    TERRACE_ROW(OffloadOptions, device_budget_bytes, terrace_simulated_options, budget_bytes),
    TERRACE_ROW(OffloadOptions, host_budget_bytes, terrace_options, host_bytes),
    TERRACE_ROW(OffloadOptions, gradients, terrace_options, gradients),
    TERRACE_ROW(OffloadOptions, unused_gradients, terrace_options, unused_gradients),
    TERRACE_ROW(OffloadOptions, lock_host_memory, terrace_options, no_host_lock),
    TERRACE_ROW(OffloadOptions, verify_checksums, terrace_options, no_checksums),
    TERRACE_ROW(TensorSpec, backward_uses, terrace_tensor, backward_uses),
    TERRACE_ROW(TensorSpec, group, terrace_tensor, group),
    TERRACE_ROW(TensorSpec, home, terrace_tensor, address),
    TERRACE_ROW(TensorSpec, memory, terrace_tensor, address),
    TERRACE_ROW(UpdateSettings, groups, terrace_update_settings, groups),
    TERRACE_ROW(TierPath, path, terrace_options, nvme_paths),
    TERRACE_ROW(FlatSpace, chunk_elements, terrace_options, chunk_elements),
    TERRACE_CALL(Offloader, set_update_mode, terrace_set_update_when),
};

#undef TERRACE_ROW
#undef TERRACE_CALL

}  // namespace

std::string in_words_of_c(std::string_view text) {
  std::string words(text);
  for (const Words& row : kWords) {
    for (size_t at = words.find(row.option); at != std::string::npos;
         at = words.find(row.option, at + row.in_c.size()))
      words.replace(at, row.option.size(), row.in_c);
  }
  return words;
}

}  // namespace terrace::c
