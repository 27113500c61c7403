// Tensors of a store as DLPack has them. The structs are those of dlpack.h, version 0.8, whose layout other
// libraries rely on; they are declared here so that nobody needs that header.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/store.h>

extern "C" {

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

}  // extern "C"

static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLTensor, dtype) == 20 &&
              offsetof(DLManagedTensor, deleter) == 56);

namespace terrace::c {
namespace {

constexpr int32_t kDeviceOfProcessor = 1;
constexpr int32_t kDeviceOfCuda = 2;
constexpr uint8_t kUnsigned = 1;
constexpr uint8_t kFloat = 2;
constexpr uint8_t kBfloat = 4;

struct Managed {
  DLManagedTensor tensor{};
  std::vector<int64_t> shape;
};

extern "C" void delete_managed(DLManagedTensor* self) {
  if (self != nullptr) delete static_cast<Managed*>(self->manager_ctx);
}

}  // namespace
}  // namespace terrace::c

using namespace terrace;  // NOLINT: the functions of C are in no namespace

terrace_error* terrace_dlpack(terrace_store* store, uint32_t tensor, uint32_t gradient,
                              DLManagedTensor** managed) {
  constexpr Names kCall = TERRACE_CALL(dlpack);
  return c::in_store(store, kCall, [&](terrace_store& s) {
    c::require_pointer(managed, kCall, "managed");
    *managed = nullptr;
    const TensorId id{tensor};
    std::byte* const address =
        gradient != 0 ? s.offloader->gradient_address(id) : s.offloader->parameter_address(id);
    const TensorSpec& spec = s.space.tensor(id);
    if (gradient != 0 && !spec.trainable)
      c::misuse(kCall, spec.name, "the tensor is frozen and has no gradient", "ask for its parameter");
    auto made = std::make_unique<c::Managed>();
    made->shape.assign(spec.shape.begin(), spec.shape.end());
    DLTensor& t = made->tensor.dl_tensor;
    t.data = address;
    t.device = {s.is_cuda ? c::kDeviceOfCuda : c::kDeviceOfProcessor, s.is_cuda ? s.ordinal : 0};
    t.ndim = static_cast<int32_t>(made->shape.size());
    t.dtype = {s.are_words[tensor]           ? c::kUnsigned
               : spec.type == DataType::bf16 ? c::kBfloat
                                             : c::kFloat,
               static_cast<uint8_t>(8 * bytes_of(spec.type)), 1};
    t.shape = made->shape.data();
    made->tensor.manager_ctx = made.get();
    made->tensor.deleter = c::delete_managed;
    *managed = &made.release()->tensor;
  });
}
