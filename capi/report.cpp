// Counters by number, and the version.
#include <algorithm>
#include <array>
#include <string>

#include <terrace/capi/errors.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>
#include <terrace/offload/watch/counter_table.h>

namespace terrace::c {
namespace {

constexpr bool is_public(const CounterEntry& entry) {
  return !entry.key.empty();
}
constexpr size_t kOffloadCounters = std::count_if(kCounters.begin(), kCounters.end(), is_public);
constexpr size_t kAllCounters = kOffloadCounters + kTimeCauseCount;

constexpr auto kPublic = counter_table::chosen<kOffloadCounters>(is_public);

static_assert(static_cast<uint32_t>(CounterUnit::bytes) == TERRACE_BYTES &&
              static_cast<uint32_t>(CounterUnit::count) == TERRACE_COUNT &&
              static_cast<uint32_t>(CounterUnit::ns) == TERRACE_NANOSECONDS);

void give_values(const OffloadCounters& counters, uint64_t* values, uint32_t count, const Subject& action) {
  require_list(values, count, action, "values");
  if (count > kAllCounters)
    misuse(action, "count",
           "it is " + std::to_string(count) + ", and there are " + std::to_string(kAllCounters) + " counters",
           "ask for terrace_counter_count() at most");
  for (uint32_t c = 0; c < count; ++c)
    values[c] = c < kOffloadCounters ? counters.*kPublic[c].value : counters.time.ns[c - kOffloadCounters];
}

}  // namespace
}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

const char* terrace_version(void) {
  return TERRACE_C_VERSION;
}

uint32_t terrace_abi(void) {
  return TERRACE_ABI;
}

uint32_t terrace_counter_count(void) {
  return c::kAllCounters;
}

terrace_error* terrace_counter_get(uint32_t number, terrace_counter* counter) {
  return c::answer([&] {
    constexpr Names kCall = TERRACE_CALL(counter_get);
    c::require_result(counter, kCall, "counter");
    if (number >= c::kAllCounters)
      c::misuse(kCall, "counter " + std::to_string(number),
                "there are " + std::to_string(c::kAllCounters) + " counters", "count them from 0");
    // The texts of the tables are literals, which end with a zero.
    terrace_counter given{};
    if (number < c::kOffloadCounters) {
      const CounterEntry& entry = c::kPublic[number];
      given.unit = static_cast<uint32_t>(entry.unit);
      given.key = entry.key.data();
      given.name = entry.name.data();
    } else {
      const TimeCause cause = kTimeCauses[number - c::kOffloadCounters];
      given.unit = TERRACE_NANOSECONDS;
      given.key = key_of(cause).data();
      given.name = name_of(cause).data();
    }
    c::give(counter, given);
  });
}

terrace_error* terrace_counters(terrace_store* store, uint64_t* values, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(counters);
  return in_store(
      store, kCall,
      [&](terrace_store& s) { c::give_values(s.offloader->report().counters(), values, count, kCall); },
      c::Harmless::no_other, c::AfterFailure::answer);
}

terrace_error* terrace_step_counters(terrace_store* store, uint64_t* values, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(step_counters);
  return in_store(
      store, kCall,
      [&](terrace_store& s) {
        c::give_values(s.offloader->report().counters() - s.step_start, values, count, kCall);
      },
      c::Harmless::no_other, c::AfterFailure::answer);
}
