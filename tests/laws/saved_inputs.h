// SavedInputs: the inputs of checkpointed layers of a law's training as a program saves what it makes itself,
// through SavedActivations. Each is saved in pieces, so that several are there at once, on their way too. It
// notes what has to have moved.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include <terrace/offload/lease/activation_store.h>

#include "support/changing_threads.h"

namespace terrace::laws {

class SavedInputs final : public ActivationStore {
 public:
  // No piece is empty, and the first one is the largest.
  static constexpr uint32_t kPieces = 3;
  static std::array<uint64_t, kPieces> piece_elements(uint64_t elements) {
    return {elements - elements / 3 - elements / 4, elements / 3, elements / 4};
  }

  // The offloader whose they are outlives this; its calls go through `call`.
  SavedInputs(SavedActivations& saved, testing::Caller call) : saved_(saved), call_(call) {}

  void start_put(uint32_t index, std::span<const float> values) override {
    forget(index);  // of a pass that failed
    uint64_t first = 0;
    for (const uint64_t elements : piece_elements(values.size())) {
      const std::span<const std::byte> piece = std::as_bytes(values.subspan(first, elements));
      call_([&] {
        inputs_[index].push_back({saved_.start_save(piece.data(), piece.size()), first, elements});
      });
      put_bytes_ += piece.size();
      first += elements;
    }
  }

  // Those that others would have to make room for begin when they are waited for.
  void start_get(uint32_t index, std::span<float> values) override {
    for (Piece& piece : inputs_.at(index)) piece.back = values.subspan(piece.first, piece.elements);
    std::vector<Piece>& pieces = inputs_.at(index);
    for (auto piece = pieces.rbegin(); piece != pieces.rend() && begin(*piece, Room::must_be_there);
         ++piece) {
    }
  }

  void wait(uint32_t index) override {
    std::vector<Piece>& pieces = inputs_.at(index);
    if (pieces.front().back.empty()) {
      for (const Piece& piece : pieces) call_([&] { saved_.finish_save(piece.number); });
      return;
    }
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
      if (!piece->has_begun) begin(*piece, Room::is_made);
      call_([&] { saved_.finish_load(piece->number); });
    }
    forget(index);
  }

  uint64_t put_bytes() const { return put_bytes_; }
  SavedUse use() const { return saved_.use(); }

 private:
  using Room = SavedActivations::Room;
  struct Piece {
    SavedActivation number{};
    uint64_t first = 0;
    uint64_t elements = 0;
    std::span<float> back = {};  // empty: it is not wanted yet
    bool has_begun = false;
  };

  bool begin(Piece& piece, Room room) {
    piece.has_begun = call_(
        [&] { return saved_.start_load(piece.number, std::as_writable_bytes(piece.back).data(), room); });
    return piece.has_begun;
  }
  void forget(uint32_t index) {
    for (const Piece& piece : inputs_[index]) call_([&] { saved_.drop(piece.number); });
    inputs_.erase(index);
  }

  SavedActivations& saved_;
  const testing::Caller call_;
  std::map<uint32_t, std::vector<Piece>> inputs_;
  uint64_t put_bytes_ = 0;
};

}  // namespace terrace::laws
