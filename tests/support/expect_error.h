// What a test asks of a failure: the kind of Error, all four parts, and what its text names.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <terrace/base/error.h>

namespace terrace::testing {

// The action must throw an Error of this kind, with all four parts, whose text has every fragment.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& fragments,
                         const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << text;
    EXPECT_FALSE(error.parts().what_failed.empty()) << text;
    EXPECT_FALSE(error.parts().subject.empty()) << text;
    EXPECT_FALSE(error.parts().reason.empty()) << text;
    EXPECT_FALSE(error.parts().advice.empty()) << text;
    for (const std::string& fragment : fragments)
      EXPECT_NE(text.find(fragment), std::string::npos) << fragment << " is not in: " << text;
  }
}

}  // namespace terrace::testing
