// RankProgram: the program that a rank is part of, as far as the ranks of a run need it. They find out what
// the user has to learn and which of them says it; the program says it, and knows its signals and its end.
#pragma once

#include <string>

#include <terrace/base/error.h>
#include <terrace/base/log.h>

namespace terrace {

// Any thread may call the functions.
class RankProgram {
 public:
  virtual ~RankProgram() = default;

  // Takes the warnings of this rank.
  virtual Log& log() = 0;
  // Tells the user why the run ends, in the name of all ranks.
  virtual void say(const Error& failure) = 0;
  // Tells the user why this rank ends, in the name of these: "rank 2", "ranks 1 and 2". An empty text stands
  // for whoever this process has spoken for before.
  virtual void say_as(const std::string& ranks, const Error& failure) = 0;
  // A rank has died. A signal that comes from now on may be the launcher's, which ends the others.
  virtual void rank_has_died() {}
  // The rank that this process is has not heard of a death in time, and what it still computes is lost. The
  // user has been told. A program that stays learns of the death when it next asks the others for something.
  virtual void end_at_once() = 0;
  // Another rank has left because of a failure, and a second later this one still works. Whoever ends by what
  // it next asks the others for needs nothing here.
  virtual void another_has_failed(const Error&) {}
};

}  // namespace terrace
