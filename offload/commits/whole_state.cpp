#include <terrace/offload/commits/whole_state.h>

#include <string>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

const WholeState& StateCustody::whole(std::string_view action) const {
  if (whole_) return *whole_;
  throw Error(ErrorKind::cancelled,
              {std::string(action), "the state in memory",
               change_.empty() ? "no state was loaded as a whole"
                               : std::string(change_) + " did not end: what it changed belongs to no step",
               "resume from the last commit or checkpoint"});
}

void StateCustody::begin_change(std::string_view change) {
  TERRACE_ASSERT(!change.empty(), "a change has a name");
  static_cast<void>(whole("cannot change"));
  whole_.reset();
  change_ = change;
}

void StateCustody::end_change() {
  TERRACE_ASSERT(is_changing() && !whole_, "a change ends that was begun");
  change_ = {};
  whole_ = WholeState();
}

// The other part stays loaded if it was.
void StateCustody::begin_loading(StatePart part) {
  whole_.reset();
  change_ = "loading the state";
  (part == StatePart::trained ? has_trained_part_ : has_frozen_part_) = false;
}

void StateCustody::end_loading(StatePart part) {
  TERRACE_ASSERT(!whole_ && is_changing(), "a loading ends that was begun");
  (part == StatePart::trained ? has_trained_part_ : has_frozen_part_) = true;
  if (!has_trained_part_ || (has_frozen_ && !has_frozen_part_)) return;
  change_ = {};
  whole_ = WholeState();
}

}  // namespace terrace
