// DeviceToken: one process at a time measures a drive.
//
// A drive has two lock files in a folder of the user's, locked by flock: `token` is the right to use the
// drive, `gate` the right to be the next. A process that waits for the token holds the gate, and a process
// that wants another turn must pass the gate first, so two processes that want the drive alternate. A process
// that dies leaves no lock, only the files. The token is a courtesy among processes of one user: where it
// cannot be had, work goes on without it. It must never decide whether anything is written, only when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace terrace::io {

struct DeviceTokenOptions {
  std::filesystem::path folder;  // holds the lock files; empty: default_token_folder()
  // The longest wait for another process, which may have been stopped while it holds the token.
  uint64_t patience_ns = 10'000'000'000;
};

// $XDG_RUNTIME_DIR/terrace, or /tmp/terrace-<uid>.
std::filesystem::path default_token_folder();

// The tokens of the drives that a set of folders lies on, taken and given back together. Used by one thread;
// two objects in one process exclude each other as well.
class DeviceToken {
 public:
  // Creates the folder (0700) and the files (0600). A folder that is another user's, or not a folder, is not
  // used: usable() is false then, and refusal() says why. Throws nothing.
  DeviceToken(std::span<const std::filesystem::path> paths, DeviceTokenOptions options = {});
  ~DeviceToken();
  DeviceToken(const DeviceToken&) = delete;
  DeviceToken& operator=(const DeviceToken&) = delete;

  bool usable() const { return refusal_.empty(); }
  const std::string& refusal() const { return refusal_; }

  // Takes the token when nobody has it or waits for it.
  bool try_acquire();
  // Waits for the token. Returns false when patience has run out or usable() is false; work then goes on
  // without the token.
  bool acquire();
  void release();
  bool held() const { return held_; }
  // Whether another process waits for a drive that this one holds. Cheap enough for every turn.
  bool wanted() const;
  // The token file of the first drive, for messages.
  const std::string& name() const { return name_; }

 private:
  struct Drive {
    int gate;
    int token;
  };
  bool open_drive(int folder_fd, const std::string& number);
  bool acquire_until(uint64_t deadline_ns);
  bool take(const Drive& drive, uint64_t deadline_ns);
  void close_all();

  DeviceTokenOptions options_;
  std::string refusal_;
  std::string name_;
  std::vector<Drive> drives_;  // in the order of their numbers, so that no two processes wait for each other
  bool held_ = false;
};

}  // namespace terrace::io
