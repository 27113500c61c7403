// AppendFile: a file that only grows, by whole pieces. When append() returns, all of its bytes are in the
// file.
#pragma once

#include <filesystem>
#include <string_view>

namespace terrace {

class AppendFile {
 public:
  // Creates the file unless it exists. Throws Error(io).
  explicit AppendFile(std::filesystem::path path);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  // Throws Error(io).
  void append(std::string_view bytes);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace terrace
