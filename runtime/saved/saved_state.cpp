#include <terrace/runtime/saved/saved_state.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/utf8.h>

namespace terrace::saved {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSave = "cannot save a checkpoint";
constexpr const char* kLoad = "cannot load a checkpoint";

void require_name(const char* what, const StateKind& kind, const std::string& name) {
  const std::string reason = kind.why_no_name(name);
  if (reason.empty()) return;
  throw Error(ErrorKind::config,
              {what, fmt::format("the name {}", json_quoted(name, 200)), reason,
               "give the name of one folder, such as \"step-100\", and not \"latest\" or a path"});
}

}  // namespace

StateWriter::StateWriter(const fs::path& folder, std::string name, std::vector<std::string> files, Log& log,
                         StateKind kind)
    : name_(std::move(name)), files_(std::move(files)), process_(getpid()) {
  if (kind.files.empty()) kind.files = files_;
  require_name(kSave, kind, name_);
  require_replaceable(folder / name_, kind);  // before anything is made or brought in order
  begin(own_folder_.emplace(folder, std::move(kind), log));
}

StateWriter::StateWriter(const SaveFolder& folder, std::string name, std::vector<std::string> files)
    : name_(std::move(name)), files_(std::move(files)), process_(getpid()) {
  begin(folder);
}

void StateWriter::begin(const SaveFolder& folder) {
  folder_ = &folder;
  require_replaceable(folder.final_path(name_), folder.kind());
  io::make_folder(folder.partial_path(name_));
  is_there_ = true;
}

StateWriter::~StateWriter() {
  file_.reset();
  if (is_there_ && getpid() == process_) folder_->remove_files_of(folder_->partial_path(name_));
}

void StateWriter::begin_file(const std::string& name, uint64_t bytes) {
  begin_file(name, bytes, [](int) { return false; });
}

void StateWriter::begin_file(const std::string& name, uint64_t bytes, FunctionRef<bool(int)> clone) {
  end_file();
  const bool is_known = std::ranges::find(files_, name) != files_.end();
  const bool is_twice =
      std::ranges::find(manifest_.files, name, &StateManifest::File::name) != manifest_.files.end();
  if (!is_known || is_twice) {
    throw Error(ErrorKind::config, {kSave, fmt::format("the file {}", json_quoted(name, 200)),
                                    is_known ? "it was written already" : "it was not announced",
                                    "write each file of the list once"});
  }
  file_name_ = name;
  file_.emplace(folder_->partial_path(name_) / name);
  announced_bytes_ = bytes;
  if (bytes > 0 && !file_->take_clone(bytes, clone)) file_->reserve(bytes);
}

void StateWriter::write(std::span<const std::byte> bytes) {
  if (!file_)
    throw Error(ErrorKind::misuse, {kSave, name_, "no file was begun", "begin a file before its bytes"});
  file_->write(bytes);
}

void StateWriter::end_file() {
  if (!file_) return;
  manifest_.files.push_back({file_name_, file_->finish()});
  const uint64_t bytes = manifest_.files.back().data.bytes;
  TERRACE_ASSERT(announced_bytes_ == 0 || bytes == announced_bytes_,
                 fmt::format("{} got {} of {} bytes", file_name_, bytes, announced_bytes_));
  file_.reset();
}

void StateWriter::complete(std::string facts, bool set_latest) {
  complete(std::move(facts), {set_latest, true, [](PlaceMoment) {}});
}

void StateWriter::complete(std::string facts, const PlaceOptions& options) {
  end_file();
  if (facts.empty() || facts.size() > kMostFactsBytes || well_formed_bytes(facts) != facts.size()) {
    throw Error(ErrorKind::config, {kSave, name_, fmt::format("its facts are {} bytes", facts.size()),
                                    fmt::format("give UTF-8 of 1 to {} bytes", kMostFactsBytes)});
  }
  if (manifest_.files.size() != files_.size()) {
    throw Error(
        ErrorKind::misuse,
        {kSave, name_, fmt::format("{} of {} files were written", manifest_.files.size(), files_.size()),
         "write each file of the list"});
  }
  manifest_.facts = std::move(facts);
  folder_->place(name_, manifest_text(manifest_), options);
  is_there_ = false;
}

StateReader::StateReader(const fs::path& folder, const std::optional<std::string>& name,
                         std::vector<std::string> files) {
  const StateKind kind{.files = std::move(files)};
  std::string wanted;
  if (name) {
    wanted = *name;
    require_name(kLoad, kind, wanted);
  } else {
    wanted = completed_next(folder, kind);
    const std::optional<std::string> latest = latest_name(folder);
    if (wanted.empty() && !latest) {
      throw Error(ErrorKind::io, {kLoad, folder.string(), fmt::format("it has no file {}", kLatestName),
                                  "name a folder in which checkpoints were saved, or one of them"});
    }
    if (wanted.empty()) wanted = *latest;
    const std::string reason = kind.why_no_name(wanted);
    if (!reason.empty()) {
      throw Error(ErrorKind::corrupt, {kLoad, (folder / kLatestName).string(),
                                       fmt::format("it does not hold the name of a checkpoint: {}", reason),
                                       "name one of those that are there"});
    }
  }
  path_ = state_folder(folder / wanted, kind);
  if (path_.empty()) {
    throw Error(ErrorKind::io, {kLoad, (folder / wanted).string(), "it is not there",
                                "name a folder and a checkpoint that were saved"});
  }
  has_manifest_ = io::is_there(path_ / kManifestName);
  if (has_manifest_) {
    open_with_manifest();
  } else {
    open_without(kind);
  }
}

void StateReader::open_with_manifest() {
  const std::string text = io::read_whole_text(path_ / kManifestName, kMaxManifestBytes);
  manifest_ = parse_state_manifest(text, path_ / kManifestName);
  require_no_others();
  for (const StateManifest::File& file : manifest_.files)
    readers_.push_back(std::make_unique<BlockReader>(path_ / file.name, file.data));
}

void StateReader::require_no_others() const {
  StateKind kind;
  for (const StateManifest::File& file : manifest_.files) kind.files.push_back(file.name);
  const std::string foreign = foreign_name(path_, kind);
  if (foreign.empty()) return;
  throw Error(ErrorKind::corrupt,
              {kLoad, path_.string(), fmt::format("it holds {}, which its manifest does not name", foreign),
               "move that away, or load another checkpoint"});
}

void StateReader::open_without(const StateKind& kind) {
  for (const std::string& file : kind.files) {
    if (!io::is_there(path_ / file)) {
      throw Error(ErrorKind::io,
                  {kLoad, path_.string(), fmt::format("it has no {} and no {}", file, kManifestName),
                   "name a folder and a checkpoint that were saved"});
    }
    plain_.push_back(io::File::open(path_ / file, {.access = io::FileAccess::read}));
    manifest_.files.push_back({file, {.bytes = plain_.back().size_bytes(), .block_checksums = {}}});
  }
}

size_t StateReader::number_of(const std::string& file) const {
  const auto found = std::ranges::find(manifest_.files, file, &StateManifest::File::name);
  if (found == manifest_.files.end()) {
    throw Error(ErrorKind::corrupt,
                {kLoad, path_.string(), fmt::format("its manifest names no {}", json_quoted(file, 200)),
                 "load another checkpoint, or use the program that saved this one"});
  }
  return static_cast<size_t>(found - manifest_.files.begin());
}

uint64_t StateReader::bytes_of(const std::string& file) const {
  return manifest_.files[number_of(file)].data.bytes;
}

void StateReader::read(const std::string& file, uint64_t offset, std::span<std::byte> destination) {
  const size_t number = number_of(file);
  const uint64_t bytes = manifest_.files[number].data.bytes;
  if (offset > bytes || destination.size() > bytes - offset) {
    throw Error(ErrorKind::config, {kLoad, (path_ / file).string(),
                                    fmt::format("{} bytes from byte {} on are wanted, and it has {}",
                                                destination.size(), offset, bytes),
                                    "read what is there"});
  }
  if (destination.empty()) return;
  if (has_manifest_) {
    readers_[number]->seek(offset);
    readers_[number]->read(destination);
  } else {
    io::read_exactly(plain_[number], offset, destination, "load another checkpoint");
  }
}

void StateReader::verify() {
  for (size_t number = 0; number < readers_.size(); ++number) {
    if (readers_[number]->bytes() == 0) continue;
    readers_[number]->seek(0);
    readers_[number]->verify();
  }
}

}  // namespace terrace::saved
