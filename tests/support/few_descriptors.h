// A process that has so many descriptors to spare and no more, until the end of a scope.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include <terrace/base/error.h>

namespace terrace::testing {

class FewDescriptors {
 public:
  explicit FewDescriptors(unsigned spare) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int free = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    close(free);
    const rlimit few{.rlim_cur = static_cast<rlim_t>(free) + spare, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// Does the action with 0, 1, 2... descriptors to spare, until one time is refused for none of them. Each time
// before it throws what says EMFILE and how to have more; `after` looks at what was left, without a limit.
inline void with_few_descriptors(const std::function<void()>& action, const std::function<void()>& after) {
  constexpr unsigned kMost = 64;
  unsigned refusals = 0;
  for (unsigned spare = 0; spare < kMost; ++spare) {
    SCOPED_TRACE("with " + std::to_string(spare) + " descriptors to spare");
    bool is_refused = false;
    try {
      const FewDescriptors few(spare);
      action();
    } catch (const Error& error) {
      is_refused = error.parts().error_number == EMFILE;
      EXPECT_TRUE(is_refused) << error.what();
      EXPECT_NE(error.parts().advice.in(Door::cpp).find("ulimit -n"), std::string::npos) << error.what();
      EXPECT_FALSE(error.parts().subject.empty()) << error.what();
    }
    after();
    if (::testing::Test::HasFailure()) return;
    refusals += is_refused ? 1 : 0;
    if (!is_refused) {
      EXPECT_GT(refusals, 0u) << "nothing was opened";
      return;
    }
  }
  ADD_FAILURE() << "it was never done";
}

}  // namespace terrace::testing
