// WholeState: the proof that the records and parameters in memory are those of one step boundary. A commit,
// an export, an evaluation and the next step need it. There is at most one: whatever changes the state takes
// it away before the first byte and gives it back after the last. A change that fails, or that nobody ends,
// so leaves no proof, and nothing that it half did can get into a commit or a checkpoint. Only loading a
// whole state anew makes another one.
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

// Loaded one after the other, each as a whole.
enum class StatePart : uint8_t { trained, frozen };

// Keeps the proof of one Offloader.
class StateCustody {
 public:
  // `has_frozen`: frozen parameters are part of the state.
  explicit StateCustody(bool has_frozen) : has_frozen_(has_frozen) {}

  bool is_whole() const { return whole_.has_value(); }
  // Throws Error(cancelled) where there is none; `action` is what asks for it, as in "cannot commit".
  const WholeState& whole(std::string_view action) const;

  // `change` names what is about to change the state: words that outlive this. Throws as whole() does.
  void begin_change(std::string_view change);
  // The change has ended well. There is one.
  void end_change();
  bool is_changing() const { return !change_.empty(); }

  // A part is about to be written over with what is loaded, and has been.
  void begin_loading(StatePart part);
  void end_loading(StatePart part);

 private:
  const bool has_frozen_;
  bool has_trained_part_ = false;
  bool has_frozen_part_ = false;
  std::optional<WholeState> whole_;
  std::string_view change_;  // in progress, or what failed
};

}  // namespace terrace
