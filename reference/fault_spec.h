// Deliberate faults as one line of text, the value of `terrace train --inject`, for rehearsals and tests. An
// unknown word must never be ignored.
//
//   SPEC   words separated by "," or ":", each at most once; so a path with one of these in it cannot be
//          named
//   where  read | write             only these transfers (default: both)
//          path=PATH                of a file, or of all files below a folder
//          file=NAME                of files with this last part of the path
//   what   error=EIO                fails with this error, of any name that errno(3) knows
//   (one)  short=BYTES              moves only so many bytes and says so
//          delay=20ms               takes so much longer (ns, us, ms, s)
//          corrupt | corrupt=BYTE   flips a bit of what is read, anywhere or in this byte
//          torn=BYTES               writes only so many bytes and claims all
//          lost                     writes nothing and claims all
//          full-after=BYTES         the drive has room for so much; then ENOSPC
//          rate=200MB/s             all of these transfers together move no faster
//   when   at=N                     the N-th of these transfers, counted from 1 (default: every one)
//          from=N                   the N-th and those after it
//          every=N                  every N-th, counted from there
//          after=10s                not before so much of the run has passed
//          probability=P            each with this chance; seed=N chooses other ones
//
// A transfer is a piece of a request as it goes to the system. Engines repair some faults (short transfers,
// EINTR, EAGAIN), which never show above them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <terrace/aio/engines/fault_plan.h>

namespace terrace {

// Throws Error(config) naming the wrong word.
io::Fault parse_fault_spec(std::string_view spec);

// Returns a function for OffloadHooks::decorate_engine. It makes an engine of the same options over a
// transport with the faults of `plan`, which outlives it.
std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> engines_with_faults(
    io::FaultPlan& plan);

}  // namespace terrace
