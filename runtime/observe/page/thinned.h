// Thinned: a list that never grows beyond its room. When it is full, every second item is dropped, and from
// then on half as many are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace terrace {

// Invariant: items() are the added items whose number, from 0 in the order of adding, is a multiple of
// stride(); their count is at most the room.
template <typename Item>
class Thinned {
 public:
  explicit Thinned(size_t room) : room_(room) { items_.reserve(room); }

  void add(Item item) {
    if (count_++ % stride_ != 0) return;
    if (items_.size() == room_) {
      size_t kept = 0;
      for (size_t i = 0; i < items_.size(); i += 2) {
        if (i != kept) items_[kept] = std::move(items_[i]);
        ++kept;
      }
      items_.erase(items_.begin() + static_cast<ptrdiff_t>(kept), items_.end());
      stride_ *= 2;
      if ((count_ - 1) % stride_ != 0) return;
    }
    items_.push_back(std::move(item));
  }

  std::span<const Item> items() const { return items_; }
  uint64_t count() const { return count_; }  // items added
  uint64_t stride() const { return stride_; }

 private:
  size_t room_;
  std::vector<Item> items_;
  uint64_t count_ = 0;
  uint64_t stride_ = 1;
};

}  // namespace terrace
