// LauncherClaim: what each launcher's variables say of this process, read one launcher at a time. That the
// launchers agree is the business of rank_identity.h. Everything here is a pure function, and may be called
// from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/comm/identity/rank_identity.h>

namespace terrace {

// The variables of a launcher; an empty name is one that it does not have.
struct LauncherVariables {
  Launcher launcher;
  std::string_view name;
  std::string_view rank;
  std::string_view size;
  std::string_view local_rank;
  std::string_view local_size;
  std::string_view older_size = "";  // read where `size` is not set
  std::string_view only_with = "";   // the others mean nothing where this one is not set
};

// In the order in which they are asked who the process is.
std::span<const LauncherVariables> launcher_table();

// What a launcher says of a process that is one of several.
struct LauncherClaim {
  const LauncherVariables* from = nullptr;  // of the table
  std::string_view size_name;               // the variable that `size` was read from
  uint32_t rank = 0;                        // less than `size`
  uint32_t size = 1;                        // more than 1
  std::optional<uint32_t> local_rank;
  std::optional<uint32_t> local_size;
};

// Nothing if the launcher did not start the process, or started it alone. Throws Error(config) that names a
// variable which is no number, is out of range, or is missing beside another.
std::optional<LauncherClaim> claim_of(const Environment& variables, const LauncherVariables& from);

// Which variables to unset so that the launcher does not count.
std::string to_unset(const LauncherClaim& claim);

// The value of a variable; null if it is empty or not set. It lives as long as `variables`.
const std::string* variable_text(const Environment& variables, std::string_view name);
// The number in a variable; nothing if it is empty or not set. Throws Error(config) where it is no number.
std::optional<uint32_t> variable_number(const Environment& variables, std::string_view name);

// Error(config): who this process is cannot be told.
Error no_rank(std::string subject, std::string reason, std::string advice);

}  // namespace terrace
