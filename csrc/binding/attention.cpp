// sgemm::_attention and sgemm::_attention_gradients: attention by the kernels of csrc/attention, and its gradients.
// torch_sgemm/torch_ops/attention.py defines the public operator, which calls these for what the kernels take.
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "../attention/backward/gradients.h"
#include "../table/namespace.h"
#include "attention_arguments.h"
#include "boxed.h"
#include "product.h"

namespace sgemm {
namespace {

// Calls `run` with a context on the query's device, whose workspace has workspace_bytes(device) bytes.
template <class Bytes, class Run>
void launch(const char* op, const char* range_name, const Tensor& query, const Bytes& workspace_bytes, const Run& run) {
  const Device& device = device_of(query);
  if (device.arch != 90) fail(op, "the GPU isn't of compute capability 9.0");
#if defined(SGEMM_SM90A)
  const ProfiledRange range(range_name);
  const torch::stable::accelerator::DeviceGuard guard(query.get_device_index());
  const Tensor workspace = empty({static_cast<int64_t>(workspace_bytes(device) / sizeof(float))}, query);
  run(Context{current_stream(query), &device, workspace.mutable_data_ptr()});
#else
  fail(op, "this build has no code for compute capability 9.0a");
#endif
}

std::tuple<Tensor, Tensor> attend(const Tensor& query, const Tensor& key, const Tensor& value,
                                  const std::optional<Tensor>& mask, bool causal, double scale, bool with_logsumexp) {
  constexpr const char* op = "_attention";
  const AttentionArguments arguments(op, query, key, value, mask, causal, scale);
  attention::Problem p = arguments.p;
  const Tensor out = empty_heads(p.batches, p.heads, p.queries, p.value_depth, query);
  const Tensor logsumexp =
      empty({p.batches, p.heads, with_logsumexp ? attention::padded_queries(p.queries) : 0}, query);
  p.out = output_heads(out);
  if (with_logsumexp) p.logsumexp = static_cast<float*>(logsumexp.mutable_data_ptr());
  launch(
      op, "torch_sgemm::attention", query, [&](const Device&) { return attention::layout(p).total; },
      [&](const Context& context) { attention::run(p, context); });
  return {out, logsumexp};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> differentiate(const Tensor& grad, const Tensor& query, const Tensor& key,
                                                         const Tensor& value, const std::optional<Tensor>& mask,
                                                         const Tensor& out, const Tensor& logsumexp, bool causal,
                                                         double scale, bool wants_query, bool wants_keys,
                                                         bool wants_mask) {
  constexpr const char* op = "_attention_gradients";
  const AttentionArguments arguments(op, query, key, value, mask, causal, scale);
  attention::backward::Gradients g;
  g.p = arguments.p;
  const attention::Problem& p = g.p;
  for (const auto& [name, x] : {std::pair("grad", &grad), std::pair("out", &out)}) {
    check_tensor(op, name, *x, query, 4);
    require(x->size(0) == p.batches && x->size(1) == p.heads && x->size(2) == p.queries && x->size(3) == p.value_depth,
            op, name, *x, "shape (batches, heads, queries, depth of values)");
  }
  check_tensor(op, "logsumexp", logsumexp, query, 3);
  require(logsumexp.size(0) == p.batches && logsumexp.size(1) == p.heads &&
              logsumexp.size(2) == attention::padded_queries(p.queries) && logsumexp.is_contiguous(),
          op, "logsumexp", logsumexp, "a contiguous result of the forward");
  if (wants_mask && p.mask.kind == attention::MaskKind::kNone) fail(op, "there is no mask that could have a gradient");
  const Tensor grads = mapped(grad), outs = mapped(out);
  g.grad = heads_of(grads);
  g.out = heads_of(outs);
  g.logsumexp = static_cast<const float*>(logsumexp.const_data_ptr());
  const auto result = [&](bool wanted, int64_t heads, int64_t rows, int64_t depth, Matrix& view) {
    if (!wanted) return empty({0}, query);
    const Tensor x = empty_heads(p.batches, heads, rows, depth, query);
    view = output_heads(x);
    return x;
  };
  const Tensor dq = result(wants_query, p.heads, p.queries, p.depth, g.q);
  const Tensor dk = result(wants_keys, p.groups, p.keys, p.depth, g.k);
  const Tensor dv = result(wants_keys, p.groups, p.keys, p.value_depth, g.v);
  const Tensor dmask = wants_mask ? empty({p.batches, p.heads, p.queries, p.keys}, query) : empty({0}, query);
  if (wants_mask) g.mask = static_cast<float*>(dmask.mutable_data_ptr());
  launch(
      op, "torch_sgemm::attention_gradients", query,
      [&](const Device& device) { return attention::backward::layout(g, device).total; },
      [&](const Context& context) { attention::backward::run(g, context); });
  return {dq, dk, dv, dmask};
}

// Returns a problem of `sizes`: batches, heads, groups, queries, keys, depth, depth of the values.
attention::Problem problem_of(const char* op, const std::vector<int64_t>& sizes, bool causal, bool masked) {
  const auto is_size = [](int64_t x) { return 1 <= x && x <= kMostRows; };
  if (sizes.size() != 7 || !std::all_of(sizes.begin(), sizes.end(), is_size))
    fail(op, "argument 'sizes': 7 numbers from 1 to 2^30 - 1 are accepted");
  attention::Problem p;
  int* const to[] = {&p.batches, &p.heads, &p.groups, &p.queries, &p.keys, &p.depth, &p.value_depth};
  for (size_t i = 0; i < sizes.size(); ++i) *to[i] = static_cast<int>(sizes[i]);
  if (p.depth > attention::kMostDepth || p.value_depth > attention::kMostDepth)
    fail(op, "depths up to 128 are accepted");
  p.causal = causal;
  p.mask.kind = masked ? attention::MaskKind::kFloat : attention::MaskKind::kNone;
  return p;
}

// Return the predicted seconds of the kernels here and of PyTorch's.
std::tuple<double, double> seconds(std::vector<int64_t> sizes, bool causal, bool masked, std::vector<int64_t> device) {
  constexpr const char* op = "_attention_seconds";
  const attention::Problem p = problem_of(op, sizes, causal, masked);
  const auto [ours, pytorch] = attention::predicted(p, device_from(op, device, ""));
  return {ours, pytorch};
}
std::tuple<double, double> gradients_seconds(std::vector<int64_t> sizes, bool causal, bool masked,
                                             std::vector<int64_t> device) {
  constexpr const char* op = "_attention_gradients_seconds";
  attention::backward::Gradients g;
  g.p = problem_of(op, sizes, causal, masked);
  const auto [ours, pytorch] = attention::backward::predicted(g, device_from(op, device, ""));
  return {ours, pytorch};
}

}  // namespace
}  // namespace sgemm

STABLE_TORCH_LIBRARY_FRAGMENT(SGEMM_NAMESPACE, m) {
  m.def(
      "_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, float scale, bool "
      "with_logsumexp) -> (Tensor, Tensor)");
  m.def(
      "_attention_gradients(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor out, Tensor "
      "logsumexp, bool is_causal, float scale, bool wants_query, bool wants_keys, bool wants_mask) -> (Tensor, Tensor, "
      "Tensor, Tensor)");
  for (const char* name : {"_attention_seconds", "_attention_gradients_seconds"})
    m.def((std::string(name) + "(int[] sizes, bool causal, bool masked, int[] device) -> (float, float)").c_str());
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CUDA, m) {
  m.impl("_attention", SGEMM_BOX(&sgemm::attend));
  m.impl("_attention_gradients", SGEMM_BOX(&sgemm::differentiate));
}

STABLE_TORCH_LIBRARY_IMPL(SGEMM_NAMESPACE, CompositeExplicitAutograd, m) {
  m.impl("_attention_seconds", SGEMM_BOX(&sgemm::seconds));
  m.impl("_attention_gradients_seconds", SGEMM_BOX(&sgemm::gradients_seconds));
}
