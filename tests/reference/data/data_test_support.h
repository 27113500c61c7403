// What the tests of training data share: a folder of files, and the words of an error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <terrace/base/error.h>

namespace terrace::data_tests {

// Bytes that tell their place, all of them text.
inline std::string numbered(size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>('!' + i % 90);
  return text;
}

// The reason of the error that `action` throws; "no problem" when it throws none.
inline std::string problem_of(ErrorKind kind, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    EXPECT_FALSE(error.parts().advice.empty()) << error.what();
    EXPECT_FALSE(error.parts().subject.empty()) << error.what();
    return error.parts().reason;
  }
  return "no problem";
}

// The advice of the error that `action` throws; empty when it throws none.
inline std::string advice_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.parts().advice.in(Door::cpp);
  }
  return {};
}

class DataFolder : public ::testing::Test {
 protected:
  DataFolder() {
    static int count = 0;
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("terrace_data_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
    std::filesystem::create_directories(folder_);
  }
  ~DataFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  std::filesystem::path folder_;
};

}  // namespace terrace::data_tests
