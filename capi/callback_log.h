// CallbackLog: gives the lines of a log to the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <terrace.h>
#include <terrace/base/log.h>

namespace terrace::c {

class CallbackLog final : public Log {
 public:
  CallbackLog(terrace_log_fn log, void* context) : log_(log), context_(context) {}
  Door door() const override { return Door::c; }
  void write(LogLevel level, std::string_view line) override {
    if (log_ != nullptr) log_(context_, static_cast<uint32_t>(level), std::string(line).c_str());
  }

 private:
  const terrace_log_fn log_;
  void* const context_;
};

}  // namespace terrace::c
