// sgemm::_attention: attention by the kernels of csrc/attention. torch_sgemm/torch_ops/attention.py defines the public
// operator, which calls this one for what the kernels take.
#include "../attention/attention.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../table/namespace.h"
#include "../problem/views.h"
#include "checks.h"
#include "product.h"

namespace sgemm {
namespace {

constexpr const char* kOp = "_attention";
constexpr int64_t kMostTiles = std::numeric_limits<int>::max() / 2;

void require(bool holds, const char* name, const Tensor& tensor, const std::string& accepted) {
  if (!holds) reject(kOp, name, tensor, accepted);
}

// Requires float32 of four dimensions that a tensor map, or a quad of elements, can read.
void check_input(const char* name, const Tensor& x, const Tensor& query) {
  check_tensor(kOp, name, x, query, 4);
  const int64_t depth = x.size(3);
  require(depth % 8 == 0 && 8 <= depth && depth <= attention::kMostDepth && x.stride(3) == 1, name, x,
          "a last dimension of 8 to 128, a multiple of 8, with stride 1");
  require(x.numel() > 0 && x.numel() / depth < kMostTiles, name, x, "sizes above 0, and less than 2^30 rows");
}

void check_inputs(const Tensor& query, const Tensor& key, const Tensor& value) {
  check_input("query", query, query);
  check_input("key", key, query);
  check_input("value", value, query);
  require(key.size(0) == query.size(0) && query.size(1) % key.size(1) == 0 && key.size(3) == query.size(3), "key", key,
          "the query's batches and last dimension, and a number of heads that divides the query's");
  require(value.size(0) == key.size(0) && value.size(1) == key.size(1) && value.size(2) == key.size(2), "value", value,
          "the key's batches, heads and rows");
}

// A view of the heads' matrices. A single row has the stride of contiguous rows.
ConstMatrix heads_of(const Tensor& x) {
  ConstMatrix heads = view(x);
  if (heads.rows == 1) heads.row = heads.cols;
  return heads;
}

// Returns a tensor in memory that a tensor map can describe: the tensor itself, or a copy.
Tensor mapped(const Tensor& x) {
  const auto holds = [](const Tensor& t) { return can_be_mapped(heads_of(t), t.size(0) * t.size(1)); };
  if (holds(x)) return x;
  const Tensor contiguous = torch::stable::contiguous(x);
  return holds(contiguous) ? contiguous : torch::stable::clone(contiguous);
}

attention::Mask mask_of(const Tensor& mask, const Tensor& query, const Tensor& key) {
  using torch::headeronly::ScalarType;
  check_defined(kOp, "attn_mask", mask);
  const bool boolean = mask.scalar_type() == ScalarType::Bool;
  require((boolean || Float32::holds(mask)) && mask.dim() == 4 && OnDevice::holds(mask, query), "attn_mask", mask,
          "bool or float32 of four dimensions on the query's device");
  require(mask.size(0) == query.size(0) && mask.size(1) == query.size(1) && mask.size(2) == query.size(2) &&
              mask.size(3) == key.size(2),
          "attn_mask", mask, "shape (batches, heads, queries, keys)");
  attention::Mask m;
  m.data = mask.const_data_ptr();
  m.kind = boolean ? attention::MaskKind::kBool : attention::MaskKind::kFloat;
  m.batch = mask.stride(0);
  m.head = mask.stride(1);
  m.row = mask.stride(2);
  m.key = mask.stride(3);
  const int64_t element = boolean ? 1 : 4;
  m.in_pairs = m.key == 1 && mask.size(3) % 2 == 0 && m.row % 2 == 0 && m.head % 2 == 0 && m.batch % 2 == 0 &&
               reinterpret_cast<uintptr_t>(m.data) % (2 * element) == 0;
  return m;
}

std::tuple<Tensor, Tensor> attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const std::optional<Tensor>& mask, bool causal, double scale, bool with_logsumexp) {
  check_inputs(query, key, value);
  attention::Problem p;
  p.batches = static_cast<int>(query.size(0));
  p.heads = static_cast<int>(query.size(1));
  p.groups = static_cast<int>(key.size(1));
  p.queries = static_cast<int>(query.size(2));
  p.keys = static_cast<int>(key.size(2));
  p.depth = static_cast<int>(query.size(3));
  p.value_depth = static_cast<int>(value.size(3));
  p.causal = causal;
  p.scale = static_cast<float>(scale);
  if (mask) p.mask = mask_of(*mask, query, key);
  const Tensor queries = mapped(query), keys = mapped(key), values = mapped(value);
  p.q = heads_of(queries);
  p.k = heads_of(keys);
  p.v = heads_of(values);
  const Device& device = device_of(query);
  if (device.arch != 90) fail(kOp, "the GPU isn't of compute capability 9.0");
  const Tensor rows = empty({p.batches, p.queries, p.heads, p.value_depth}, query);
  const Tensor out = view_as(rows, {p.batches, p.heads, p.queries, p.value_depth},
                             {rows.stride(0), rows.stride(2), rows.stride(1), 1});
  const Tensor logsumexp =
      empty({p.batches, p.heads, with_logsumexp ? attention::padded_queries(p.queries) : 0}, query);
  p.out = {static_cast<float*>(out.mutable_data_ptr()), p.queries, p.value_depth, out.stride(2), 1,
           {out.stride(0), p.heads, out.stride(1)}};
  if (with_logsumexp) p.logsumexp = static_cast<float*>(logsumexp.mutable_data_ptr());
#if defined(SGEMM_SM90A)
  const ProfiledRange range("torch_sgemm::attention");
  const torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
  const Tensor workspace = empty({static_cast<int64_t>(attention::layout(p).total / sizeof(float))}, query);
  attention::run(p, {current_stream(query), &device, workspace.mutable_data_ptr()});
#else
  fail(kOp, "this build has no code for compute capability 9.0a");
#endif
  return {out, logsumexp};
}

// Returns the predicted seconds of the kernels here and of PyTorch's. `sizes`: batches, heads, groups, queries, keys,
// depth, depth of the values.
std::tuple<double, double> seconds(std::vector<int64_t> sizes, bool causal, bool masked, std::vector<int64_t> device) {
  constexpr const char* op = "_attention_seconds";
  if (sizes.size() != 7 || std::any_of(sizes.begin(), sizes.end(), [](int64_t x) { return x < 1 || x > kMostTiles; }))
    fail(op, "argument 'sizes': 7 numbers from 1 to 2^30 are accepted");
  attention::Problem p;
  int* const to[] = {&p.batches, &p.heads, &p.groups, &p.queries, &p.keys, &p.depth, &p.value_depth};
  for (size_t i = 0; i < sizes.size(); ++i) *to[i] = static_cast<int>(sizes[i]);
  if (p.depth > attention::kMostDepth || p.value_depth > attention::kMostDepth)
    fail(op, "depths up to 128 are accepted");
  p.causal = causal;
  p.mask.kind = masked ? attention::MaskKind::kFloat : attention::MaskKind::kNone;
  const auto [ours, pytorch] = attention::predicted(p, device_from(op, device, ""));
  return {ours, pytorch};
}

}  // namespace
}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  m.def(
      "_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float scale, bool "
      "with_logsumexp) -> (Tensor, Tensor)");
  m.def("_attention_seconds(int[] sizes, bool causal, bool masked, int[] device) -> (float, float)");
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) { m.impl("_attention", TORCH_BOX(&sgemm::attend)); }

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_attention_seconds", TORCH_BOX(&sgemm::seconds));
}
