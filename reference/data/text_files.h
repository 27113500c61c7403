// TextFiles: files, or all text files of folders, as one long row of bytes. It reads the bytes that a caller
// asks for and keeps nothing: memory does not grow with the data. It must never skip anything without
// counting it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace terrace {

class TextFiles {
 public:
  struct File {
    std::filesystem::path path;
    uint64_t first_byte = 0;
    uint64_t byte_count = 0;
    int64_t changed_ns = 0;      // when it was last written to
    bool is_json_lines = false;  // an object on each line, whose "text" is a text
  };

  // Every path is a text file or a folder, taken in the given order. A folder gives all regular files that
  // look like text, symbolic links to files included, in the order of their paths (byte by byte). Names that
  // begin with a dot, binary files, empty files and links that lead nowhere are left out and counted. Throws
  // Error when anything cannot be read, when there is no text, when a given file is binary, and for JSON
  // lines without texts, JSON arrays of objects and Parquet wherever they are.
  explicit TextFiles(const std::vector<std::filesystem::path>& paths);
  explicit TextFiles(const std::filesystem::path& path) : TextFiles(std::vector{path}) {}

  const std::vector<std::filesystem::path>& paths() const { return paths_; }
  const std::vector<File>& files() const { return files_; }
  uint64_t byte_count() const { return byte_count_; }
  // True if no file has JSON lines.
  bool are_plain() const;
  uint64_t binary_count() const { return binary_count_; }      // files left out
  uint64_t hidden_count() const { return hidden_count_; }      // files and folders left out
  uint64_t dangling_count() const { return dangling_count_; }  // links left out
  // A hash of every file's name, size and first 8 KiB, by which a resumed run recognises its data.
  uint64_t fingerprint() const { return fingerprint_; }
  // Returns "12 files, 3.40 MiB (left out: 2 binary, 1 hidden)".
  std::string description() const;

  // Copies the bytes [offset, offset + bytes.size()), which must exist. Throws Error(io) when a file has
  // changed. Thread-safe; allocates nothing.
  void read(uint64_t offset, std::span<uint8_t> bytes) const;
  // Returns the file of byte `offset`.
  const File& file_at(uint64_t offset) const;

 private:
  void add_path(const std::filesystem::path& path);
  std::vector<std::filesystem::path> collect_folder(const std::filesystem::path& folder);
  void add_file(const std::filesystem::path& path, const std::string& name);

  std::vector<std::filesystem::path> paths_;
  std::vector<File> files_;
  uint64_t byte_count_ = 0;
  uint64_t binary_count_ = 0;
  uint64_t hidden_count_ = 0;
  uint64_t empty_count_ = 0;
  uint64_t dangling_count_ = 0;
  std::filesystem::path first_binary_;
  uint64_t fingerprint_ = 0;
};

// True if the beginning of a file is text: it has no NUL byte and hardly any control characters. Bytes above
// 127 are text in some encoding; UTF-16 counts as binary.
bool looks_like_text(std::span<const uint8_t> beginning);

}  // namespace terrace
