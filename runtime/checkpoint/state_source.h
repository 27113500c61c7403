// StateSource: the training state as a save reads it. It gives the bytes of a checkpoint's data files from
// the first to the last, wherever the state is placed, and must never mix two states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <terrace/base/function_ref.h>
#include <terrace/offload/commits/pinned_commit.h>
#include <terrace/offload/offloader.h>

namespace terrace {

class StateSource {
 public:
  using Sink = FunctionRef<void(std::span<const std::byte>)>;
  virtual ~StateSource() = default;

  virtual const FlatSpace& space() const = 0;  // the tensors, in the order of the bytes
  virtual RecordLayout layout() const = 0;     // of the states, with whole masters
  virtual uint64_t states_bytes() const = 0;
  virtual uint64_t frozen_bytes() const = 0;
  // These give the bytes in runs, in order. They throw a failure of reading, and what the sink throws.
  virtual void read_states(Sink sink) = 0;
  virtual void read_frozen(Sink sink) = 0;
  // These make an empty file share the bytes instead of copying them. They return false if that is
  // impossible; the file may then hold anything.
  virtual bool clone_states(int) { return false; }
  virtual bool clone_frozen(int) { return false; }
};

// Gives the sink so many bytes in blocks, from the first to the last, each filled by read(offset, block).
void read_in_blocks(uint64_t bytes, uint64_t block_bytes, StateSource::Sink sink,
                    FunctionRef<void(uint64_t offset, std::span<std::byte> block)> read);

// The state between two steps; training waits for the save.
class OffloaderSource final : public StateSource {
 public:
  // `flat_space` is that of the offloader; both outlive this.
  OffloaderSource(Offloader& offloader, const FlatSpace& flat_space)
      : offloader_(offloader), space_(flat_space) {}
  const FlatSpace& space() const override { return space_; }
  RecordLayout layout() const override { return offloader_.plan().record_layout.canonical(); }
  uint64_t states_bytes() const override {
    return offloader_.state().record_tile_count() * layout().tile_bytes();
  }
  uint64_t frozen_bytes() const override { return offloader_.state().frozen_bytes(); }
  void read_states(Sink sink) override { offloader_.state().export_records(sink); }
  void read_frozen(Sink sink) override { offloader_.state().export_frozen(sink); }

 private:
  Offloader& offloader_;
  const FlatSpace& space_;
};

// A commit of the nvme tier; training goes on meanwhile.
class CommitSource final : public StateSource {
 public:
  // `flat_space` is that of the commit, and outlives this.
  CommitSource(std::unique_ptr<PinnedCommit> commit, const FlatSpace& flat_space)
      : commit_(std::move(commit)), space_(flat_space) {}
  const FlatSpace& space() const override { return space_; }
  RecordLayout layout() const override { return commit_->record_layout(); }
  uint64_t states_bytes() const override { return commit_->record_tile_count() * layout().tile_bytes(); }
  uint64_t frozen_bytes() const override { return commit_->frozen_bytes(); }
  void read_states(Sink sink) override;
  void read_frozen(Sink sink) override;
  bool clone_states(int fd) override { return commit_->clone_records(fd); }
  bool clone_frozen(int fd) override { return commit_->clone_frozen(fd); }

 private:
  std::unique_ptr<PinnedCommit> commit_;
  const FlatSpace& space_;
};

}  // namespace terrace
