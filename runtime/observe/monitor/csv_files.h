// CsvFiles: scalars as CSV, one file per tag in one folder, in DeepSpeed's layout. "Train/Samples/lr" is
// Train_Samples_lr.csv, with the line "step,lr" and a line "samples,value" per update, each ended by CR LF. A
// resumed run cuts off the lines behind its start. The class must never change a file that does not begin
// with "step,".
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <terrace/runtime/observe/monitor/scalar.h>

namespace terrace {

class AppendFile;

class CsvFiles {
 public:
  // `folder` exists. Throws Error: config when a run that is not resumed finds such files; io.
  CsvFiles(const std::filesystem::path& folder, const MonitorStart& start);
  ~CsvFiles();
  CsvFiles(const CsvFiles&) = delete;
  CsvFiles& operator=(const CsvFiles&) = delete;

  // Throws Error(config) if `folder` has scalars of a run.
  static void require_none(const std::filesystem::path& folder);

  // Returns when the values are in the files. Throws Error(io).
  void write(const ScalarEvent& event);

 private:
  AppendFile& file_of(std::string_view tag);

  std::filesystem::path folder_;
  std::map<std::string, AppendFile, std::less<>> files_;  // by tag
};

}  // namespace terrace
