// A schedule of `terrace sim`. What is accepted is written as a file that is read as the same.
#include <terrace/runtime/observe/trace/schedule_file.h>

#include "fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace terrace;
  SimSchedule schedule;
  const bool accepted = fuzz::accepts(
      {ErrorKind::config}, [&] { schedule = parse_schedule(fuzz::as_text(data, size), "fuzz.jsonl"); });
  if (!accepted) return 0;
  fuzz::require(parse_schedule(schedule_text(schedule), "written") == schedule,
                "it is read as it was written");
  return 0;
}
