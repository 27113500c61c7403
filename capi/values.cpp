// Filling a store, values and steps of single tensors, and addresses.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/store.h>
#include <terrace/capi/structs.h>

namespace terrace::c {
namespace {

// Runs `load`. What fails once values may have changed leaves none.
template <typename Load>
void fill(terrace_store& store, const Subject& action, Load load) {
  require_rest(store, action);
  try {
    load();
  } catch (...) {
    if (!store.offloader->has_whole_state()) store.is_filled = false;
    throw;
  }
  store.is_filled = true;
}

// Words are values of tensors of words, and of no other. A tensor that there is not is found later.
DataType type_of_values(const terrace_store& store, uint32_t type, const Subject& action, uint32_t tensor) {
  require_enum(type, kTypes, action, fmt::format("type of the values of tensor {}", tensor));
  if (tensor < store.are_words.size() && store.are_words[tensor] != (type == TERRACE_WORD))
    misuse(action, store.space.tensor(TensorId{tensor}).name,
           store.are_words[tensor] ? "it has words, and the values are numbers"
                                   : "it has numbers, and the values are words",
           "give words for words, and numbers for numbers");
  return data_type_of(type);
}

ValueKind kind_of(uint32_t what, const Subject& action) {
  require_enum(what, 5, action, "what");
  return static_cast<ValueKind>(what);
}

}  // namespace
}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace
using c::in_store;

terrace_error* terrace_fill_arrays(terrace_store* store, const terrace_array* arrays, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(fill_arrays);
  return in_store(
      store, kCall,
      [&](terrace_store& s) {
        std::vector<TensorArray> list;
        for (const terrace_array& array : c::taken_list(arrays, count, kCall, "arrays")) {
          const DataType type = c::type_of_values(s, array.type, kCall, array.tensor);
          c::require_zero(array.reserved, kCall, "terrace_array.reserved");
          list.push_back({TensorId{array.tensor}, static_cast<const std::byte*>(array.data), type});
        }
        c::fill(s, kCall, [&] { s.offloader->state().load_arrays(list); });
      },
      c::Harmless::all);
}

terrace_error* terrace_fill_files(terrace_store* store, const terrace_file_part* parts, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(fill_files);
  return in_store(
      store, kCall,
      [&](terrace_store& s) {
        std::vector<FilePart> list;
        for (const terrace_file_part& part : c::taken_list(parts, count, kCall, "parts")) {
          const DataType type = c::type_of_values(s, part.type, kCall, part.tensor);
          c::require_zero(part.reserved, kCall, "terrace_file_part.reserved");
          c::require_pointer(part.path, kCall, fmt::format("path of tensor {}", part.tensor));
          list.push_back({TensorId{part.tensor}, part.path, part.offset, type});
        }
        c::fill(s, kCall, [&] { s.offloader->state().load_file_parts(list); });
      },
      c::Harmless::all);
}

terrace_error* terrace_fill_with(terrace_store* store, terrace_fill_fn fill, void* context) {
  constexpr Names kCall = TERRACE_CALL(fill_with);
  return in_store(
      store, kCall,
      [&](terrace_store& s) {
        c::require_pointer(reinterpret_cast<const void*>(fill), kCall, "fill");
        const auto values = [&](TensorId tensor, uint64_t first, std::span<float> run) {
          const int stop = fill(context, index_of(tensor), first, run.size(), run.data());
          if (stop != 0)
            c::refuse(ErrorKind::cancelled, kCall, s.space.tensor(tensor).name,
                      fmt::format("the callback returned {}", stop), "fill the store again");
        };
        c::fill(s, kCall, [&] { s.offloader->state().initialise(values); });
      },
      c::Harmless::all);
}

terrace_error* terrace_read_values(terrace_store* store, uint32_t tensor, uint32_t what, uint64_t first,
                                   uint64_t count, float* values) {
  constexpr Names kCall = TERRACE_CALL(read_values);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_list(values, count, kCall, "values");
    if (what != TERRACE_GRADIENT) c::require_values(s, kCall);
    s.offloader->state().read_values(TensorId{tensor}, c::kind_of(what, kCall), first,
                                     {values, static_cast<size_t>(count)});
  });
}

terrace_error* terrace_write_values(terrace_store* store, uint32_t tensor, uint32_t what, uint64_t first,
                                    uint64_t count, const float* values) {
  constexpr Names kCall = TERRACE_CALL(write_values);
  return in_store(
      store, kCall,
      [&](terrace_store& s) {
        c::require_list(values, count, kCall, "values");
        if (what != TERRACE_GRADIENT) c::require_values(s, kCall);
        const ValueKind kind = c::kind_of(what, kCall);
        if (count == 0) return;
        s.offloader->state().write_values(TensorId{tensor}, kind, first,
                                          {values, static_cast<size_t>(count)});
      },
      c::Harmless::capacity);
}

terrace_error* terrace_tensor_steps(terrace_store* store, uint64_t* steps, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(tensor_steps);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(steps, kCall, "steps");
    const std::span<const uint64_t> counts = s.offloader->state().tensor_steps();
    if (counts.size() != count)
      c::misuse(kCall, "count",
                fmt::format("it is {}, and {} tensors count their steps", count, counts.size()),
                "give the number of all tensors, with " + Option::unused_gradients + " at " +
                    TERRACE_VALUE(TERRACE_UNUSED_SKIP, "\"skip\""));
    std::ranges::copy(counts, steps);
  });
}

terrace_error* terrace_set_tensor_steps(terrace_store* store, const uint64_t* steps, uint32_t count) {
  constexpr Names kCall = TERRACE_CALL(set_tensor_steps);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(steps, kCall, "steps");
    c::require_values(s, kCall);
    s.offloader->state().set_tensor_steps({steps, count});
  });
}

terrace_error* terrace_has_whole_state(terrace_store* store, uint32_t* is_whole) {
  constexpr Names kCall = TERRACE_CALL(has_whole_state);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(is_whole, kCall, "is_whole");
    *is_whole = s.offloader->has_whole_state() ? 1 : 0;
  });
}

terrace_error* terrace_parameter_address(terrace_store* store, uint32_t tensor, void** address) {
  constexpr Names kCall = TERRACE_CALL(parameter_address);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(address, kCall, "address");
    *address = s.offloader->parameter_address(TensorId{tensor});
  });
}

terrace_error* terrace_gradient_address(terrace_store* store, uint32_t tensor, void** address) {
  constexpr Names kCall = TERRACE_CALL(gradient_address);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(address, kCall, "address");
    *address = s.offloader->gradient_address(TensorId{tensor});
  });
}

terrace_error* terrace_work_memory(terrace_store* store, void** address, uint64_t* bytes) {
  constexpr Names kCall = TERRACE_CALL(work_memory);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(address, kCall, "address");
    c::require_pointer(bytes, kCall, "bytes");
    const std::span<std::byte> memory = s.offloader->work_memory();
    *address = memory.data();
    *bytes = memory.size();
  });
}

terrace_error* terrace_compute_stream(terrace_store* store, void** stream) {
  constexpr Names kCall = TERRACE_CALL(compute_stream);
  return in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(stream, kCall, "stream");
    *stream = c::compute_stream(s.device);
  });
}

terrace_error* terrace_use_stream(terrace_store* store, void* stream) {
  return in_store(store, TERRACE_CALL(use_stream),
                  [&](terrace_store& s) { c::use_stream(s.device, stream); });
}
