// EventFile: scalars as TensorBoard reads them.
//
// A file is a row of records, each
//   8 bytes  length n of the data, little endian
//   4 bytes  masked CRC-32C of these 8 bytes
//   n bytes  data
//   4 bytes  masked CRC-32C of the data
// whose data is one protocol buffer message Event:
//   1 double wall_time   2 varint step   3 text file_version   5 Summary   7 SessionLog
// with Summary { repeated 1 Value { 1 text tag, 2 float simple_value } } and SessionLog { 1 varint status }.
// The first event has the version "brain.Event:2". A resumed run begins a new file with a session log of
// status START (1): readers then drop what earlier files have of that step and later ones. It must never
// touch an earlier file.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <terrace/runtime/observe/monitor/scalar.h>

namespace terrace {

class AppendFile;

class EventFile {
 public:
  // `folder` exists. The new name sorts behind those of its event files. Throws Error: config when a run that
  // is not resumed finds events; io.
  EventFile(const std::filesystem::path& folder, const MonitorStart& start);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Throws Error(config) if `folder` has events of a run.
  static void require_none(const std::filesystem::path& folder);

  // Returns when the values are in the file. Throws Error(io).
  void write(const ScalarEvent& event);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<AppendFile> file_;
  std::string records_;  // a member so that its memory is kept
  std::string message_;
};

}  // namespace terrace
