// CsvFiles: scalars as CSV, one file per tag in one folder, as DeepSpeed lays them out:
// "Train/Samples/lr" is Train_Samples_lr.csv, with the line "step,lr" and a line "samples,value" per update,
// each ended by CR LF. A resumed run cuts off what lies behind its start; it must never change a file that
// does not begin with "step,".
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <terrace/runtime/observe/monitor/scalar.h>

namespace terrace {

class AppendFile;

class CsvFiles {
 public:
  // In `folder`, which exists. Throws Error: config where a run that is not resumed finds such files, io.
  CsvFiles(const std::filesystem::path& folder, const MonitorStart& start);
  ~CsvFiles();
  CsvFiles(const CsvFiles&) = delete;
  CsvFiles& operator=(const CsvFiles&) = delete;

  // Throws Error(config) where `folder` has scalars of a run.
  static void require_none(const std::filesystem::path& folder);

  // In the files when it returns. Throws Error(io).
  void write(const ScalarEvent& event);

 private:
  AppendFile& file_of(std::string_view tag);

  std::filesystem::path folder_;
  std::map<std::string, AppendFile, std::less<>> files_;  // by tag
};

}  // namespace terrace
