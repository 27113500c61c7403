// DriveToken: one process at a time measures a drive.
//
// A drive has a lock file in a folder of the user's, locked by flock. A process that dies leaves no lock,
// only the file. The token is a courtesy among processes of one user: where it cannot be had, work goes on
// without it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace terrace::io {

struct DriveTokenOptions {
  std::filesystem::path folder;  // holds the lock files; empty: default_token_folder()
  // The longest wait for another process, which may have been stopped while it holds the token.
  uint64_t patience_ns = 10'000'000'000;
};

// $XDG_RUNTIME_DIR/terrace, or /tmp/terrace-<uid>.
std::filesystem::path default_token_folder();

// The tokens of the drives that a set of folders lies on, taken and given back together. Used by one thread;
// two objects in one process exclude each other as well.
class DriveToken {
 public:
  // Creates the folder (0700) and the files (0600). A folder that is another user's, or not a folder, is not
  // used: usable() is false then, and refusal() says why. Throws nothing.
  DriveToken(std::span<const std::filesystem::path> paths, DriveTokenOptions options = {});
  ~DriveToken();
  DriveToken(const DriveToken&) = delete;
  DriveToken& operator=(const DriveToken&) = delete;

  bool usable() const { return refusal_.empty(); }
  const std::string& refusal() const { return refusal_; }

  // Waits for the token. Returns false when patience has run out or usable() is false; work then goes on
  // without the token.
  bool acquire();
  void release();
  bool held() const { return held_; }
  // The token file of the first drive, for messages.
  const std::string& name() const { return name_; }

 private:
  bool open_drive(int folder_fd, const std::string& number);
  void close_all();

  DriveTokenOptions options_;
  std::string refusal_;
  std::string name_;
  // The lock files, in the order of the drives' numbers, so that no two processes wait for each other.
  std::vector<int> drives_;
  bool held_ = false;
};

}  // namespace terrace::io
