// `terrace checkpoint ls|verify|prune`: lists the saved states at some paths, compares every byte with what
// was saved, and removes states. ls and verify change nothing, even beside a running job.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/runtime/checkpoint/commit_inventory.h>
#include <terrace/runtime/checkpoint/found_commit.h>
#include <terrace/runtime/checkpoint/inventory.h>

#include "command_line.h"
#include "console.h"
#include "text_table.h"
#include "wrapped_text.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kShownOfFile = 3;  // bad blocks of one file that are printed

// Places: the given paths, sorted into folders of checkpoints, nvme paths of one space, and empty ones.
struct Places {
  std::vector<fs::path> checkpoints;
  std::vector<fs::path> nvme;
  std::vector<fs::path> empty;
};

// With `may_be_empty` some of several paths may hold nothing.
Places sort_out(const std::vector<std::string>& paths, bool may_be_empty) {
  Places places;
  for (const std::string& path : paths) {
    require_exists("PATH", path);
    require_whole_set(path);
    const bool has_checkpoints = is_checkpoint(path) || is_checkpoint_folder(path);
    if (has_checkpoints) places.checkpoints.emplace_back(path);
    if (is_tier_path(path)) places.nvme.emplace_back(path);
    if (!has_checkpoints && !is_tier_path(path)) places.empty.emplace_back(path);
  }
  const bool has_all = places.empty.empty();
  const bool has_some = !places.checkpoints.empty() || !places.nvme.empty();
  if (has_all || (has_some && may_be_empty)) return places;
  throw Error(ErrorKind::config, {"cannot find a saved state in", places.empty.front().string(),
                                  "it holds neither checkpoints nor a tier",
                                  "name a folder of --save, one step's folder in it, or an nvme path"});
}

// Of a damaged state there may be nothing that says more than that it is there.
bool is_read(const SavedState& state) {
  return state.trouble.empty() || state.run.step > 0 || !state.run.model.empty();
}
// What is known of its run. Only the other program reads what it has noted.
bool has_step(const SavedState& state) {
  return is_read(state) && !state.is_of_other_program;
}
std::string step_text(const SavedState& state) {
  return has_step(state) ? grouped(state.run.step) : "?";
}
std::string model_text(const SavedState& state) {
  return state.is_of_other_program ? "of another program" : state.run.model;
}
bool has_time(const SavedState& state) {
  return state.time != fs::file_time_type{};
}

void write_state(JsonWriter& json, const SavedState& state) {
  json.begin_object().members({{"kind", name_of(state.kind)}, {"path", state.path.string()}});
  json.member("step", has_step(state) ? JsonValue(state.run.step) : nullptr);
  json.member("commit", state.commit > 0 ? JsonValue(state.commit) : nullptr).member("ranks", state.ranks);
  json.member("time", has_time(state) ? JsonValue(time_text(state.time)) : nullptr);
  json.members({{"model", state.run.model}, {"bytes", state.bytes}, {"latest", state.is_latest}});
  json.members({{"trouble", json_text_or_null(state.trouble)}, {"incomplete", state.is_incomplete}});
  json.member("of_other_program", state.is_of_other_program).end();
}

std::string kind_text(const SavedState& state) {
  return std::string(name_of(state.kind)) + (state.ranks > 1 ? fmt::format(" of {} ranks", state.ranks) : "");
}

const char* whole_text(const SavedState& state) {
  if (state.may_be_whole) return "not read";
  return !state.trouble.empty() ? "NO" : state.is_latest ? "yes, latest" : "yes";
}

// A block of lines for each state, where a table is too wide.
std::string states_lines(const std::vector<SavedState>& states, size_t columns) {
  constexpr size_t kIndent = 2;
  std::string text;
  for (const SavedState& state : states) {
    std::string facts = kind_text(state);
    if (is_read(state)) facts += fmt::format(" of step {}, {}", step_text(state), format_bytes(state.bytes));
    if (has_time(state)) facts += fmt::format(", {} UTC", time_text(state.time));
    facts += fmt::format(", whole: {}", whole_text(state));
    if (!model_text(state).empty()) facts += fmt::format(", {}", shown_line(model_text(state)));
    text += fmt::format("{}\n{}{}\n", shown_line(state.path.string()), std::string(kIndent, ' '),
                        wrapped(facts, kIndent, kIndent, columns));
  }
  return text;
}

std::string states_text(const std::vector<SavedState>& states, size_t columns) {
  TextTable table({"saved state", "kind", "step", "date (UTC)", "size", "whole", "model"});
  for (const SavedState& state : states) {
    table.add({state.path.string(), kind_text(state), step_text(state),
               has_time(state) ? time_text(state.time) : "?",
               is_read(state) ? format_bytes(state.bytes) : "?", whole_text(state), model_text(state)});
  }
  std::string text = table.text();
  return columns == 0 || table.width() <= columns ? text : states_lines(states, columns);
}

std::string bad_text(const BadBlock& bad) {
  return fmt::format("BAD {}: {} ({} bytes at offset {}): {}\n", shown_line(bad.file.string()),
                     shown_line(bad.place), bad.bytes, bad.offset, shown_message(bad.reason.text));
}

class Checkpoint final : public Subcommand {
 public:
  explicit Checkpoint(Command& app)
      : Subcommand(app, "checkpoint",
                   "List, verify or remove what runs have saved: checkpoints, and commits on nvme") {
    const FlagGroup group(command_);
    group.text("ACTION", "ls|verify|prune", action_, "What to do");
    group.text("PATH", "", paths_, "Folders of --save, folders of one step, nvme paths (all of one run)");
    group.count("--keep", 1, keep_, "prune: keep the newest N");
    group.yes("--damaged", damaged_, "prune: remove the states in which verify finds damage");
    group.yes("--incomplete", incomplete_,
              "prune: remove the states of several ranks of which some have no folder any more");
    group.yes("--all", all_, "prune: remove every one");
    group.yes("--json", json_, "Print the result as JSON");
    command_.footer(
        "verify ends with 1 when a byte is not as it was saved. prune asks nothing, and leaves alone what a "
        "job is using and files of others. With --keep it first verifies what would stay, and removes "
        "nothing "
        "when that is damaged. What some ranks have of a state whose other folders are missing stays but "
        "with "
        "--incomplete and --all: those may be on a disk that is not mounted.\n\n"
        "Examples:\n"
        "  terrace checkpoint ls checkpoints /mnt/nvme\n"
        "  terrace checkpoint verify checkpoints/step-00001000\n"
        "  terrace checkpoint prune checkpoints --keep 2\n");
  }

  int run() override {
    if (action_.empty()) {
      throw Error(ErrorKind::config, {"terrace checkpoint needs an action: use ls, verify or prune", "", "",
                                      "terrace checkpoint ls PATH"});
    }
    if (action_ != "ls" && action_ != "verify" && action_ != "prune") {
      throw Error(ErrorKind::config,
                  {"unknown action", action_, "use ls, verify or prune", "terrace checkpoint ls PATH"});
    }
    if (paths_.empty()) {
      refuse("terrace checkpoint " + action_, "no path is given", "name a folder of --save or an nvme path");
    }
    const bool prunes = action_ == "prune";
    const int said = int{keep_.has_value()} + int{all_} + int{damaged_} + int{incomplete_};
    if (said != (prunes ? 1 : 0)) {
      refuse("terrace checkpoint " + action_,
             prunes ? "one of --keep N, --damaged, --incomplete and --all is needed"
                    : "--keep, --damaged, --incomplete and --all belong to prune",
             prunes ? "say what goes" : "leave them out");
    }
    const Places places = sort_out(paths_, action_ == "ls");
    return prunes ? prune(places) : action_ == "ls" ? list(places) : verify(places);
  }

 private:
  struct Listed {
    std::vector<SavedState> states;
    TierListing tier;
  };

  Listed look(const Places& places) const {
    Listed listed;
    for (const fs::path& path : places.checkpoints) {
      const std::vector<SavedState> more = list_checkpoints(path);
      listed.states.insert(listed.states.end(), more.begin(), more.end());
    }
    if (!places.nvme.empty()) listed.tier = list_commits(places.nvme);
    listed.states.insert(listed.states.end(), listed.tier.states.begin(), listed.tier.states.end());
    return listed;
  }

  int list(const Places& places);
  int verify(const Places& places);
  void require_all_paths(const Places& places, const TierListing& tier) const;
  void require_something(const Listed& listed) const;
  int prune(const Places& places);
  bool is_damaged(const Places& places, const SavedState& state);
  [[noreturn]] void refuse_incomplete(const SavedState& state) const;
  std::set<fs::path> chosen_to_go(const Places& places, std::vector<SavedState> states);

  std::string action_;
  std::vector<std::string> paths_;
  std::optional<uint64_t> keep_;
  bool all_ = false;
  bool damaged_ = false;
  bool incomplete_ = false;
  bool json_ = false;
  Console console_;
};

int Checkpoint::list(const Places& places) {
  const Listed listed = look(places);
  std::string text;
  if (json_) {
    JsonWriter json;
    json.begin_object(JsonLayout::lines);
    json.list(
        "states", listed.states, [&](const SavedState& state) { write_state(json, state); },
        JsonLayout::lines);
    json.member("nvme_in_use", listed.tier.in_use);
    text = json.member("nvme_trouble", json_text_or_null(listed.tier.trouble)).end().take() + "\n";
  } else {
    text = states_text(listed.states, result_columns());
    for (const SavedState& state : listed.states) {
      if (!state.trouble.empty())
        text += fmt::format("{}: {}\n", shown_line(state.path.string()), shown_message(state.trouble));
    }
    if (!listed.tier.trouble.empty()) text += fmt::format("nvme: {}\n", shown_message(listed.tier.trouble));
    for (const fs::path& path : places.empty)
      text += fmt::format("{}: no saved state\n", shown_line(path.string()));
    if (listed.tier.in_use) text += "nvme: in use by a running job\n";
  }
  print_result(text);
  return kDone;
}

// A healthy commit looks damaged if one of its paths is left out.
void Checkpoint::require_all_paths(const Places& places, const TierListing& tier) const {
  if (tier.absent_paths == 0) return;
  throw Error(
      ErrorKind::config,
      {fmt::format("cannot {} what is in", action_), text_of_paths(places.nvme),
       fmt::format("it is of a run that has {} more", counted(tier.absent_paths, "nvme path")),
       "name all nvme paths of the run; where one is lost for good, remove the folder terrace-tier in "
       "the others by hand"});
}

// Verifying nothing must not look like success.
void Checkpoint::require_something(const Listed& listed) const {
  if (!listed.states.empty() || !listed.tier.trouble.empty()) return;
  throw Error(ErrorKind::config, {"nothing to verify in", fmt::format("{}", fmt::join(paths_, ", ")),
                                  "no checkpoint and no commit was found there",
                                  "name a folder that --save, or nvme_path, has named in training"});
}

int Checkpoint::verify(const Places& places) {
  const Listed listed = look(places);
  require_all_paths(places, listed.tier);
  require_something(listed);
  std::vector<BadBlock> bad_blocks;
  uint64_t bad_count = 0;
  fs::path bad_file;
  uint64_t bad_of_file = 0;
  const auto tell_hidden = [&] {
    if (bad_of_file > kShownOfFile)
      print_result(fmt::format("  and {} of this file\n", counted(bad_of_file - kShownOfFile, "more block")));
    bad_of_file = 0;
  };
  const auto tell = [&](const BadBlock& bad) {
    ++bad_count;
    if (json_) return bad_blocks.push_back(bad);
    if (bad.file != bad_file) tell_hidden();
    bad_file = bad.file;
    if (++bad_of_file <= kShownOfFile) print_result(bad_text(bad));
  };
  uint64_t bytes = 0;
  for (const SavedState& state : listed.states) {
    const uint64_t before = bad_count;
    try {
      const uint64_t read = state.kind == SavedState::Kind::checkpoint
                                ? verify_checkpoint(state.path, tell)
                                : verify_commit(places.nvme, state, tell, console_);
      bytes += read;
      if (!json_ && bad_count == before)
        print_result(
            fmt::format("good {}: step {}, {}\n", state.path.string(), state.run.step, format_bytes(read)));
    } catch (const Error& failure) {
      tell({failure.parts().subject.in(Door::program), "all of it", 0, state.bytes, failure.parts().why()});
    }
    tell_hidden();
  }
  for (const fs::path& path : places.checkpoints) {
    const std::string trouble = is_checkpoint(path) ? "" : latest_trouble(path);
    if (!trouble.empty()) tell({path / "latest", "all of it", 0, 0, trouble});
  }
  if (!listed.tier.trouble.empty()) tell({places.nvme.front(), "all of it", 0, 0, listed.tier.trouble});
  tell_hidden();
  if (json_) {
    JsonWriter json;
    json.begin_object(JsonLayout::lines).members({{"states", listed.states.size()}, {"bytes", bytes}});
    json.begin_list("bad", JsonLayout::lines);
    for (const BadBlock& bad : bad_blocks) {
      json.begin_object().members({{"file", bad.file.string()}, {"place", bad.place}});
      json.members({{"offset", bad.offset}, {"bytes", bad.bytes}, {"reason", bad.reason.text}}).end();
    }
    print_result(json.end().end().take() + "\n");
  } else {
    print_result(fmt::format("{}, {} read and compared, {} bad\n",
                             counted(listed.states.size(), "saved state"), format_bytes(bytes), bad_count));
  }
  return bad_count == 0 ? kDone : kFailed;
}

// The folders that are missing may be on a disk that is not mounted now, and then all of it is whole.
void Checkpoint::refuse_incomplete(const SavedState& state) const {
  const std::string paths = fmt::format("{}", fmt::join(paths_, " "));
  throw Error(ErrorKind::corrupt,
              {"will not remove what is left of", state.path.string(), state.trouble,
               fmt::format("bring the folders back (a disk may not be mounted), and look again with `terrace "
                           "checkpoint ls {}`; where they are lost for good: terrace checkpoint prune {} "
                           "--incomplete",
                           paths, paths)});
}

// What a drive does not read now, it may read later, or on another controller.
[[noreturn]] void refuse_unread(const SavedState& state, const std::string& reason) {
  throw Error(
      ErrorKind::io,
      {"cannot tell whether it is damaged", state.path.string(), reason,
       "it stays: see the kernel's log (dmesg), and look again with `terrace checkpoint verify`; what is "
       "lost for good, remove by hand"});
}

bool Checkpoint::is_damaged(const Places& places, const SavedState& state) {
  if (state.may_be_whole) refuse_unread(state, state.trouble);
  if (!state.trouble.empty()) return true;
  bool damaged = false;
  std::string unread;
  const auto tell = [&](const BadBlock& bad) {
    if (is_drive_failure(bad.reason.error_number)) {
      unread = fmt::format("{}, {}: {}", bad.file.filename().string(), bad.place, bad.reason.text);
    } else {
      damaged = true;
    }
  };
  try {
    if (state.kind == SavedState::Kind::checkpoint) {
      verify_checkpoint(state.path, tell);
    } else {
      verify_commit(places.nvme, state, tell, console_);
    }
  } catch (const Error& failure) {
    if (is_drive_failure(failure.parts().error_number)) refuse_unread(state, failure.parts().reason);
    if (!is_damage(failure)) throw;
    return true;
  }
  if (!damaged && !unread.empty()) refuse_unread(state, unread);
  return damaged;
}

// Returns the states that go, of those at one place. The state that a run would take up counts as the newest.
std::set<fs::path> Checkpoint::chosen_to_go(const Places& places, std::vector<SavedState> states) {
  if (damaged_ || keep_) {
    for (const SavedState& state : states) {
      if (damaged_ && state.is_incomplete) refuse_incomplete(state);
    }
    std::erase_if(states, [](const SavedState& state) { return state.is_incomplete; });
  }
  std::stable_partition(states.begin(), states.end(),
                        [](const SavedState& state) { return !state.is_latest; });
  std::set<fs::path> chosen;
  for (size_t i = 0; i < states.size(); ++i) {
    const bool stays = keep_ && i + *keep_ >= states.size();
    const bool damaged = (stays || damaged_) && is_damaged(places, states[i]);
    if (stays && damaged && states.size() > *keep_) {
      throw Error(ErrorKind::corrupt,
                  {"will not remove the older states beside", states[i].path.string(),
                   "it would stay, and it is damaged (`terrace checkpoint verify` says where)",
                   "remove what is damaged first: terrace checkpoint prune PATH --damaged"});
    }
    if (all_ || (incomplete_ && states[i].is_incomplete) || (keep_ && !stays) || (damaged_ && damaged))
      chosen.insert(states[i].path);
  }
  return chosen;
}

int Checkpoint::prune(const Places& places) {
  std::vector<fs::path> removed;
  for (const fs::path& path : places.checkpoints) {
    if (is_checkpoint(path)) {
      throw Error(ErrorKind::config, {"cannot prune", path.string(), "it is one checkpoint",
                                      "name the folder above with --keep or --all"});
    }
  }
  const TierListing tier = places.nvme.empty() ? TierListing{} : list_commits(places.nvme);
  require_all_paths(places, tier);  // before anything is removed elsewhere
  std::set<fs::path> chosen;
  const auto goes = [&](const SavedState& state) { return chosen.contains(state.path); };
  for (const fs::path& path : places.checkpoints) {
    chosen = chosen_to_go(places, list_checkpoints(path));
    const std::vector<fs::path> more = prune_checkpoints(path, goes, console_);
    removed.insert(removed.end(), more.begin(), more.end());
  }
  if (!places.nvme.empty()) {
    chosen = chosen_to_go(places, tier.states);
    if (all_ || !chosen.empty()) {
      const std::vector<fs::path> more = prune_commits(places.nvme, goes, console_);
      removed.insert(removed.end(), more.begin(), more.end());
    }
  }
  if (json_) {
    JsonWriter json;
    json.begin_object().list("removed", removed, [&](const fs::path& path) { json.value(path.string()); });
    print_result(json.end().take() + "\n");
    return kDone;
  }
  std::string text;
  for (const fs::path& path : removed) text += fmt::format("removed {}\n", path.string());
  print_result(text + fmt::format("{} removed\n", counted(removed.size(), "saved state")));
  return kDone;
}

}  // namespace

std::unique_ptr<Subcommand> add_checkpoint(Command& app) {
  return std::make_unique<Checkpoint>(app);
}

}  // namespace terrace
