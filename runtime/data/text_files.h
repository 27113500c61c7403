// TextFiles: a file, or all text files of a folder, as one long row of bytes. Reads what it is asked for and
// keeps nothing: memory does not grow with the data. It must never skip anything without counting it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace terrace {

class TextFiles {
 public:
  // `path` is a text file or a folder. Of a folder, all regular files that look like text, in the order of
  // their paths (byte by byte), symbolic links to files included. What begins with a dot, binary files and
  // empty files are left out and counted. Throws Error when anything cannot be read, when there is no text,
  // or when the file is binary.
  explicit TextFiles(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t byte_count() const { return byte_count_; }
  size_t file_count() const { return files_.size(); }
  uint64_t binary_count() const { return binary_count_; }  // files left out
  uint64_t hidden_count() const { return hidden_count_; }  // files and folders left out
  // A hash of every file's name, size and first 8 KiB: whether a resumed run sees the data it saw before.
  uint64_t fingerprint() const { return fingerprint_; }
  // "12 files, 3.40 MiB (left out: 2 binary, 1 hidden)"
  std::string description() const;

  // Copies the bytes [offset, offset + bytes.size()), which must exist. Throws Error(io) when a file has
  // changed. Thread-safe; allocates nothing.
  void read(uint64_t offset, std::span<uint8_t> bytes) const;

 private:
  struct File {
    std::filesystem::path path;
    uint64_t first_byte;
    uint64_t byte_count;
  };
  void collect_folder(std::vector<std::filesystem::path>& paths);
  void add(const std::filesystem::path& path);

  std::filesystem::path path_;
  bool is_folder_ = false;
  std::vector<File> files_;
  uint64_t byte_count_ = 0;
  uint64_t binary_count_ = 0;
  uint64_t hidden_count_ = 0;
  uint64_t fingerprint_ = 0;
};

// Whether the beginning of a file is text: no NUL byte and hardly any control characters. Bytes above 127 are
// text in some encoding; UTF-16 is binary here.
bool looks_like_text(std::span<const uint8_t> beginning);

}  // namespace terrace
