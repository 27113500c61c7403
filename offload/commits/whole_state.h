// WholeState: the proof that the records and parameters in memory are those of one step boundary. A commit,
// an export, an evaluation and the next step need it. There is at most one: a change of the state takes it
// away before the first byte and gives it back after the last. A change that fails, or is never ended, leaves
// no proof, so a half-done change cannot get into a commit or a checkpoint. Only loading a whole state anew
// makes another proof.
//
//   nothing --begin_loading/end_loading of every part--> whole --begin_change--> changing --end_change-->
//   whole
//
// Used by the step thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace terrace {

class WholeState {
 public:
  WholeState(WholeState&&) = default;
  WholeState& operator=(WholeState&&) = default;
  WholeState(const WholeState&) = delete;
  WholeState& operator=(const WholeState&) = delete;

 private:
  friend class StateCustody;
  WholeState() = default;
};

// StatePart: the parts of the state, loaded one after the other, each as a whole.
enum class StatePart : uint8_t { trained, frozen };

// StateCustody keeps the proof of one Offloader.
class StateCustody {
 public:
  // `has_frozen`: frozen parameters are part of the state.
  explicit StateCustody(bool has_frozen) : has_frozen_(has_frozen) {}

  bool is_whole() const { return whole_.has_value(); }
  // Returns the proof. Throws Error(cancelled) where there is none; `action` begins its message, as in
  // "cannot commit".
  const WholeState& whole(std::string_view action) const;

  // Takes the proof away. `change` names the change in words that outlive this object. Throws as whole()
  // does.
  void begin_change(std::string_view change);
  // Gives the proof back after a change that ended well. A change must be in progress.
  void end_change();
  bool is_changing() const { return !change_.empty(); }

  // begin_loading() says that a part is about to be overwritten by loading, end_loading() that it has been
  // loaded.
  void begin_loading(StatePart part);
  void end_loading(StatePart part);

 private:
  const bool has_frozen_;
  bool has_trained_part_ = false;
  bool has_frozen_part_ = false;
  std::optional<WholeState> whole_;
  std::string_view change_;  // the change in progress, or the failed one
};

}  // namespace terrace
