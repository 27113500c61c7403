// The calling thread may open only what everybody may, though it be root's, until the end of a scope.
#pragma once

#include <sys/fsuid.h>

#include <filesystem>

namespace terrace::testing {

class WithoutPermission {
 public:
  WithoutPermission() : before_(setfsuid(kNobody)) {}
  ~WithoutPermission() { setfsuid(static_cast<uid_t>(before_)); }
  WithoutPermission(const WithoutPermission&) = delete;
  WithoutPermission& operator=(const WithoutPermission&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  const int before_;
};

// Lets everybody into the folder and what is in it, but nobody into `locked`.
inline void lock(const std::filesystem::path& folder, const std::filesystem::path& locked) {
  namespace fs = std::filesystem;
  fs::permissions(folder, fs::perms(0755));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    fs::permissions(entry.path(), fs::perms(entry.is_directory() ? 0755 : 0644));
  fs::permissions(locked, fs::perms::none);
}

}  // namespace terrace::testing
