#include <terrace/reference/model/transformer/adapter.h>

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

std::vector<std::string> default_adapter_targets(ModelFamily family) {
  if (family == ModelFamily::gpt2) return {"c_attn"};
  return {"q_proj", "v_proj"};
}

void merge_adapter(const AdapterSpec& adapter, std::span<const float> a, std::span<const float> b,
                   uint64_t first_element, std::span<float> values) {
  const uint64_t inputs = adapter.inputs, outputs = adapter.outputs, rank = adapter.rank;
  TERRACE_ASSERT(a.size() == rank * inputs && b.size() == outputs * rank,
                 "an adapter's matrices have another size");
  TERRACE_ASSERT(first_element + values.size() <= inputs * outputs, "a weight has no such elements");
  const uint64_t columns = adapter.outputs_first ? inputs : outputs;
  for (uint64_t done = 0; done < values.size();) {
    const uint64_t row = (first_element + done) / columns, column = (first_element + done) % columns;
    const uint64_t count = std::min<uint64_t>(columns - column, values.size() - done);
    float* const to = values.data() + done;
    for (uint64_t r = 0; r < rank; ++r) {
      if (adapter.outputs_first) {
        const float factor = adapter.scale * b[row * rank + r];
        const float* const from = a.data() + r * inputs + column;
        for (uint64_t i = 0; i < count; ++i) to[i] += factor * from[i];
      } else {
        const float factor = adapter.scale * a[r * inputs + row];
        const float* const from = b.data() + column * rank + r;
        for (uint64_t i = 0; i < count; ++i) to[i] += factor * from[i * rank];
      }
    }
    done += count;
  }
}

}  // namespace terrace
